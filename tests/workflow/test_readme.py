"""Every command of README and docs is run by a test: here, or in the test that is named."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.project import ROOT

# What cannot be run from within the suite, and where it is run instead.
WORKFLOW = "tests/workflow/test_workflow.py::"
SLURM = "tests/system/test_slurm.py::"
ON_SLURM = "snakemake --profile workflow/profiles/slurm --configfile"
BAI = "workflow/config/bai2022/study.yaml"
DRY_RUN = "tests/workflow/test_cluster_commands.py::test_the_jobs_of_a_dry_run"
OWN_STUDY = "tests/unit/study/test_own_study.py::test_the_page_s_study_meets_no_refusal"
ELSEWHERE = {
    "make test": ".ci/run",
    "make test-system": ".ci/run",
    "make paper": ".ci/run",
    "make paper STUDY=planner": "tests/workflow/test_points.py::test_make_paper",
    "make paper STUDY=my-study.yaml": WORKFLOW + "test_make_paper_says_where_results_lie",
    "mkdir -p mine && cp README.md mine/text.txt": OWN_STUDY,
    "python -m pipeline check --study mine/study.yaml": OWN_STUDY,
    "python -m pipeline doctor --study mine/study.yaml": OWN_STUDY,
    "python -m pipeline plan --study mine/study.yaml": OWN_STUDY,
    "make paper STUDY=mine/study.yaml": WORKFLOW + "test_make_paper_says_where_results_lie",
    "DS_ACCELERATOR=cpu DS_BUILD_OPS=0 .venv/bin/pip install --no-build-isolation --no-deps "
    "--require-hashes -r envs/deepspeed.lock": "tests/system/test_deepspeed.py::installed",
    "python -m pipeline calibrate --study smoke --out calibration.json": (
        "tests/unit/launch/calibrate/test_calibrate.py::calibrated"
    ),
    "python -m pipeline predict --study smoke --calibration calibration.json": (
        "tests/unit/launch/calibrate/test_calibrate.py::test_the_file_predicts_each_cell"
    ),
    "python -m pipeline plan --study alpa2022 --auto --calibration calibration.json": (
        "tests/unit/planner/test_auto.py::test_the_link_decides"
    ),
    "python -m pipeline logs tests/examples/logs/megatron-2025.txt --out points.csv "
    "--set hardware=V100": (
        "tests/unit/cost/test_logs.py::test_the_configuration_that_a_log_prints_is_predicted"
    ),
    "python -m pipeline trace --run results/smoke/runs/dps/n4/p0 --out traces": (
        "tests/unit/planner/test_chakra.py::test_traces_of_profiled_runs"
    ),
    "python -m pipeline watch --study my-study.yaml": (
        "tests/unit/test_watch.py::test_watch_prints_once_without_torch_or_pandas"
    ),
    "snakemake --cores all": "tests/workflow/conftest.py::trained",
    "snakemake --cores all figures": WORKFLOW + "test_each_target_by_itself",
    "snakemake --cores all tables": WORKFLOW + "test_each_target_by_itself",
    "snakemake --cores all paper": WORKFLOW + "test_each_target_by_itself",
    "snakemake --report results/smoke/snakemake.html": WORKFLOW + "test_the_report_holds_all",
    ".venv/bin/python -m pytest tests/parity": "tests/parity/test_parity.py",
    "make check": "Makefile",
    "python -m pipeline compare results/smoke other/results/smoke --out results/compared": (
        "tests/unit/compare/test_compare.py::test_the_first_differing_step"
    ),
    "make setup": "Makefile",
    "make archive": "tests/workflow/test_archive.py::archive",
    "make paper FROM=archives/smoke.zip": "tests/workflow/test_archive.py::rebuilt",
    "python -m pipeline predict --points points.csv --out predicted.csv": (
        "tests/unit/cost/test_points.py::test_a_file_keeps_its_columns_and_gains_ours"
    ),
    "make paper FROM=docs/example/smoke.zip": (
        "tests/system/test_sample.py::test_the_shipped_archive_is_rebuilt_to_the_byte"
    ),
    "make image": "tests/system/image.py::make_image",
    "docker build --tag samestep --build-arg GIT_COMMIT=$(git rev-parse HEAD) .": (
        "tests/system/test_image.py::test_two_builds_are_one_image"
    ),
    "snakemake --cores all --use-singularity": "tests/system/test_in_container.py::snakemake",
    f"{ON_SLURM} workflow/config/cluster-check/study.yaml": (
        "tests/system/test_slurm_in_image.py::test_the_cluster_check_inside_the_image_equals_the_local_run"
    ),
    "cp workflow/site.example.yaml workflow/site.yaml": (
        "tests/unit/machine/test_site.py::test_the_example_is_what_counts_without_a_site"
    ),
    "python -m pipeline doctor --site": (
        f"{SLURM}test_an_unknown_partition_is_named_by_the_doctor_and_by_the_workflow"
    ),
    **dict.fromkeys(
        (f"python -m pipeline allocate --study cluster-check{sent}" for sent in ("", " | sh")),
        f"{SLURM}test_runs_of_an_ended_allocation_go_on_in_the_next",
    ),
    "python -m pipeline watch --study cluster-check": (
        "tests/unit/test_watch.py::test_watch_prints_once_without_torch_or_pandas"
    ),
    "srun --gpus=1 .venv/bin/python -m bench.gpu --out gpu.json": (
        "tests/system/test_gpu.py::test_every_point_holds"
    ),
    f"{ON_SLURM} {BAI} --dry-run --printshellcmds": DRY_RUN,
    # The same jobs, started: needs nodes with four GPUs each.
    f"{ON_SLURM} {BAI}": DRY_RUN,
    f"python -m pipeline commands --study {BAI} --image images/samestep.sif": (
        "tests/workflow/test_cluster_commands.py::test_the_commands_of_the_ranks"
    ),
}


TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    """Lines of the sh blocks, each once."""
    blocks = [b for t in TEXTS for b in re.findall(r"```sh\n(.*?)```", t.read_text(), re.DOTALL)]
    return list(dict.fromkeys(line for block in blocks for line in block.splitlines() if line))


@pytest.mark.parametrize("command", commands())
def test_each_command_runs(command: str) -> None:
    if command in ELSEWHERE:
        return
    # As after `. .venv/bin/activate`.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=env, check=True, capture_output=True, timeout=60
    )


def test_the_places_named_exist() -> None:
    assert set(ELSEWHERE) <= set(commands())
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}" * bool(name) in (ROOT / file).read_text()
    gate = (ROOT / ".ci/run").read_text()
    assert gate.index("\nmake test\n") < gate.index("\nmake paper\n")
    assert "\nmake test-system\n" in gate
    assert "test: setup check" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_links_lead_to_files(text: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", text.read_text())
    assert [link for link in links if not (text.parent / link).exists()] == []


def test_the_tree_in_the_readme_is_the_tree() -> None:
    text = (ROOT / "README.md").read_text()
    tree = text.split("```text\n")[1].split("```")[0]
    top = [line.split()[0] for line in tree.splitlines() if line[0] != " "]
    inner = [line.split()[0] for line in tree.splitlines() if line[0] == " "]
    assert all((ROOT / name).exists() for name in top)
    assert all((ROOT / "pipeline" / name).exists() for name in inner)
