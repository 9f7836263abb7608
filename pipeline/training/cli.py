"""`python -m pipeline train --spec spec.json --tokens DIR --out DIR`: one run, one record."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.corpus.manifest import Manifest
from pipeline.errors import SamestepError, StudyError
from pipeline.records import write_record
from pipeline.spec import RunSpec
from pipeline.training import checkpoint, processes
from pipeline.training.launcher import Launch, RunPaths, free_port, plan
from pipeline.training.lock import timed_alone
from pipeline.training.machine import usable_cores
from pipeline.training.outcome import Ended, make_record
from pipeline.training.progress import Progress

SUMMARY = "train one run (cell x nodes x repeat) and write its validated record"
POLL_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the run")
    parser.add_argument("--tokens", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--out", type=Path, required=True, help="folder for the record")


def run(args: argparse.Namespace) -> int:
    """Start the ranks, follow them, write the record; 0 also when the record's status is not ok."""
    spec = read_spec(args.spec)
    paths = RunPaths(args.spec.resolve(), args.tokens.resolve(), args.out.resolve())
    layout = strategies.load(spec.strategy, spec.options).layout(spec.world)
    layout.batch_slice(0, spec.workload.global_batch)
    manifest = check_tokens(spec, paths)
    _clear(paths, checkpoint.key(spec.sha256(), manifest.sha256))
    launch = plan(spec, layout, paths, usable_cores(), free_port())
    if launch.unsupported is None:
        with timed_alone(spec.run_id):
            ended = follow(spec, launch, paths)
    else:
        ended = Ended([], False, _now(), _now())
    record = make_record(spec, layout, launch, paths, ended)
    write_record(paths.out, record)
    shutil.rmtree(paths.ranks)
    shutil.rmtree(paths.checkpoints, ignore_errors=True)
    if record.status != "ok":
        print(f"{spec.run_id}: {record.status}: {record.run['reason']}", file=sys.stderr)
    return 0


def check_tokens(spec: RunSpec, paths: RunPaths) -> Manifest:
    """The manifest, every byte of the shards verified; raises where they do not suit the spec."""
    manifest = Manifest.load(paths.tokens, verify=True)
    if manifest.vocab_size > spec.model.vocab_size:
        raise StudyError(
            f"{spec.run_id}: the tokens' vocabulary of {manifest.vocab_size} is over "
            f"model.vocab_size {spec.model.vocab_size}; raise it or make the tokens again"
        )
    Batches(paths.tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    return manifest


def read_spec(path: Path) -> RunSpec:
    """The spec in a file; raises StudyError when it is not one."""
    try:
        return RunSpec.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError) as error:
        raise StudyError(f"run spec {path} cannot be read ({error}); run snakemake again") from None


def follow(spec: RunSpec, launch: Launch, paths: RunPaths) -> Ended:
    """Run the launchers to their end, or stop them: on time-out, on a signal, when one fails."""
    started_at, deadline = _now(), time.monotonic() + spec.timeout_seconds
    progress = Progress(spec, paths.ranks / "rank0.jsonl")
    signal.signal(signal.SIGTERM, _raise_interrupt)
    running = [processes.start(c, launch.environment, paths.log) for c in launch.commands]
    timed_out = False
    try:
        while None in (codes := [process.poll() for process in running]):
            if any(codes):
                _wait(running, seconds=10)
                break
            if time.monotonic() > deadline:
                timed_out = True
                break
            progress.update()
            time.sleep(POLL_SECONDS)
    finally:
        progress.close()
        processes.stop(running)
    exit_codes = [process.returncode for process in running]
    return Ended(exit_codes, timed_out, started_at, _now())


def _wait(running: list[processes.Running], seconds: float) -> None:
    """Give the other nodes a moment to report their own reason."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(p.poll() is None for p in running):
        time.sleep(POLL_SECONDS)


def _clear(paths: RunPaths, owner: str) -> None:
    """Drop what an earlier start left; its checkpoint and step files only stay if they are ours."""
    try:
        if not checkpoint.latest_step(paths.checkpoints, owner):
            shutil.rmtree(paths.checkpoints, ignore_errors=True)
            shutil.rmtree(paths.ranks, ignore_errors=True)
        paths.ranks.mkdir(parents=True, exist_ok=True)
        for left in (*paths.ranks.glob("rank*.json"), paths.out / "run.json", paths.log):
            left.unlink(missing_ok=True)
    except OSError as error:
        raise SamestepError(
            f"cannot use {paths.out} ({error.strerror}); fix it or free space"
        ) from None


def _raise_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {signum}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
