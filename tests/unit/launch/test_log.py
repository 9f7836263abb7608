"""Signals of ranks in the log of a run."""

import pytest

from pipeline.launch.log import signals_of_ranks

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
        (FIRST.format(-15), [15]),
        (RANK.format(-15) + FIRST.format(1), []),
        (RANK.format(-15) + FIRST.format(-11), [11]),
        (OWN, [15]),
    ],
    ids=["killed", "ended by somebody", "ended by torchrun", "crashed", "torchrun ended"],
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
