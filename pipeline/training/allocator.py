"""The C library's allocator, set so that it keeps what a step frees for the next one."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 64 << 20}
"""Parameters of mallopt(3), in bytes."""


def keep_freed_memory() -> bool:
    """Take blocks of up to 1 GiB from the heap and never shrink it; False where there is no glibc.

    By default glibc maps each larger block anew, and the kernel then clears its pages one by one:
    in the default study 3,000 to 4,000 page faults a step, a sixth of its CPU seconds, and their
    number differs from run to run as the threshold moves by itself.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in SETTINGS.items())
