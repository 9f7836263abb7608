import os
import time
from pathlib import Path

from pipeline.emulation.awake import awake


def children() -> set[int]:
    own = os.getpid()
    return set(map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split()))


def test_each_core_has_a_process_of_the_idle_class_for_a_while(tmp_path) -> None:
    cores, before = sorted(os.sched_getaffinity(0)), children()
    group = tmp_path / "cgroup.procs"
    group.write_text("")
    with awake(cores, tmp_path):
        spinners = children() - before
        assert len(spinners) == len(cores)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not group.read_text():
            time.sleep(0.01)
        last = int(group.read_text())
        assert last in spinners
        assert os.sched_getscheduler(last) == os.SCHED_IDLE
        assert len(os.sched_getaffinity(last)) == 1
    assert children() == before
