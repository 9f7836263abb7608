"""What earlier starts of a run left in its folder: the checkpoint to resume from, and the rest."""

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
        step_files.adopt_lines(paths.ranks)
        done, said = _choose(layout, paths, owner)
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
        return done, said
    except OSError as error:
        raise SamestepError(
            f"cannot use {paths.out} ({error.strerror}); fix it or free space"
        ) from None


def _choose(layout: Layout, paths: RunPaths, owner: str) -> tuple[int, list[str]]:
    """Steps of the newest checkpoint that is good, and why newer ones, which are dropped, are not.

    Good is one that is whole, of `owner`, and has the rows of its steps in every rank's file.
    """
    said: list[str] = []
    for step in checkpoint.steps(paths.checkpoints):
        fault = checkpoint.fault(paths.checkpoints, step, owner) or _torn(paths, layout, step)
        if fault is None:
            return step, said
        said.append(f"the checkpoint of step {step} is not used: {fault}")
        checkpoint.drop(paths.checkpoints, step)
    return 0, [*said, "no good checkpoint is left, the run starts anew"] if said else []


def _torn(paths: RunPaths, layout: Layout, done: int) -> str | None:
    """Which rank's step file lacks one of the first `done` steps; None where all have them.

    A node that loses its power takes the rows with it that a shared folder did not have yet.
    """
    for rank in range(layout.num_processes):
        kept = step_files.whole_steps(paths.ranks, rank, done)
        if kept < done:
            return f"{step_files.path_of(paths.ranks, rank).name} ends at step {kept}"
    return None
