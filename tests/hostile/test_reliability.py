"""docs/reliability.md says how many wrong inputs are tried: its tables are made from the tests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pipeline.files import replace_marked
from tests.hostile import test_corpus, test_foreign, test_meaning
from tests.hostile.entries import DOCUMENTS, lay
from tests.hostile.mutants import BAD_BYTES
from tests.hostile.test_options import FILES, inputs, overwritten, twice
from tests.system.fault_table import FAULTS, MEASURED, NO_RECORD, REAL

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
NO_FILES = 5
"""In place of a document: nothing, a FIFO, a folder, a symlink to itself and one to a device."""


def faults() -> str:
    """What every fault of the tables cost when `--write-faults` was last given."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    words = {name: row.words for name, row in FAULTS.items()} | REAL
    measured = found["faults"]
    assert {k: v["words"] for k, v in measured.items()}.items() <= words.items(), "measure again"
    assert FAULTS.keys() <= measured.keys(), "measure again"
    rows = []
    for name, said in words.items():
        row = f"| {said} | | | | not measured |"
        if about := measured.get(name):
            record = "none" if about["record"] == NO_RECORD else f"`{about['record']}`"
            cost = f"{about['steps_again']} | {about['seconds']}"
            row = f"| {said} | {record} | {about['again']} | {cost} |"
        rows.append(row)
    rows.insert(len(FAULTS), "| | | | | |")
    loads = [one["load_average"] for one in measured.values()]
    cpu, cores = (found["hardware"][key] for key in ("cpu_model", "num_cores"))
    return "\n".join([
        "| fault | record | again | steps | seconds |", "|---|---|---|---|---|", *rows, "",
        f"Measured on {cpu}, {cores} cores, at a load average of {min(loads)} to {max(loads)}.",
    ])  # fmt: skip


def wrong_inputs(folder: Path) -> str:
    """The documents with how many mutants of each are tried, and all other wrong inputs."""
    laid = lay(folder)
    rows = [
        "| document | read by | wrong values | of them right nowhere | no such document |",
        "|---|---|---|---|---|",
    ]
    total, others = 0, len(BAD_BYTES) + NO_FILES
    for name, entry in DOCUMENTS.items():
        found = entry.mutants(laid)
        nowhere = sum(one.must_fail for one in found)
        total += len(found) + others
        command = entry.command.split()[0]
        rows.append(f"| {name} | `{command}` | {len(found)} | {nowhere} | {others} |")
    options = Counter(stage for stage, _, _ in inputs())
    num_twice, num_written, num_files = len([*twice()]), len([*overwritten()]), len(FILES) + 4
    meanings, texts, foreign = (
        module.num_inputs() for module in (test_meaning, test_corpus, test_foreign)
    )
    total += options.total() + num_twice + num_written + 4 * num_files + meanings + texts + foreign
    return "\n".join([
        *rows, "",
        f"Besides: {options.total()} wrong values of the options of {len(options)} commands, and "
        f"{num_files} files that are no table of metrics, archive or page to 4 commands that "
        f"read one; {num_twice} options given twice, and {num_written} outputs that name what the "
        f"command reads; {meanings} studies, numbers of YAML and products whose "
        "parts are right by themselves and do not fit together; "
        f"{texts} texts, tokenisers and folders of them; {foreign} archives, "
        "results, calibrations and points that were copied, edited or packed again or are of "
        f"another study or machine, and options without an effect. Together {total} inputs.",
    ])  # fmt: skip


def test_the_page_is_current(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made = tmp_path / "reliability.md"
    made.write_bytes(PAGE.read_bytes())
    replace_marked(made, "inputs", wrong_inputs(tmp_path))
    replace_marked(made, "faults", faults())
    text = made.read_text(encoding="utf-8")
    if request.config.getoption("--write-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
