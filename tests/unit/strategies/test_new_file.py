"""Adding a strategy is adding one file: everything else finds it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

MINE = '''
"""Mine: every rank trains for itself."""

from dataclasses import dataclass

from pipeline.strategies.base import Footprint, Strategy


@dataclass(frozen=True)
class Mine(Strategy):
    requires = ("nowhere",)
    install = "ask me"
    echo: int = 2

    def footprint(self, spec, layout, rank, gradients):
        return Footprint(5 * gradients)

    def build(self, parts):
        raise NotImplementedError
'''
STUDY = """
extends: smoke
study: mine
cells:
  - {name: single, label: Single, strategy: single, precision: fp32, nodes: [1]}
  - {name: mine, label: Mine, strategy: mine, precision: fp32, nodes: [2], options: {echo: 3}}
"""
SEEN = """
import json
from pathlib import Path
from pipeline.doctor import examine
from pipeline.planner.memory import predict
from pipeline.planner.plan import plan_study
from pipeline.strategies import names, table
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from tests.parity.cases import launches

plan = plan_study(expand(load_study(Path("mine.yaml"))))[-1]
found = dict(examine.probes())["mine"]()
print(json.dumps({
    "names": names(), "table": table(), "plan": [plan.spec.strategy, plan.memory.buffers],
    "gradients": plan.memory.gradients, "doctor": [found.status, found.fix],
    "parity": sorted({name for name, _ in launches()}),
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the parts of a copy of this checkout say, with one file more."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pipeline", "tests", "workflow"):
        copytree(name, folder / name, ignore=ignore_patterns("__pycache__"))
    (folder / "pipeline/strategies/mine.py").write_text(MINE.lstrip())
    (folder / "mine.yaml").write_text(STUDY)
    done = subprocess.run(
        [sys.executable, "-c", SEEN],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_new_file_is_a_strategy_for_all(seen: dict[str, object]) -> None:
    assert "mine" in str(seen["names"])
    assert seen["plan"] == ["mine", 5 * int(str(seen["gradients"]))]
    assert seen["doctor"] == ["missing", "ask me"]
    assert "mine" in str(seen["parity"])


def test_its_row_is_in_the_table_of_the_docs(seen: dict[str, object]) -> None:
    row = "| `mine` | Mine: every rank trains for itself. | `echo` 2 | nowhere |"
    assert row in str(seen["table"]).splitlines()


def test_the_docs_have_the_table_of_this_checkout() -> None:
    from pipeline.strategies import table

    text = Path("docs/strategies.md").read_text()
    begin, end = "<!-- strategies: begin -->\n", "\n<!-- strategies: end -->"
    assert text.split(begin)[1].split(end)[0] == table(), (
        "renew it: python -m pipeline strategies --readme docs/strategies.md"
    )
