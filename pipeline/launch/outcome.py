"""From what the ranks and the log of a run tell to one validated record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from statistics import median
from typing import Any, NamedTuple

from pipeline.corpus.manifest import Manifest
from pipeline.emulation import REPORT, tcp
from pipeline.errors import LaunchError, StoppedError
from pipeline.launch.torchrun import RunPaths
from pipeline.machine import inherited, processes
from pipeline.machine.facts import hardware, loaded_versions
from pipeline.machine.image import digest_from_within
from pipeline.machine.source import provenance
from pipeline.records import RunRecord, Step
from pipeline.records.rules import cpu_seconds, grid, same_on_all_ranks
from pipeline.resolved import ResolvedRun
from pipeline.study.spec import RunSpec
from pipeline.text import plural
from pipeline.training.step_files import read_steps

STALL_SECONDS, STALL_MEDIANS = 1.0, 20.0
"""A step stands out where it is longer than both, in time of the emulated cluster."""

LOST = "lost in attempt"
"""Begins the line that ends an attempt in a log of several."""


@dataclass(frozen=True)
class Ended:
    """The end of a start: exit codes, signals, and whether time ran out.

    `exit_codes` are those of the launchers that ended by themselves (negative: a signal),
    `rank_signals` the signals that ended ranks below them, `stopped` processes that a signal
    had stopped when time ran out. `oom_kills` are those of the kernel's out-of-memory killer
    meanwhile, None where it does not say.
    """

    exit_codes: Sequence[int]
    timed_out: bool
    started_at: str
    ended_at: str
    rank_signals: Sequence[int] = ()
    stopped: Sequence[int] = ()
    oom_kills: int | None = None


@dataclass(frozen=True)
class Judgement:
    """Status and reason of an ended run; `lost` where a rank ended without a reason."""

    status: str
    reason: str | None
    lost: bool = False


def make_record(
    run: ResolvedRun,
    threads: int,
    paths: RunPaths,
    ended: Ended,
    verdict: Judgement,
    manifest: Manifest,
    interruptions: Sequence[str],
) -> RunRecord:
    """The record of a run on the tokens of `manifest`, which ended with this verdict.

    `threads` are those of a rank, `interruptions` lines on what disturbed it before. Raises
    LaunchError where ranks came up on other machines than asked for, or in different images: then
    no record is due.
    """
    spec = run.spec
    left = _loaded(paths.ranks, "rank*[0-9].json")
    num_hosts = len({rank["host"] for rank in left})
    if verdict.status == "ok":
        if len(left) != run.layout.num_processes:
            missing = f"{len(left)} of {run.layout.num_processes} ranks left their part"
            verdict = Judgement("failed", f"{missing}; see {paths.log.name}")
        elif num_hosts != spec.world.num_machines:
            raise LaunchError(
                f"{spec.run_id}: the ranks came up on {num_hosts} machines, the spec says "
                f"{spec.world.num_machines}; ask the scheduler for one launcher on each node"
            )
    digests = {rank["image_digest"] for rank in left}
    if len(digests) > 1:
        raise LaunchError(f"the ranks ran in different images: {sorted(map(str, digests))}")
    # Where no rank came so far, it is the image of this process.
    digest = digests.pop() if digests else digest_from_within()
    ranks = [rank["rank"] for rank in left] if verdict.status == "ok" else []
    steps, emulation = read_steps(paths.ranks), {}
    if (report := paths.ranks / REPORT).is_file():
        emulation = json.loads(report.read_text(encoding="utf-8"))
        # Seconds of the cluster that a lost packet waits at least before it is sent again.
        rto_seconds = emulation["tcp"]["rto_min_ms"] / 1000 / emulation["dilation"]
        if (stall := stalled(steps, ranks, rto_seconds)) is not None:
            emulation["stalled"] = stall
    nothing = {"versions": loaded_versions(), "precision": None, "model": None, "settings": {}}
    root = left[0] if left else nothing
    execution = {
        "launcher": "fork" if run.network == "emulated" else "torchrun",
        "world_size": spec.world.size,
        "threads_per_rank": threads,
        "backend": spec.world.backend,
        "network": run.network,
        **({"network_reason": run.network_reason} if run.network_reason else {}),
        **({"emulation": emulation} if emulation else {}),
        "clock": "after_barrier",
        "layout": run.layout.to_dict(),
        "settings": root["settings"],
    }
    if left:
        execution |= {
            "num_hosts": num_hosts,
            "resumed_from_step": max(rank["resumed_from_step"] for rank in left),
        }
    execution |= {key: root[key] for key in ("placements", "autotuned") if key in root}
    if interruptions:
        execution["interruptions"] = [*interruptions]
    content = {
        "schema_version": 1,
        "run_id": spec.run_id,
        "spec": spec.to_dict(),
        "spec_sha256": spec.sha256(),
        "status": verdict.status,
        "reason": verdict.reason,
        "origin": "measured",
        "started_at": ended.started_at,
        "ended_at": ended.ended_at,
        "versions": root["versions"],
        "hardware": hardware(),
        "data": {
            "manifest_sha256": manifest.sha256,
            "tokenizer_sha256": manifest.tokenizer["sha256"],
        },
        "execution": execution,
        "precision": root["precision"],
        "model": root["model"],
        "ranks": ranks,
        "provenance": provenance() | {"image_digest": digest},
    }
    return checked(RunRecord(run=content, steps=steps))


def checked(record: RunRecord) -> RunRecord:
    """The record, `failed` where its ranks took different steps, `disturbed` by another program.

    The latter where an emulated rank's CPU seconds are more than its clock's: the two are read one
    after the other, and something ran between; it is tried again. Neither record can be written as
    it is, which would end the study, whose other runs are sound.
    """
    if record.status != "ok" or next(grid(record), None):  # a rank without a step is refused
        return record
    if line := next(same_on_all_ranks(record), None):
        name, status = record.spec.strategy, "failed"
        reason = f"strategy {name} gives ranks different gradients or losses: {line}; mend it, and "
        reason += f"`pytest tests/parity -k {name}` shows whether it takes the step of one device"
    elif "emulation" in record.run["execution"] and (line := next(cpu_seconds(record), None)):
        status, reason = "disturbed", f"{line}; `make paper` tries this run again"
    else:
        return record
    return replace(record, run={**record.run, "status": status, "reason": reason, "ranks": []})


def judge(spec: RunSpec, paths: RunPaths, ended: Ended) -> Judgement:
    """The verdict on an ended run; LaunchError for a wrong input, StoppedError at a checkpoint."""
    errors = _loaded(paths.ranks, "rank*.error.json")
    killed: Judgement | None = None
    of_launchers = filter(None, map(processes.signal_of, ended.exit_codes))
    if (signals := {*of_launchers, *ended.rank_signals}) and not ended.timed_out:
        # SIGKILL before others: ranks that lose a peer may abort, which is a signal too.
        number, counted = SIGKILL if SIGKILL in signals else min(signals), ""
        if number == SIGKILL and ended.oom_kills is not None:
            counted = f" (the kernel counted {ended.oom_kills} kills for want of memory meanwhile)"
        reason = f"killed by signal {number}{counted}; see {paths.log.name}"
        killed = Judgement("failed", reason, lost=True)
    # The rank that fell first drags others into a lost connection: worst kind first. Out of time
    # the launchers are stopped, and ranks lose peers that ended earlier.
    worst = ("error", "stopped", "disturbed", "unsupported", "oom", "failed")
    kinds = worst if ended.timed_out else (*worst, "lost")
    if errors := [error for error in errors if error["kind"] in kinds]:
        error = min(errors, key=lambda one: kinds.index(one["kind"]))
        kind, reason = error["kind"], f"{error['type']}: {error['message']}"
        if kind == "error":
            fix = "; free space or mend the disk, and start it again" * (error["type"] == "OSError")
            raise LaunchError(f"{spec.run_id}: {error['message']}{fix}")
        if kind == "stopped":
            raise StoppedError(f"{spec.run_id}: {error['message']}")
        if kind == "lost":
            return killed or Judgement("failed", reason, lost=True)
        return Judgement(kind, reason)
    sign = cause(paths.log)
    if ended.timed_out:
        done = max((step.step + 1 for step in read_steps(paths.ranks)), default=0)
        late = f"not done after timeout_seconds = {spec.timeout_seconds}"
        late += f" ({done} of {spec.workload.steps} steps)"
        if ended.stopped:
            numbers = ", ".join(map(str, ended.stopped))
            late += f": process {numbers} was stopped by a signal (SIGSTOP)"
        elif sign:
            late += f"; {paths.log.name} says: {sign.line}; {sign.fix}"
        elif done:
            late += "; raise it"
        else:
            late += f"; see {paths.log.name} for what it waits for, or raise it"
        return Judgement("timeout", late)
    if not any(ended.exit_codes):
        return Judgement("ok", None)
    if killed:
        return killed
    codes = f"launchers ended with exit codes {list(ended.exit_codes)}"
    # A scheduler's command says no more than that of a lost node.
    is_sent_again = inherited.SENT_AGAIN in os.environ
    if sign is None:
        reason = f"{codes} and no rank said why; see {paths.log.name}"
        return Judgement("failed", reason, lost=is_sent_again)
    if sign.kind == "error":
        raise LaunchError(f"{spec.run_id}: {codes}: {sign.line}; {sign.fix}")
    reason = f"{codes}; {paths.log.name} says: {sign.line}; {sign.fix}"
    if sign.kind == "lost":
        return Judgement("failed", reason, lost=True)
    return Judgement(sign.kind, reason, lost=sign.kind == "failed" and is_sent_again)


def _loaded(folder: Path, pattern: str) -> list[Any]:
    """The files `rank<r>.*` that match, by rank."""
    files = sorted(folder.glob(pattern), key=lambda path: int(path.name.partition(".")[0][4:]))
    return [json.loads(path.read_text(encoding="utf-8")) for path in files]


def stalled(
    steps: Sequence[Step], ranks: Sequence[Mapping[str, Any]], rto_seconds: float
) -> str | None:
    """One line on which step and node stalled: TCP timed out, or a step stands out.

    None where none did, or nothing was counted. Time-outs of connections that no step waits for
    (Horovod's rendezvous) count too, unless every step was shorter than the least time-out,
    `rto_seconds`. The run counts all the same. `ranks` are those of a record, with `tcp` where
    nodes are emulated.
    """
    # Of a node's ranks the one with the most time-outs.
    counting = [rank for rank in ranks if "tcp" in rank]
    counting.sort(key=lambda rank: rank["tcp"].get(tcp.TIMEOUTS, 0))
    counted = {rank["node"]: rank["tcp"] for rank in counting}
    if not counted:
        return None
    seconds: dict[int, float] = {}  # a step is over when its last rank is
    for step in steps:
        if step.timed:
            seconds[step.step] = max(step.seconds, seconds.get(step.step, 0.0))
    lines = []
    usual = median(seconds.values()) if seconds else 0.0
    least = max(STALL_SECONDS, STALL_MEDIANS * usual)
    if slow := sorted((n for n in seconds if seconds[n] > least), key=lambda n: -seconds[n]):
        others = f" (and {plural(len(slow) - 1, 'other')})" if len(slow) > 1 else ""
        took = f"{seconds[slow[0]]:.3g} s where the median is {usual:.3g} s"
        lines.append(f"step {slow[0]}{others} took {took}")
    waited = max(seconds.values(), default=0.0) >= rto_seconds
    late = [node for node in sorted(counted) if waited and counted[node].get(tcp.TIMEOUTS)]
    for node in late:
        counters = ", ".join(f"{name} {n}" for name, n in counted[node].items() if n)
        lines.append(f"node {node} had {counters}")
    if slow and not late:
        lines.append("no node had a TCP time-out")
    return "; ".join(lines) or None


_OF_A_RANK = re.compile(r"^\s*exitcode\s*: -(\d+) \(pid: \d+\)", re.MULTILINE)
"""A line of the report that torchrun makes of each rank that failed."""

_FIRST = re.compile(
    r"^Root Cause \(first observed failure\):\n\[\d+\]:\n(?:.*\n){0,3}?\s*exitcode\s*: -(\d+) "
    r"|SignalException: Process \d+ got signal: (\d+)",
    re.MULTILINE,
)
"""The same for the rank that failed before all others, or a line on torchrun's own end."""


def signals_of_ranks(log: Path, begin: int, end: int) -> list[int]:
    """Signals that ended ranks or launchers, by what torchrun wrote in bytes `begin` to `end`.

    Its own exit code is 1 for all of it. It ends the other ranks of a failed one by SIGTERM, so
    that counts only where it ended the first one, or torchrun.
    """
    text = log.read_bytes()[begin:end].decode(errors="replace") if log.exists() else ""
    others = {int(number) for number in _OF_A_RANK.findall(text)} - {SIGTERM}
    first = {int(one or other) for one, other in _FIRST.findall(text)}
    return sorted(others | first)


class Sign(NamedTuple):
    """A line of a log that tells what a process was short of, the status that this is, the fix."""

    kind: str
    line: str
    fix: str


_SIGNS = (
    # Between the probe of a port and its use anything may take it; no rank is started by then.
    (r"EADDRINUSE", "lost", "the next start takes another port"),
    (r"Too many open files", "failed", "raise the limit (`ulimit -n`)"),
    (r"No space left on device|Disk quota exceeded", "error", "free space and start it again"),
    (r"Read-only file system|Input/output error|Stale file handle|File too large", "error",
     "mend the disk or its mount and start it again"),
    (r"Cannot allocate memory|[Oo]ut of memory|MemoryError|bad_alloc|failed to map segment", "oom",
     "give it more memory (`ulimit -v`, the job's request) or take a smaller study"),
    (r"Resource temporarily unavailable|can't start new thread|Thread creation failed", "failed",
     "allow more processes and threads (`ulimit -u`, pids of the control group)"),
    # As an error: of a family of addresses that is not there torch merely warns.
    (r"^(?!.*\[W\d).*(Network is unreachable|No route to host)", "failed",
     "see `ip address` and `ip route`"),
    (r"error while loading shared libraries.*|cannot open shared object.*", "failed",
     "see the log"),
)  # fmt: skip


def cause(log: Path) -> Sign | None:
    """The first line of the last attempt in a log that names what the system refused, if any did.

    For ends of which no rank told, since its process did not get so far.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    _, lost, attempt = text.rpartition(LOST)
    # What is left of the line on a lost attempt quotes that attempt's own reason.
    for line in attempt.splitlines()[1 if lost else 0 :]:
        for pattern, kind, fix in _SIGNS:
            if match := re.search(pattern, line):
                begin = max(0, match.end() - 200)
                return Sign(kind, " ".join(line[begin : match.end() + 30].split()), fix)
    return None
