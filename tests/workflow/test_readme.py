"""Every command of the README is run by a test: here, or in the test that is named."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.workflow.project import ROOT

# What cannot be run from within the suite, and where it is run instead.
ELSEWHERE = {
    "make test": "this suite is it; .ci/run calls it",
    "make paper": ".ci/run calls it after the suite; test_workflow runs its parts",
    "make paper CONFIGFILE=my-study.yaml": "test_workflow.test_make_paper_says_where_the_results_lie",
    "snakemake --cores all": "test_workflow.finished",
    "snakemake --cores all figures": "test_workflow.test_each_target_works_by_itself",
    "snakemake --cores all tables": "test_workflow.test_each_target_works_by_itself",
    "snakemake --cores all paper": "test_workflow.test_each_target_works_by_itself",
    "snakemake --report results/smoke/report.html": "test_workflow.test_the_report_holds_every_figure_and_table",
    ".venv/bin/python -m pytest tests/parity": "part of this suite",
    "make check": "make test calls it before this suite",
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
    workflow = (ROOT / "tests/workflow/test_workflow.py").read_text()
    for place in ELSEWHERE.values():
        for name in re.findall(r"test_workflow\.(\w+)", place):
            assert f"def {name}" in workflow, name
    assert (ROOT / ".ci/run").read_text().index("make test") > 0


def test_the_tree_in_the_readme_is_the_tree() -> None:
    text = (ROOT / "README.md").read_text()
    tree = text.split("```text\n")[1].split("```")[0]
    top = [line.split()[0] for line in tree.splitlines() if line[0] != " "]
    inner = [line.split()[0] for line in tree.splitlines() if line[0] == " "]
    assert all((ROOT / name).exists() for name in top)
    assert all((ROOT / "pipeline" / name).exists() for name in inner)
