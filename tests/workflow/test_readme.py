"""Every command of the README is run by a test: here, or in the test that is named."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.workflow.project import ROOT

# What cannot be run from within the suite, and where it is run instead.
WORKFLOW = "tests/workflow/test_workflow.py::"
ELSEWHERE = {
    "make test": ".ci/run",
    "make paper": ".ci/run",
    "make paper CONFIGFILE=my-study.yaml": WORKFLOW + "test_make_paper_says_where_results_lie",
    "snakemake --cores all": WORKFLOW + "finished",
    "snakemake --cores all figures": WORKFLOW + "test_each_target_works_by_itself",
    "snakemake --cores all tables": WORKFLOW + "test_each_target_works_by_itself",
    "snakemake --cores all paper": WORKFLOW + "test_each_target_works_by_itself",
    "snakemake --report results/smoke/report.html": WORKFLOW + "test_the_report_holds_all",
    ".venv/bin/python -m pytest tests/parity": "tests/parity/test_parity.py",
    "make check": "Makefile",
}


def commands() -> list[str]:
    """Lines of the README's sh blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.parametrize("command", commands())
def test_each_command_runs(command: str) -> None:
    if command in ELSEWHERE:
        return
    subprocess.run(["sh", "-c", command], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_the_places_named_exist() -> None:
    assert set(ELSEWHERE) <= set(commands())
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}" * bool(name) in (ROOT / file).read_text()
    gate = (ROOT / ".ci/run").read_text()
    assert gate.index("\nmake test\n") < gate.index("\nmake paper\n")
    assert "test: setup check" in (ROOT / "Makefile").read_text()


def test_the_tree_in_the_readme_is_the_tree() -> None:
    text = (ROOT / "README.md").read_text()
    tree = text.split("```text\n")[1].split("```")[0]
    top = [line.split()[0] for line in tree.splitlines() if line[0] != " "]
    inner = [line.split()[0] for line in tree.splitlines() if line[0] == " "]
    assert all((ROOT / name).exists() for name in top)
    assert all((ROOT / "pipeline" / name).exists() for name in inner)
