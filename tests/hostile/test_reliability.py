"""docs/reliability.md says what faults cost: its table is made of what was measured."""

import json
from pathlib import Path

import pytest

from pipeline.files import replace_marked
from tests.system.fault_table import FAULTS, MEASURED, NO_RECORD, REAL

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def faults() -> str:
    """Costs of every fault of the tables when `--write-faults` was last given."""
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


def test_the_page_is_current(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made = tmp_path / "reliability.md"
    made.write_bytes(PAGE.read_bytes())
    replace_marked(made, "faults", faults())
    text = made.read_text(encoding="utf-8")
    if request.config.getoption("--write-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
