"""How an ended run is judged from what its ranks and its log tell."""

import errno
import json
import os
from dataclasses import replace

import pytest

from pipeline.errors import LaunchError
from pipeline.launch.outcome import Ended, Judgement, checked, judge, signals_of_ranks, stalled
from pipeline.launch.torchrun import RunPaths
from pipeline.machine.inherited import SENT_AGAIN
from pipeline.records import RunRecord, Step, read_record, write_record
from pipeline.study.spec import RunSpec
from pipeline.training.worker import OF_A_DISK
from tests.fake_records import EMULATED, make_record, shipped, spec_of


@pytest.fixture
def run() -> RunSpec:
    return shipped("smoke").spec


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    paths = RunPaths(tmp_path / "spec.json", tmp_path / "tokens", tmp_path)
    paths.ranks.mkdir()
    return paths


def ended(*codes: int, timed_out: bool = False) -> Ended:
    return Ended(codes, timed_out, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00")


def leave(paths: RunPaths, rank: int, kind: str, message: str = "why") -> None:
    about = {"kind": kind, "type": "SomeError", "message": message}
    (paths.ranks / f"rank{rank}.error.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("left", "codes", "verdict"),
    [
        ({}, (0, 0), Judgement("ok", None)),
        ({1: "unsupported"}, (1, 1), Judgement("unsupported", "SomeError: why")),
        # Lost connections follow a rank that is out of memory, or has a bug.
        ({0: "failed", 3: "oom"}, (1, 1), Judgement("oom", "SomeError: why")),
        ({0: "lost"}, (1, 1), Judgement("failed", "SomeError: why", lost=True)),
        ({0: "lost", 3: "failed"}, (1, 1), Judgement("failed", "SomeError: why")),
    ],
)
def test_the_worst_of_what_ranks_say_decides(run, paths, left, codes, verdict) -> None:
    for rank, kind in left.items():
        leave(paths, rank, kind)
    assert judge(run, paths, ended(*codes)) == verdict


def test_a_time_out_names_what_a_signal_stopped_and_is_worse_than_a_lost_peer(run, paths) -> None:
    late = replace(ended(-9, timed_out=True), stopped=[7, 9])
    assert "process 7, 9 was stopped by a signal (SIGSTOP)" in str(judge(run, paths, late).reason)
    leave(paths, 1, "lost", "connection closed by peer")
    assert judge(run, paths, late).status == "timeout"
    leave(paths, 1, "oom")
    assert judge(run, paths, late).status == "oom"


@pytest.mark.parametrize(
    ("codes", "signals"),
    [((-9,), ()), ((1,), (6, 9)), ((0, -9), ())],
    ids=["launcher", "its peer gave up", "one of two"],
)
def test_a_kill_is_named_also_where_a_peer_says_that_it_lost_it(run, paths, codes, signals) -> None:
    for _ in range(2):
        verdict = judge(run, paths, replace(ended(*codes), rank_signals=signals))
        assert (verdict.status, verdict.lost) == ("failed", True)
        assert verdict.reason is not None and "killed by signal 9;" in verdict.reason
        leave(paths, 1, "lost", "connection closed by peer")


def test_a_kill_says_what_the_kernel_counted_and_guesses_no_killer(run, paths) -> None:
    for kills, words in (
        (2, "counted 2 kills for want of memory"),
        (0, "counted 0 "),
        (None, "9;"),
    ):
        assert words in str(judge(run, paths, replace(ended(-9), oom_kills=kills)).reason)


@pytest.mark.parametrize(
    ("line", "status", "fix"),
    [
        ("socket (errno: 24 - Too many open files).", "failed", "ulimit -n"),
        ("terminate called after ... 'std::bad_alloc'", "oom", "more memory"),
        ("ImportError: libtorch.so: failed to map segment from shared object", "oom", "memory"),
        ("RuntimeError: can't start new thread", "failed", "ulimit -u"),
        ("(errno: 101 - Network is unreachable)", "failed", "ip route"),
        ("ImportError: libx.so.1: cannot open shared object file", "failed", "see the log"),
        ("DistNetworkError: port: 1, code: -98, name: EADDRINUSE, message", "failed",
         "another port"),
        ("something else", "failed", "no rank said why"),
    ],
)  # fmt: skip
def test_where_no_rank_had_a_word_what_the_system_refused_decides(
    run, paths, monkeypatch, line, status, fix
) -> None:
    """By the log of the last attempt; a timeout stays one, but is not to be raised."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # as a shell of an allocation has it
    paths.log.write_text(f"No space left on device\nlost in attempt 1 of 3 (bad_alloc)\n{line}\n")
    verdict = judge(run, paths, ended(1))
    assert verdict.status == status and fix in str(verdict.reason)
    assert verdict.lost == ("EADDRINUSE" in line), "no rank had started"
    assert "exit codes [1]" in str(verdict.reason)
    late = judge(run, paths, ended(timed_out=True))
    assert late.status == "timeout"
    assert (fix in str(late.reason)) == (line != "something else")
    assert ("raise it" in str(late.reason)) == (line == "something else")
    leave(paths, 1, "failed", "its own")
    assert judge(run, paths, ended(1)).reason == "SomeError: its own"


@pytest.mark.parametrize("number", OF_A_DISK)
def test_what_a_disk_refuses_makes_no_record(run, paths, number: int) -> None:
    """Also where no rank could still say so."""
    message = f"[Errno {number}] {os.strerror(number)}"
    if number != errno.ENOLCK:  # no rank takes a lock before it can say so
        paths.log.write_text(f"OSError: {message}: 'x'\n")
        with pytest.raises(LaunchError, match=rf"{os.strerror(number)}.*; (free space|mend)"):
            judge(run, paths, ended(1))
    about = {"kind": "error", "type": "OSError", "message": message}
    (paths.ranks / "rank0.error.json").write_text(json.dumps(about))
    with pytest.raises(LaunchError, match=rf"{os.strerror(number)}; free space or mend"):
        judge(run, paths, ended(1))


@pytest.mark.parametrize(("done", "fix"), [(0, "see log.txt for what"), (7, "; raise it")])
def test_a_time_out_says_how_far_it_came(run, paths, monkeypatch, done: int, fix: str) -> None:
    """Of a run that waits for something, more time is no mend."""
    steps = [Step(n, rank, 0.1, 8, 1.0, 1.0, 0.1, True) for n in range(done) for rank in (0, 1)]
    monkeypatch.setattr("pipeline.launch.outcome.read_steps", lambda _: steps)
    reason = str(judge(run, paths, ended(timed_out=True)).reason)
    assert f"({done} of {run.workload.steps} steps)" in reason and fix in reason


def test_a_silent_end_without_a_signal_is_sent_again_by_a_scheduler_alone(
    run, paths, monkeypatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # as a shell of an allocation has it
    assert judge(run, paths, ended(1)).lost is False
    monkeypatch.setenv(SENT_AGAIN, "yes")
    assert judge(run, paths, ended(1)).lost is True


QUIET, LATE = {"RetransSegs": 9, "TCPTimeouts": 0}, {"RetransSegs": 9, "TCPTimeouts": 7}


@pytest.mark.parametrize(
    ("seconds", "counted", "line"),
    [
        (0.1, [QUIET, QUIET], None),
        (0.25, [QUIET, LATE], "node 1 had RetransSegs 9, TCPTimeouts 7"),
        # A step that is over before a time-out could be did not wait for one.
        (0.1, [QUIET, LATE], None),
        (
            3,
            [QUIET, QUIET],
            "step 4 took 3 s where the median is 0.1 s; no node had a TCP time-out",
        ),
    ],
)
def test_a_stall_is_told_with_its_step_and_node(seconds, counted, line) -> None:
    """Nothing is left out for it; of a record of an earlier version nothing is known."""
    steps = [
        Step(n, rank, seconds if n == 4 else 0.1, 8, 1.0, 1.0, 0.1, n > 0)
        for n in range(9)
        for rank in (0, 1)
    ]
    ranks = [{"node": n} | ({"tcp": tcp} if tcp else {}) for n, tcp in enumerate(counted)]
    assert stalled(steps, ranks, rto_seconds=0.2) == line


def test_a_rank_whose_clocks_contradict_each_other_was_disturbed_and_ends_no_study(
    tmp_path,
) -> None:
    """One step of a rank had more CPU seconds than seconds, and its record could not be written."""
    sound = make_record(spec_of("dps-slow", 2, cluster=EMULATED))
    assert checked(sound) is sound
    steps = [replace(one, cpu_seconds=9.0) if one.step == 7 else one for one in sound.steps]
    record = checked(RunRecord(run=sound.run, steps=steps))
    write_record(tmp_path, record)
    assert read_record(tmp_path).status == "disturbed"
    assert "step 7 of rank 0: the step took 9.0 CPU seconds" in record.run["reason"]


def test_ranks_with_different_gradients_make_a_failed_record_that_names_them(tmp_path) -> None:
    sound = make_record(spec_of("dps", 2))
    steps = [replace(one, grad_norm=9.0) if one.rank else one for one in sound.steps]
    record = checked(RunRecord(run=sound.run, steps=steps))
    write_record(tmp_path, record)
    assert read_record(tmp_path).status == "failed"
    assert record.run["reason"].startswith(
        "strategy ddp gives ranks different gradients or losses: steps.jsonl: step 0 of rank 1: "
        "grad_norm 9.0, that of rank 0 is "
    )
    # Where rank 0 has not all steps, that is what is refused when the record is written.
    cut = RunRecord(run=sound.run, steps=sound.steps[1:])
    assert checked(cut) is cut


RANK = """[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 4712)
  traceback : Signal 9 (SIGKILL) received by PID 4712
"""
FIRST = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_08:33:13
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : {} (pid: 4711)
"""
OWN = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("".join(RANK.format(code) for code in (-15, 1, -9)), [9]),
        (RANK.format(-15) + FIRST.format(1), []),
        (RANK.format(-15) + FIRST.format(-11), [11]),
    ],
    ids=["killed", "ended by torchrun", "crashed"],
)
def test_signals_of_ranks_are_those_of_the_first_to_go(tmp_path, text, expected) -> None:
    """Neither those of an earlier start, nor what launchers say as the stage stops them."""
    log = tmp_path / "log.txt"
    log.write_text(RANK.format(-6))
    begin = log.stat().st_size
    with log.open("a") as stream:
        stream.write(text)
    end = log.stat().st_size
    with log.open("a") as stream:
        stream.write(OWN + RANK.format(-4))
    assert signals_of_ranks(log, begin, end) == expected
    log.unlink()
    assert signals_of_ranks(log, 0, 0) == []
