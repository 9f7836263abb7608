"""A step must not wait for the kernel to clear pages that the step before gave back."""

import mmap
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
from pipeline.training.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    blocks = [bytearray(size << 20) for size in (1, 8, 40)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_blocks_of_a_step_are_used_again() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", STEPS, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    pages = (40 << 20) // mmap.PAGESIZE
    assert faults("keep") < 100 < pages <= faults("leave")
