"""One run, one record: start its launchers, follow them to their end, start lost ones again."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipeline.corpus.batches import Batches
from pipeline.corpus.manifest import MANIFEST_FILE, Manifest
from pipeline.emulation import NOTE
from pipeline.errors import CorpusError, LostError, StoppedError, StudyError
from pipeline.launch.outcome import LOST, Ended, Judgement, judge, make_record, signals_of_ranks
from pipeline.launch.torchrun import (
    RunPaths,
    StartPlace,
    commands,
    environment,
    has_allocation,
    network_text,
    on_this_machine,
    why_unsupported,
)
from pipeline.machine import addresses, image, inherited, limits, processes
from pipeline.machine.lock import timed_alone
from pipeline.machine.site import Site
from pipeline.models import stored
from pipeline.parallel.mesh import Layout
from pipeline.records import RunRecord, write_record
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.load import load_spec
from pipeline.study.spec import RunSpec
from pipeline.training import checkpoint, fence, step_files

POLL_SECONDS, GRACE_SECONDS, PROGRESS_SECONDS = 0.1, 10.0, 5.0
FENCE_SECONDS = 1.0  # between two looks whether a later start of the run has taken over
SHARED_FOLDER_SECONDS = 60  # NFS caches a minute
ATTEMPTS = 3
"""Starts of a run that is lost each time, with a process, a node or a port, before that counts."""


def train(
    paths: RunPaths,
    attempt: int = 1,
    scheduler: Sequence[str] = (),
    image_file: Path | None = None,
    site: Site | None = None,
) -> RunRecord:
    """Train the run of `paths.spec` and write its record, also where its status is not ok.

    `attempt` counts the starts of this run so far, `scheduler` starts a process on each node of an
    allocation, and `image_file` is the container image that the ranks run in, by what `site` says.
    Raises SamestepError where no record can be made.
    """
    spec = load_spec(paths.spec)
    if (stop := os.environ.get(inherited.STOP)) is not None and Path(stop).exists():
        raise StoppedError(f"{spec.run_id}: not started, its job was asked to end; start it again")
    if paths.yardstick and not (spec.world.yardstick or spec.world.real_time):
        raise StudyError(f"--yardstick: the run {spec.run_id} counts by none; leave it out")
    run = resolve(spec)
    run.layout.check_batch(spec)
    limits.check(run.ranks_per_machine)
    # This machine is the first node.
    site, address, command = site or Site(), limits.LOOPBACK, tuple(scheduler)
    if spec.world.num_machines > 1 and has_allocation(command):
        address = addresses.own_address(site.environment.get(addresses.INTERFACE))
    cores, port = len(limits.usable_cores()), limits.free_port(address)
    place = StartPlace(cores, port, address, command, image_file, site=site)
    if place.image is None or image.digest_from_within() is not None:
        image.check_inside(image.required_digest(spec, place.image))
    manifest = check_tokens(spec, paths)
    stored.check_content(spec.model)
    if paths.ranks.is_dir():
        fence.claim(paths.ranks)  # an earlier start that is alive ends, and lets go of the lock
    with timed_alone(spec.run_id, paths.out):
        record = _attempts(run, paths, place, manifest, attempt)
        write_record(paths.out, record)
        # A run that did not end `ok` keeps its checkpoint and its steps.
        if record.status != "ok" and any(paths.checkpoints.glob("step-*")):
            fence.release(paths.ranks)
        else:
            # Ranks on other nodes may still hold a file open; what is left the next start drops.
            shutil.rmtree(paths.ranks, ignore_errors=True)
            shutil.rmtree(paths.checkpoints, ignore_errors=True)
    return record


def _attempts(
    run: ResolvedRun, paths: RunPaths, place: StartPlace, manifest: Manifest, attempt: int
) -> RunRecord:
    """Start the run, again where it was lost; the record of its last start.

    Each start has the whole time limit, since a lost one is a fault from outside and a `timeout` a
    result. Each has a port of its own, and asks anew which network it gets. Raises LostError inside
    a job of a scheduler, which sends it again.
    """
    spec, notes = run.spec, list[str]()

    def say(text: str) -> None:
        print(f"{spec.run_id}: {text}", file=sys.stderr)
        with paths.log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    while True:
        run = on_this_machine(run)
        owner = checkpoint.key(spec.identity(), manifest.sha256, network_text(run))
        done, refused = paths.clear(run.layout, owner, keep_log=bool(notes))
        for line in refused:
            say(line)
        notes += refused
        place = replace(place, token=fence.claim(paths.ranks), done=done, owner=owner)
        threads, unsupported = run.threads_on(place.num_cores), why_unsupported(run, place)
        if run.network_reason:
            print(
                f"{spec.run_id}: no emulated network here, trained and recorded on the loopback: "
                f"{run.network_reason}",
                file=sys.stderr,
            )
        if unsupported is not None:
            ended = Ended([], False, *_times(time.monotonic()))
            verdict = Judgement("unsupported", unsupported)
        else:
            launchers = commands(run, paths, place)
            variables = environment(run, threads, place.site)
            ended = follow(spec, launchers, variables, paths, place.token)
            _see_all_ranks(paths, run.layout, ended, place)
            _check_ours(spec, paths, place.token)
            _check_tokens_again(spec, paths, manifest)
            verdict = judge(spec, paths, ended)
        if not verdict.lost or attempt >= ATTEMPTS:
            record = make_record(run, threads, paths, ended, verdict, manifest, notes)
            _check_ours(spec, paths, place.token)
            return record
        notes.append(f"{LOST} {attempt} of {ATTEMPTS} ({verdict.reason})")
        if inherited.SENT_AGAIN in os.environ:
            # The scheduler sends the job again, perhaps to other nodes.
            raise LostError(
                f"{spec.run_id}: {notes[-1]}; no record is written, start it again and it resumes "
                "from its last checkpoint"
            )
        say(f"{notes[-1]}; it is started again and resumes from a checkpoint if it has one")
        attempt, place = attempt + 1, replace(place, port=limits.free_port(place.address))


def _check_ours(spec: RunSpec, paths: RunPaths, token: str) -> None:
    """Raise LostError where the folder of the run is no longer this start's."""
    if (reason := fence.lost(paths.ranks, token)) is not None:
        raise LostError(f"{spec.run_id}: {reason}; this start makes no record")


def check_tokens(spec: RunSpec, paths: RunPaths) -> Manifest:
    """The manifest; raises where the shards are not as it says or do not suit the spec."""
    manifest = Manifest.load(paths.tokens, verify=True)
    if manifest.vocab_size > spec.model.vocab_size:
        raise StudyError(
            f"{spec.run_id}: the tokens' vocabulary of {manifest.vocab_size} is over "
            f"model.vocab_size {spec.model.vocab_size}; raise it or make the tokens again"
        )
    for _, phase in spec.phases():
        batch = phase.workload.global_batch
        Batches(paths.tokens, phase.model.context, batch, spec.seed, spec.objective)
    return manifest


def _check_tokens_again(spec: RunSpec, paths: RunPaths, manifest: Manifest) -> None:
    """Raise CorpusError where the tokens are not those of `manifest` after ranks have read them.

    Checkpoints are dropped, unless the tokens only disappeared: then they were read before.
    """
    try:
        if Manifest.load(paths.tokens, verify=True).sha256 == manifest.sha256:
            return
        change = f"{paths.tokens} has another manifest"
    except CorpusError as error:
        change = str(error)
    names = (MANIFEST_FILE, *(shard.file for shard in manifest.shards))
    if all((paths.tokens / name).exists() for name in names):
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
    raise CorpusError(f"{spec.run_id}: its tokens changed while it trained, no record: {change}")


def follow(
    spec: RunSpec, launchers: Sequence[Sequence[str]], variables: Mapping[str, str],
    paths: RunPaths, token: str,
) -> Ended:  # fmt: skip
    """Run the launchers to their end, or stop them: on time-out, on a signal, when one fails.

    They are also stopped where a later start has taken the folder from that with the `token`.
    """
    begun = time.monotonic()
    deadline, next_look, next_line = begun + spec.timeout_seconds, begun, begun + PROGRESS_SECONDS
    note = ""
    # SIGTERM too leaves by an exception, so that `finally` stops the launchers.
    processes.interrupt_on_sigterm()
    log_begin, kills_before = _size(paths.log), limits.oom_kills()
    running = [processes.start(command, variables, paths.log) for command in launchers]
    timed_out, stopped = False, list[int]()
    try:
        while None in (codes := [process.poll() for process in running]):
            now = time.monotonic()
            if any(codes):
                # The other nodes get a moment to report their own reason.
                while time.monotonic() < now + GRACE_SECONDS and None in codes:
                    time.sleep(POLL_SECONDS)
                    codes = [process.poll() for process in running]
                break
            if now > deadline:
                timed_out = True
                stopped = processes.stopped_below([process.pid for process in running])
                break
            if now >= next_look:
                next_look += FENCE_SECONDS
                _check_ours(spec, paths, token)
            # What emulated nodes wait for before the first step is told at once.
            with suppress(FileNotFoundError):
                if (new := (paths.ranks / NOTE).read_text(encoding="utf-8")) != note:
                    note = new
                    print(f"{spec.run_id}: {note}", file=sys.stderr, flush=True)
            if now >= next_line:
                next_line = now + PROGRESS_SECONDS
                if (line := progress(spec, paths.ranks)) is not None:
                    print(f"{spec.run_id}: {line}", file=sys.stderr, flush=True)
            processes.wait_for_one(running, POLL_SECONDS)
    finally:
        log_end = _size(paths.log)
        processes.stop(running)
    # Those that were stopped here say nothing about the run.
    exit_codes = [code for code in codes if code is not None]
    signals = signals_of_ranks(paths.log, log_begin, log_end)
    kills = limits.oom_kills()
    meanwhile = None if kills is None or kills_before is None else kills - kills_before
    return Ended(exit_codes, timed_out, *_times(begun), signals, stopped, meanwhile)


def progress(spec: RunSpec, ranks: Path) -> str | None:
    """Steps done, tokens per second and time left, by rank 0's rows; None before the first one."""
    try:
        rows = step_files.path_of(ranks, 0).read_bytes()
    except FileNotFoundError:
        return None
    # Read whole, since a step has 57 bytes there; a row in the making has no end yet.
    took = step_files.seconds_of(rows[: len(rows) // step_files.ROW.size * step_files.ROW.size])
    if not (done := len(took)):
        return None
    tokens = sum(
        phase.global_batch_tokens * min(max(0, done - first), phase.workload.steps)
        for first, phase in spec.phases()
    )
    total, seconds = spec.workload.steps, sum(took)
    left = seconds / done * (total - done)
    return f"step {done}/{total}, {tokens / seconds:,.0f} tokens/s, {left:.0f} s left"


def _size(log: Path) -> int:
    """Bytes of a log, 0 where there is none."""
    return log.stat().st_size if log.exists() else 0


def _see_all_ranks(paths: RunPaths, layout: Layout, ended: Ended, place: StartPlace) -> None:
    """Wait until this node sees what ranks of other nodes wrote: their parts, or a reason."""
    if not place.scheduler or ended.timed_out:
        return
    pattern, count = "rank*[0-9].json", layout.num_processes
    if any(ended.exit_codes):
        pattern, count = "rank*.error.json", 1
    deadline = time.monotonic() + SHARED_FOLDER_SECONDS
    while len([*paths.ranks.glob(pattern)]) < count and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _times(begun: float) -> tuple[str, str]:
    """Start and end in UTC, by a monotonic `begun`: the machine's clock may be set meanwhile."""
    now, seconds = datetime.now(UTC), time.monotonic() - begun
    started = now - timedelta(seconds=seconds)
    return started.isoformat(timespec="seconds"), now.isoformat(timespec="seconds")
