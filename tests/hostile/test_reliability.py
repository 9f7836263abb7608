"""docs/reliability.md says how many wrong inputs are tried, and is made from the tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.hostile.entries import DOCUMENTS, lay
from tests.hostile.mutants import BAD_BYTES
from tests.hostile.test_options import FILES, inputs

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
NO_FILES = 5
"""In place of a document: nothing, a FIFO, a folder, a symlink to itself and one to a device."""

HEAD = """# Reliability

A wrong input is one line and exit status 2, and leaves no file behind. `tests/hostile` makes \
wrong inputs by class from right ones and calls the stage that reads them; each has 10 seconds of \
the processor. \
This page is made by `tests/hostile/test_reliability.py`, which fails where it is not current.

A *wrong value* is one key of a document with one class of value: missing, null, another type, \
NaN, infinity, negative, zero, huge, a whole number as a float, empty, unicode, a line end, a \
path. Some are right somewhere (a weight decay may be 0): these have to be taken or refused, \
those *right nowhere* have to be refused. *No such document* is content that is none (not UTF-8,\
 cut, nested too deep, keys twice, over the limit of size), a FIFO, a folder or a device.

| document | read by | wrong values | of them right nowhere | no such document |
|---|---|---|---|---|
"""

FAULTS = """
## Faults while a run trains

| fault | what becomes of it | test |
|---|---|---|
| a rank or launcher is killed | started again, three starts in all; resumes from its \
checkpoint; then `failed`, 'killed by signal 9' | `tests/unit/launch/test_run.py`, \
`tests/system/test_killed.py` |
| the same inside a job of a scheduler | no record; the scheduler sends the job again | \
`tests/unit/launch/test_run.py` |
| the time limit passes | `timeout`; what is left is stopped, then killed | \
`tests/unit/launch/test_run.py` |
| the port where ranks meet is taken | started again with another, three times | \
`tests/system/test_taken_port.py` |
| a step file ends before its checkpoint | the checkpoint is dropped, the run starts anew and \
says so | `tests/unit/launch/test_run.py` |
| the disk is full | one line, no record | `tests/system/test_disk_full.py` |

What a fault costs is the steps since the last checkpoint, and the start of the ranks; the time \
was not measured.
"""


def page(folder: Path) -> str:
    """The text of docs/reliability.md."""
    laid = lay(folder)
    rows = []
    total = 0
    for name, entry in DOCUMENTS.items():
        found = entry.mutants(laid)
        command = entry.command(laid, Path("a/b/c/d/e/f/g"), Path("out"))[0]
        nowhere = sum(one.must_fail for one in found)
        others = len(BAD_BYTES) + NO_FILES
        total += len(found) + others
        rows.append(f"| {name} | `{command}` | {len(found)} | {nowhere} | {others} |")
    options = Counter(stage for stage, _, _ in inputs())
    total += options.total() + 4 * (len(FILES) + 4)
    lines = [
        *rows,
        "",
        f"Besides: {options.total()} wrong values of the options of {len(options)} commands, and "
        f"{len(FILES) + 4} files that are no table of metrics, archive or page to 4 commands that "
        f"read one. Together {total} inputs.",
    ]
    return HEAD + "\n".join(lines) + "\n" + FAULTS


def test_the_page_is_current(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page(tmp_path)
    if request.config.getoption("--write-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
