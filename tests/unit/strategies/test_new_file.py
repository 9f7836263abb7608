"""Adding a strategy is adding a file or a folder: all find it, and say where it is broken."""

import json
import os
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest

from tests.programs import ran

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
cluster: {yardstick: null}
cells:
  - {name: single, label: Single, strategy: single, precision: fp32, nodes: [1]}
  - {name: mine, label: Mine, strategy: mine, precision: fp32, nodes: [2], options: {echo: 3}}
"""
SEEN = """
import importlib
import json
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from pipeline.__main__ import main
from pipeline.doctor import show
from pipeline.planner.memory import plan_study
from pipeline.resolved import resolve
from pipeline.strategies import names, table
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from tests.parity.cases import launches

def said(*arguments):
    with redirect_stderr(StringIO()) as shown:
        return [main(arguments), shown.getvalue()]

runs = expand(load_study(Path("mine.yaml")))
plan = plan_study(map(resolve, runs))[-1]
found = dict(show.of_machine())["mine"]()
seen = {
    "names": names(), "table": table(), "plan": [plan.spec.strategy, plan.memory.buffers],
    "gradients": plan.memory.gradients, "doctor": [found.status, found.fix],
    "parity": sorted({name for name, _ in launches()}),
}
text = Path("mine.yaml").read_text()
for file, source in BROKEN.items():
    path, name = Path("pipeline/strategies", file), file.partition("/")[0].removesuffix(".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    importlib.invalidate_caches()
    Path("broken.yaml").write_text(text.replace("mine", name).replace(", options: {echo: 3}", ""))
    spec = runs[-1].to_dict() | {"strategy": name, "options": {}, "cell": name}
    Path("spec.json").write_text(json.dumps(spec))
    probes = dict(show.of_machine())
    seen[name] = {
        "doctor": vars(show.examine(probes[name])),
        "others": show.examine(probes["mine"]).status,
        "plan": said("plan", "--study", "broken.yaml"),
        "train": said("train", "--spec", "spec.json", "--tokens", "tokens", "--out", "out"),
    }
# Beside all of them; `check` rehearses the stages of a study, which takes seconds.
seen["sound"] = said("check", "--study", "workflow/config/smoke/study.yaml")
print(json.dumps(seen))
"""
BROKEN = {
    "unfound.py": "import nowhere",
    "torn/plan.py": "def (:",
    "abstract.py": MINE.partition("    def build")[0],
}
"""Files that are no strategies."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the parts of a copy of this checkout say, with one file more."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pipeline", "tests", "workflow", "paper"):
        copytree(name, folder / name, ignore=ignore_patterns("*.pyc.*"))  # half a file goes away
    (folder / "pipeline/strategies/mine.py").write_text(MINE.lstrip())
    (folder / "mine.yaml").write_text(STUDY)
    done = ran(
        [sys.executable, "-c", f"BROKEN = {BROKEN}\n{SEEN}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_new_file_is_a_strategy_for_all(seen: dict[str, Any]) -> None:
    assert "mine" in str(seen["names"])
    assert seen["plan"] == ["mine", 5 * int(str(seen["gradients"]))]
    assert seen["doctor"] == ["missing", "ask me"]
    assert "mine" in seen["parity"]
    row = "| `mine` | Mine: every rank trains for itself. | `echo` 2 | nowhere |"
    assert row in str(seen["table"]).splitlines()


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("unfound.py", "cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("torn/plan.py", "cannot be imported (SyntaxError: invalid syntax (plan.py, line"),
        ("abstract.py", "makes no strategy (TypeError: Can't instantiate abstract class Mine"),
    ],
)
def test_a_broken_file_is_named_and_takes_nothing_else_down(seen, file, error) -> None:
    found = seen[file.partition("/")[0].removesuffix(".py")]
    assert found["doctor"]["status"] == "broken" and "mend that file" in found["doctor"]["fix"]
    assert found["doctor"]["text"].startswith(f"pipeline/strategies/{file} {error}")
    assert found["others"] == "missing" and seen["sound"] == [0, ""]
    for stage, place in (("plan", "broken.yaml: cells.1 ("), ("train", "pipeline/strategies/")):
        status, said = found[stage]
        assert status == 2 and said.count("\n") == 1
        assert said.startswith(f"error: {place}") and f"pipeline/strategies/{file} {error}" in said


def test_the_docs_have_the_table_of_this_checkout() -> None:
    from pipeline.strategies import sent_table, table

    text = Path("docs/strategies.md").read_text()
    for name, expected in (("strategies", table()), ("sent", sent_table())):
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        assert text.split(begin)[1].split(end)[0] == expected, (
            "renew it: python -m pipeline strategies --readme docs/strategies.md"
        )
