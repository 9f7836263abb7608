"""Files of earlier starts in the folder of a run: the checkpoint to resume from, and the rest."""

from __future__ import annotations

import shutil

from pipeline.errors import SamestepError
from pipeline.launch.torchrun import RunPaths
from pipeline.parallel.mesh import Layout
from pipeline.training import checkpoint, step_files


def clear(
    layout: Layout, paths: RunPaths, owner: str, *, keep_log: bool = False
) -> tuple[int, list[str]]:
    """Drop what an earlier start left, but for good checkpoints of ours and their step files.

    Good is a checkpoint that is whole, of `owner`, and has the rows of its steps in every rank's
    file: a node that loses its power takes the rows with it that a shared folder did not have yet.
    Returns the steps of the newest good one, 0 where there is none, and a line on each that is not
    used. Raises SamestepError where the folder cannot be used.
    """
    refused: list[str] = []
    good = 0
    try:
        for done in checkpoint.steps(paths.checkpoints):
            fault = checkpoint.fault(paths.checkpoints, done, owner)
            for rank in range(layout.num_processes if fault is None else 0):
                kept = step_files.whole_steps(paths.ranks, rank, done)
                if kept < done:
                    fault = f"{step_files.path_of(paths.ranks, rank).name} ends at step {kept}"
                    break
            if fault is None:
                good = done
                break
            refused.append(f"the checkpoint of step {done} is not used: {fault}")
            checkpoint.drop(paths.checkpoints, done)
        if not good:
            shutil.rmtree(paths.checkpoints, ignore_errors=True)
            shutil.rmtree(paths.ranks, ignore_errors=True)
            refused += ["no good checkpoint is left, the run starts anew"] if refused else []
        paths.ranks.mkdir(parents=True, exist_ok=True)
        half_written = paths.out.glob(".*.tmp*")
        for left in (paths.out / "run.json", *half_written, *([] if keep_log else [paths.log])):
            left.unlink(missing_ok=True)
        for left in paths.ranks.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif not step_files.is_one(left):
                left.unlink()
    except OSError as error:
        raise SamestepError(
            f"cannot use {paths.out} ({error.strerror}); fix it or free space"
        ) from None
    return good, refused
