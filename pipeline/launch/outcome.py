"""From what the ranks left behind to one validated record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from pipeline import strategies
from pipeline.corpus.manifest import Manifest
from pipeline.emulation import REPORT
from pipeline.errors import LaunchError
from pipeline.launch.log import cause
from pipeline.launch.stalls import stalled
from pipeline.launch.torchrun import Launch, RunPaths, is_sent_again
from pipeline.machine import processes
from pipeline.machine.facts import hardware, loaded_versions, provenance
from pipeline.machine.image import digest_from_within
from pipeline.parallel.mesh import Layout
from pipeline.records import RunRecord
from pipeline.study.spec import RunSpec
from pipeline.training.step_files import read_steps


@dataclass(frozen=True)
class Ended:
    """How a start of the run ended, and whether time ran out.

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

    @property
    def killed_by(self) -> int | None:
        """The signal that ended a launcher or a rank, None where there was none.

        SIGKILL before others: ranks that lose a peer may abort, which is a signal too.
        """
        found = {processes.signal_of(code) for code in self.exit_codes} | {*self.rank_signals}
        signals = sorted(number for number in found if number is not None)
        return SIGKILL if SIGKILL in signals else next(iter(signals), None)


def make_record(
    spec: RunSpec,
    layout: Layout,
    launch: Launch,
    paths: RunPaths,
    ended: Ended,
    interruptions: Sequence[str] = (),
) -> RunRecord:
    """The run's record; raises LaunchError where the input was wrong, so that no record is due.

    `interruptions` are lines on what disturbed the run before it ended so.
    """
    ranks = [_load(path) for path in sorted(paths.ranks.glob("rank*[0-9].json"), key=_rank_of)]
    verdict = _verdict(spec, layout, launch, paths, ended, len(ranks))
    if verdict.status == "ok":
        _check_hosts(spec, ranks)
    complete = ranks if verdict.status == "ok" else []
    parts, steps = [rank["rank"] for rank in complete], read_steps(paths.ranks)
    emulation = _emulation(paths, stalled(steps, parts))
    manifest = Manifest.load(paths.tokens)
    root = ranks[0] if ranks else None
    run = {
        "schema_version": 1,
        "run_id": spec.run_id,
        "spec": spec.to_dict(),
        "spec_sha256": spec.sha256(),
        "status": verdict.status,
        "reason": verdict.reason,
        "origin": "measured",
        "started_at": ended.started_at,
        "ended_at": ended.ended_at,
        "versions": root["versions"] if root else loaded_versions(),
        "hardware": hardware(),
        "data": {
            "manifest_sha256": manifest.sha256,
            "tokenizer_sha256": manifest.tokenizer["sha256"],
        },
        "execution": _execution(spec, layout, launch, ranks, emulation)
        | ({"interruptions": [*interruptions]} if interruptions else {}),
        "precision": root["precision"] if root else None,
        "model": root["model"] if root else None,
        "ranks": parts,
        "provenance": provenance() | _image(ranks),
    }
    return RunRecord(run=run, steps=steps)


def _verdict(
    spec: RunSpec, layout: Layout, launch: Launch, paths: RunPaths, ended: Ended, num_parts: int
) -> Verdict:
    """How the run came out; `num_parts` ranks left their part of the record."""
    if launch.unsupported is not None:
        return Verdict("unsupported", launch.unsupported)
    verdict = judge(spec, paths, ended)
    if verdict.status == "ok" and num_parts != layout.num_processes:
        said = f"{num_parts} of {layout.num_processes} ranks left their part"
        return Verdict("failed", f"{said}; see {paths.log.name}")
    return verdict


def _emulation(paths: RunPaths, stall: str | None) -> Any:
    """What the emulated nodes were measured to get, and what stalled; None where there are none."""
    path = paths.ranks / REPORT
    if not path.is_file():
        return None
    return _load(path) | ({} if stall is None else {"stalled": stall})


def _execution(
    spec: RunSpec,
    layout: Layout,
    launch: Launch,
    ranks: Sequence[Mapping[str, Any]],
    emulation: Any,
) -> dict[str, Any]:
    seen: dict[str, Any] = (
        {}
        if not ranks
        else {
            "num_hosts": len({rank["host"] for rank in ranks}),
            "as_root": any(rank["as_root"] for rank in ranks),
            "resumed_from_step": max(rank["resumed_from_step"] for rank in ranks),
            **{key: ranks[0][key] for key in ("placements",) if key in ranks[0]},
        }
    )
    return {
        "launcher": "fork"
        if launch.network == "emulated"
        else strategies.load(spec.strategy, spec.options).launcher,
        "world_size": spec.world.size,
        "threads_per_rank": launch.threads_per_rank,
        "backend": spec.world.backend,
        "network": launch.network,
        **({"network_reason": launch.network_reason} if launch.network_reason else {}),
        **({"emulation": emulation} if emulation else {}),
        "clock": "after_barrier",
        "layout": layout.to_dict(),
        "settings": ranks[0]["settings"] if ranks else {},
        **seen,
    }


def _check_hosts(spec: RunSpec, ranks: Sequence[Mapping[str, Any]]) -> None:
    """Raise LaunchError unless the ranks really were on as many machines as the spec says."""
    num_hosts, expected = len({rank["host"] for rank in ranks}), spec.world.num_machines
    if num_hosts != expected:
        raise LaunchError(
            f"{spec.run_id}: the ranks came up on {num_hosts} machines, the spec says {expected}; "
            "ask the scheduler for one launcher on each node"
        )


def _image(ranks: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """What the ranks read from within; where none came so far, what this process reads."""
    digests = {rank["image_digest"] for rank in ranks}
    if len(digests) > 1:
        raise LaunchError(f"the ranks ran in different images: {sorted(map(str, digests))}")
    return {"image_digest": digests.pop() if digests else digest_from_within()}


@dataclass(frozen=True)
class Verdict:
    """Status and reason of an ended run; `lost` where a rank ended without a reason."""

    status: str
    reason: str | None
    lost: bool = False


def judge(spec: RunSpec, paths: RunPaths, ended: Ended) -> Verdict:
    """The verdict on an ended run, by what was seen; raises LaunchError for a wrong input."""
    errors = [_load(path) for path in sorted(paths.ranks.glob("rank*.error.json"), key=_rank_of)]
    killed = None if ended.timed_out else _killed(ended, paths)
    for kind in ("error", "disturbed", "unsupported", "oom", "failed", "lost"):
        # The rank that fell first drags others into a lost connection: worst kind first.
        found = [error for error in errors if error["kind"] == kind]
        if kind == "lost" and ended.timed_out:
            break  # out of time the launchers are stopped, and ranks lose peers that ended earlier
        if kind == "error" and found:
            raise LaunchError(f"{spec.run_id}: {found[0]['message']}")
        if found and kind == "lost":
            return killed or Verdict("failed", _said(found[0]), lost=True)
        if found:
            return Verdict(kind, _said(found[0]))
    if ended.timed_out:
        late = f"not done after timeout_seconds = {spec.timeout_seconds}"
        if ended.stopped:
            who = ", ".join(map(str, ended.stopped))
            return Verdict("timeout", f"{late}: process {who} was stopped by a signal (SIGSTOP)")
        if sign := cause(paths.log):
            return Verdict("timeout", f"{late}; {paths.log.name} says: {sign.line}; {sign.fix}")
        return Verdict("timeout", f"{late}; raise it")
    if any(ended.exit_codes):
        if killed:
            return killed
        codes = f"launchers ended with exit codes {list(ended.exit_codes)}"
        if (sign := cause(paths.log)) is None:
            reason = f"{codes} and no rank said why; see {paths.log.name}"
            # A scheduler's command says no more than that of a lost node.
            return Verdict("failed", reason, lost=is_sent_again())
        if sign.kind == "error":
            raise LaunchError(f"{spec.run_id}: {codes}: {sign.line}; {sign.fix}")
        reason = f"{codes}; {paths.log.name} says: {sign.line}; {sign.fix}"
        return Verdict(sign.kind, reason, lost=sign.kind == "failed" and is_sent_again())
    return Verdict("ok", None)


def _killed(ended: Ended, paths: RunPaths) -> Verdict | None:
    """The verdict where a signal ended a launcher or a rank, None where there was none."""
    number, who = ended.killed_by, ""
    if number is None:
        return None
    if number == SIGKILL and ended.oom_kills is not None:
        who = f" (the kernel counted {ended.oom_kills} kills for want of memory meanwhile)"
    return Verdict("failed", f"killed by signal {number}{who}; see {paths.log.name}", lost=True)


def _said(error: Mapping[str, str]) -> str:
    return f"{error['type']}: {error['message']}"


def _rank_of(path: Path) -> int:
    return int(path.name.partition(".")[0].removeprefix("rank"))


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
