"""Makes the torch of a base image an older one, and puts an Apex beside it: `python3 FILE SITE`.

No torch 2.7 for CPUs can be had from PyPI. What the image `apex` has to cope with is taken out of
the locked torch instead: the interface that FSDP2 of later releases has for collectives, the
parameter of a pipeline's schedule, and its use of NumPy 2. What is left works as before.
"""

import re
import sys
from pathlib import Path

RENAMED = {
    "distributed/fsdp/_fully_shard/*.py": ("ReduceScatter", "AllGather"),
    "distributed/pipelining/schedules.py": ("return_outputs",),
}
"""Names that torch 2.7 lacks, which the rest of that torch then has by another."""

OF_NUMPY_1 = """
import numpy as _numpy
if _numpy.__version__ >= "2":  # `int` is a type of torch here
    def from_numpy(_): raise RuntimeError("Numpy is not available")
"""


def main() -> None:
    """Edit the torch below the folder that is given, and write the Apex."""
    site = Path(sys.argv[1])
    for pattern, names in RENAMED.items():
        for path in site.glob(f"torch/{pattern}"):
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(rf"\b({'|'.join(names)})\b", r"Later\1", text), encoding="utf-8")
    with (site / "torch/__init__.py").open("a", encoding="utf-8") as torch:
        torch.write(OF_NUMPY_1)
    (site / "apex/amp").mkdir(parents=True)
    for folder in ("apex", "apex/amp"):
        (site / folder / "__init__.py").touch()


if __name__ == "__main__":
    main()
