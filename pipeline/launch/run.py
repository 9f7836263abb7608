"""One run, one record: start its launchers, follow them to their end, start lost ones again."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.corpus.manifest import Manifest
from pipeline.errors import LaunchError, LostError, SamestepError, StudyError
from pipeline.files import whole_lines
from pipeline.launch.outcome import Ended, judge, make_record
from pipeline.launch.progress import Progress
from pipeline.launch.torchrun import (
    Launch,
    Place,
    RunPaths,
    free_port,
    here,
    in_a_job,
    plan,
    port_was_taken,
    signals_of_ranks,
)
from pipeline.machine import image, processes
from pipeline.machine.facts import usable_cores
from pipeline.machine.lock import timed_alone
from pipeline.parallel.mesh import Layout
from pipeline.records import RunRecord, write_record
from pipeline.study.load import load_spec
from pipeline.study.spec import RunSpec
from pipeline.training import checkpoint, fence

POLL_SECONDS = 0.1
ATTEMPTS = 3
"""How often a run that was lost (killed, or with a node) is started before that is its result."""

PORT_ATTEMPTS = 3
"""How often launchers are started while something else takes the port where they are to meet."""

SHARED_FOLDER_SECONDS = 60
"""How long files of other nodes may take to show in a shared folder (NFS caches a minute)."""


def train(
    paths: RunPaths,
    attempt: int = 1,
    scheduler: Sequence[str] = (),
    image_file: Path | None = None,
) -> RunRecord:
    """Train the run of `paths.spec` and write its record, also where its status is not ok.

    `attempt` counts the starts of this run so far, `scheduler` starts a process on each node of an
    allocation, and `image_file` is the container image that the ranks run in. Raises SamestepError
    where no record can be made.
    """
    spec = load_spec(paths.spec)
    layout = strategies.load(spec.strategy, spec.options).layout(spec.world)
    layout.check_batch(spec)
    place = here(spec, usable_cores(), tuple(scheduler), image_file)
    if place.image is None or image.digest_from_within() is not None:
        image.check_inside(image.required_digest(spec, place.image))
    manifest = check_tokens(spec, paths)
    owner = checkpoint.key(spec.identity(), manifest.sha256)
    done = _clear(spec, layout, paths, owner)
    while True:
        place = replace(place, token=fence.claim(paths.ranks), done=done)
        launch, ended = _start(spec, layout, paths, place)
        if not _is_to_start_again(spec, paths, ended, attempt):
            break
        attempt, done = attempt + 1, _clear(spec, layout, paths, owner, keep_log=True)
        place = replace(place, port=free_port(place.address))
    record = make_record(spec, layout, launch, paths, ended)
    if not fence.holds(paths.ranks, place.token):
        raise LostError(f"{spec.run_id}: a later start of this run took over; it makes the record")
    write_record(paths.out, record)
    _drop_parts(paths, record.status)
    return record


def _start(spec: RunSpec, layout: Layout, paths: RunPaths, place: Place) -> tuple[Launch, Ended]:
    """Start the ranks once, where the run can be made here at all, and follow them to their end."""
    launch = plan(spec, layout, paths, place)
    if launch.network_reason:
        print(
            f"{spec.run_id}: no emulated network here, trained and recorded on the loopback: "
            f"{launch.network_reason}",
            file=sys.stderr,
        )
    if launch.unsupported is not None:
        return launch, Ended([], False, _now(), _now())
    with timed_alone(spec.run_id):
        ended = _follow_on_a_free_port(spec, layout, paths, launch, place)
    _see_all_ranks(paths, layout, ended, place)
    return launch, ended


def _drop_parts(paths: RunPaths, status: str) -> None:
    """Drop what the ranks left; a run that did not end `ok` keeps its checkpoint and its steps."""
    if status != "ok" and any(paths.checkpoints.glob("step-*")):
        fence.release(paths.ranks)
        return
    # Ranks on other nodes may still hold a file open; what is left the next start drops.
    shutil.rmtree(paths.ranks, ignore_errors=True)
    shutil.rmtree(paths.checkpoints, ignore_errors=True)


def check_tokens(spec: RunSpec, paths: RunPaths) -> Manifest:
    """The manifest; raises where the shards are not as it says or do not suit the spec."""
    manifest = Manifest.load(paths.tokens, verify=True)
    if manifest.vocab_size > spec.model.vocab_size:
        raise StudyError(
            f"{spec.run_id}: the tokens' vocabulary of {manifest.vocab_size} is over "
            f"model.vocab_size {spec.model.vocab_size}; raise it or make the tokens again"
        )
    Batches(paths.tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    return manifest


def _follow_on_a_free_port(
    spec: RunSpec, layout: Layout, paths: RunPaths, launch: Launch, place: Place
) -> Ended:
    """Follow the run; start it again with another port where the launchers found theirs taken.

    Between the probe of a port and its use anything may take it. No rank is started by then.
    Raises LaunchError after `PORT_ATTEMPTS`, so that no record is made of it.
    """
    taken = []
    for left in reversed(range(PORT_ATTEMPTS)):
        ended = follow(spec, launch, paths)
        if not any(ended.exit_codes) or not port_was_taken(paths.log, place.port):
            return ended
        taken.append(str(place.port))
        if left:
            place = replace(place, port=free_port(place.address))
            launch = plan(spec, layout, paths, place)
            said = f"port {taken[-1]} was taken before its use; again with port {place.port}"
            _say(spec, paths, said)
    raise LaunchError(
        f"{spec.run_id}: ports {', '.join(taken)} were free when probed and taken when the "
        f"launchers of attempts 1 to {PORT_ATTEMPTS} came to use them; start the run again"
    )


def _say(spec: RunSpec, paths: RunPaths, text: str) -> None:
    """A line for who watches, and in the log for who comes later."""
    print(f"{spec.run_id}: {text}", file=sys.stderr)
    with paths.log.open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")


def follow(spec: RunSpec, launch: Launch, paths: RunPaths) -> Ended:
    """Run the launchers to their end, or stop them: on time-out, on a signal, when one fails."""
    started_at, deadline = _now(), time.monotonic() + spec.timeout_seconds
    progress = Progress(spec, paths.ranks / "rank0.jsonl")
    signal.signal(signal.SIGTERM, _raise_interrupt)
    said_before = paths.log.stat().st_size if paths.log.exists() else 0
    running = [processes.start(c, launch.environment, paths.log) for c in launch.commands]
    timed_out = False
    try:
        while None in (codes := [process.poll() for process in running]):
            if any(codes):
                _wait(running, seconds=10)
                codes = [process.poll() for process in running]
                break
            if time.monotonic() > deadline:
                timed_out = True
                break
            progress.update()
            time.sleep(POLL_SECONDS)
    finally:
        progress.close()
        processes.stop(running)
    # Those that were stopped here say nothing about the run.
    exit_codes = [code for code in codes if code is not None]
    signals = signals_of_ranks(paths.log, said_before)
    return Ended(exit_codes, timed_out, started_at, _now(), signals)


def _see_all_ranks(paths: RunPaths, layout: Layout, ended: Ended, place: Place) -> None:
    """Wait until what the ranks of other nodes wrote is seen here: their parts, or one's reason."""
    pattern, count = "rank*[0-9].json", layout.num_processes
    if any(ended.exit_codes):
        pattern, count = "rank*.error.json", 1
    deadline = time.monotonic() + SHARED_FOLDER_SECONDS
    while (
        place.scheduler
        and not ended.timed_out
        and len(list(paths.ranks.glob(pattern))) < count
        and time.monotonic() < deadline
    ):
        time.sleep(POLL_SECONDS)


def _is_to_start_again(spec: RunSpec, paths: RunPaths, ended: Ended, attempt: int) -> bool:
    """Whether the run was lost and attempts are left; they resume from the last checkpoint.

    Raises LostError inside a job: the scheduler sends it again, where the fault may be the node's.
    """
    verdict = judge(spec, paths, ended)
    if not verdict.lost or attempt >= ATTEMPTS:
        return False
    lost = f"lost in attempt {attempt} of {ATTEMPTS} ({verdict.reason})"
    if in_a_job():
        raise LostError(
            f"{spec.run_id}: {lost}; no record is written, start it again and it resumes from its "
            "last checkpoint"
        )
    _say(spec, paths, f"{lost}; it is started again and resumes from a checkpoint if it has one")
    return True


def _wait(running: list[processes.Running], seconds: float) -> None:
    """Give the other nodes a moment to report their own reason."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(p.poll() is None for p in running):
        time.sleep(POLL_SECONDS)


def _clear(
    spec: RunSpec, layout: Layout, paths: RunPaths, owner: str, *, keep_log: bool = False
) -> int:
    """Drop what an earlier start left, but for a checkpoint that is ours and its step files.

    Returns the checkpoint's steps, 0 where there is none.
    """
    try:
        done = checkpoint.latest_step(paths.checkpoints, owner)
        if done and (torn := _torn(paths, layout, done)):
            print(f"{spec.run_id}: starts anew, {torn}", file=sys.stderr)
            done = 0
        if not done:
            shutil.rmtree(paths.checkpoints, ignore_errors=True)
            shutil.rmtree(paths.ranks, ignore_errors=True)
        paths.ranks.mkdir(parents=True, exist_ok=True)
        for left in (paths.out / "run.json", *([] if keep_log else [paths.log])):
            left.unlink(missing_ok=True)
        for left in paths.ranks.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif not left.match("rank*.jsonl"):
                left.unlink()
        return done
    except OSError as error:
        raise SamestepError(
            f"cannot use {paths.out} ({error.strerror}); fix it or free space"
        ) from None


def _torn(paths: RunPaths, layout: Layout, done: int) -> str | None:
    """Which rank's step file ends before a checkpoint's `done` steps; None where all are whole.

    A node that loses its power takes the lines with it that a shared folder did not have yet.
    """
    for rank in range(layout.num_processes):
        path = paths.ranks / f"rank{rank}.jsonl"
        kept = len(whole_lines(path)) if path.is_file() else 0
        if kept < done:
            return f"the checkpoint is of step {done} and {path.name} ends at step {kept}"
    return None


def _raise_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"by signal {signum}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
