"""docs/reliability.md says how many wrong inputs are tried, and is made from the tests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.hostile import test_claims, test_corpus, test_foreign, test_meaning
from tests.hostile.entries import DOCUMENTS, lay
from tests.hostile.mutants import BAD_BYTES
from tests.hostile.test_options import FILES, inputs, overwritten, twice
from tests.system.fault_table import FAULTS, MEASURED, NO_RECORD, REAL

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

FAULTS_HEAD = """
## Faults while a run trains

A fault from outside is no result. A run whose rank, launcher or node is lost is started again, \
three starts in all; inside a job of a scheduler, which sends it again, it leaves no record. It \
resumes from its newest checkpoint that is good: one of its own training, tokens and network, \
whose files have the hashes that were written with them and whose steps every rank has. Every \
rank writes its own pieces, a file each, and rank 0 names the checkpoint when all have written, \
so all nodes share the results folder; where one rank cannot write, all end, the error told is \
that rank's, and nothing of the checkpoint is left. The newest two are kept; while one is \
written, three lie on the disk, each of 12 bytes a parameter. Files are hashed in blocks, not in \
memory. Where no checkpoint is good, the run starts anew. \
What disturbed a run stands in its record (`execution.interruptions`). Each start has the whole \
time limit, so what a lost start took never makes a `timeout`, and a run takes at most three \
times its limit.

Each row is a test that asserts that the run ended with the losses and gradient norms of an \
undisturbed run to the bit, and no process, temporary file, network interface or control group \
was left; rows without figures were not run when this page was made. *Record* is what the start \
with the fault leaves; *again* says which start finishes the run; *steps* are those that were \
trained a second time; *seconds* lie between the fault (or that next start) and the finished \
run, without the time limit. Measured on {cpu}, {cores} cores, at a load average of {low} to \
{high}. The model has two layers. Above the empty row: two ranks of the \
loopback, torch loaded before, a checkpoint each 5 of 20 steps (`tests/system/test_faults.py`). \
Below it: real launchers and emulated nodes, a checkpoint each 50 of 600 steps \
(`tests/system/test_killed.py`). There the fault comes at once after a checkpoint, and *steps* \
are counted just before it.

| fault | record | again | steps | seconds |
|---|---|---|---|---|
"""

ELSEWHERE = """
Tested without a figure: Snakemake itself is killed (`tests/system/test_run_workflow.py`, \
`tests/workflow/test_workflow.py`) or stopped, after which a second start names it with the two \
ways out (`tests/system/test_run_workflow.py`), the stage on emulated nodes is killed \
(`tests/system/test_emulated.py`), a disk that is really full \
(`tests/system/test_disk_full.py`), one that is full for the part of a checkpoint of one rank \
alone (`tests/unit/training/test_checkpoint.py`), a port taken from a real launcher \
(`tests/system/test_taken_port.py`), a node of a cluster that is lost \
(`tests/system/test_slurm.py`), an emulated network that vanished between two starts, after \
which the run starts anew (`tests/unit/launch/test_run.py`), a lock that is a folder, which is \
one line (`tests/unit/machine/test_lock.py`), and a preloaded process that is stopped, without \
which the run loads for itself (`tests/unit/launch/test_preloaded.py`).
"""


def faults() -> str:
    """What every fault of the tables cost when `--write-faults` was last given."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    words = {name: row.words for name, row in FAULTS.items()} | REAL
    measured = found["faults"]
    assert {k: v["words"] for k, v in measured.items()}.items() <= words.items(), "measure again"
    assert FAULTS.keys() <= measured.keys(), "measure again"
    loads = [one["load_average"] for one in measured.values()]
    head = FAULTS_HEAD.format(
        cpu=found["hardware"]["cpu_model"],
        cores=found["hardware"]["num_cores"],
        low=min(loads),
        high=max(loads),
    )
    rows = [_row(words[name], measured.get(name)) for name in words]
    rows.insert(len(FAULTS), "| | | | | |")
    return head + "\n".join(rows)


def _row(words: str, about: dict[str, str] | None) -> str:
    if about is None:
        return f"| {words} | | | | not measured |"
    record = "none" if about["record"] == NO_RECORD else f"`{about['record']}`"
    return (
        f"| {words} | {record} | {about['again']} | {about['steps_again']} | {about['seconds']} |"
    )


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
    num_twice, num_written = len([*twice()]), len([*overwritten()])
    meanings = test_meaning.num_inputs() + test_claims.num_inputs()
    total += options.total() + num_twice + num_written + 4 * (len(FILES) + 4)
    foreign = test_foreign.num_inputs()
    total += meanings + test_corpus.num_inputs() + foreign
    lines = [
        *rows,
        "",
        f"Besides: {options.total()} wrong values of the options of {len(options)} commands, and "
        f"{len(FILES) + 4} files that are no table of metrics, archive or page to 4 commands that "
        f"read one; {num_twice} options given twice, and {num_written} outputs that name what the "
        f"command reads; {meanings} studies, claims, numbers of YAML, records and products whose "
        "parts are right by themselves and do not fit together; "
        f"{test_corpus.num_inputs()} texts, tokenisers and folders of them; {foreign} archives, "
        "results, calibrations and points that were copied, edited or packed again or are of "
        "another study or machine, and options without an effect. "
        f"Together {total} inputs.",
    ]
    return HEAD + "\n".join(lines) + "\n" + faults() + "\n" + ELSEWHERE


def test_the_page_is_current(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page(tmp_path)
    if request.config.getoption("--write-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
