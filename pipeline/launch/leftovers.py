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

    Returns the steps of the newest good checkpoint, 0 where there is none, and a line on each that
    is not used. `owner` is the key of the checkpoints. Raises SamestepError where the folder cannot
    be used.
    """
    try:
        done, refused = _choose(layout, paths, owner)
        if not done:
            shutil.rmtree(paths.checkpoints, ignore_errors=True)
            shutil.rmtree(paths.ranks, ignore_errors=True)
        paths.ranks.mkdir(parents=True, exist_ok=True)
        half_written = paths.out.glob(".*.tmp*")
        for left in (paths.out / "run.json", *half_written, *([] if keep_log else [paths.log])):
            left.unlink(missing_ok=True)
        for left in paths.ranks.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif not step_files.is_one(left):
                left.unlink()
        return done, refused
    except OSError as error:
        raise SamestepError(
            f"cannot use {paths.out} ({error.strerror}); fix it or free space"
        ) from None


def _choose(layout: Layout, paths: RunPaths, owner: str) -> tuple[int, list[str]]:
    """Steps of the newest checkpoint that is good, and why newer ones, which are dropped, are not.

    Good is one that is whole, of `owner`, and has the rows of its steps in every rank's file: a
    node that loses its power takes the rows with it that a shared folder did not have yet.
    """
    refused: list[str] = []
    for done in checkpoint.steps(paths.checkpoints):
        fault = checkpoint.fault(paths.checkpoints, done, owner)
        for rank in range(layout.num_processes if fault is None else 0):
            kept = step_files.whole_steps(paths.ranks, rank, done)
            if kept < done:
                fault = f"{step_files.path_of(paths.ranks, rank).name} ends at step {kept}"
                break
        if fault is None:
            return done, refused
        refused.append(f"the checkpoint of step {done} is not used: {fault}")
        checkpoint.drop(paths.checkpoints, done)
    return 0, [*refused, "no good checkpoint is left, the run starts anew"] if refused else []
