"""What the doctor reports, that no probe takes the others down, and its exit status."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.doctor import probes, show
from pipeline.doctor.probes import MISSING, NOTE, OK, Finding, missing, ok
from pipeline.resolved import ResolvedRun, resolve
from tests.fake_records import shipped
from tests.programs import stand_in


def broken() -> Finding:
    raise OSError("a line\nand another")


@pytest.fixture
def three(monkeypatch) -> None:
    """Three probes in the place of the machine's own."""
    three = {"good": lambda: ok("here"), "absent": lambda: missing("no", "get it"), "bad": broken}
    monkeypatch.setattr(probes, "PROBES", three)
    monkeypatch.setattr(show, "shipped_studies", lambda: {})
    monkeypatch.setattr("pipeline.strategies.names", lambda: [])


def test_a_failing_probe_is_one_line_and_the_others_are_seen(three, capsys) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["ok", "good", "here"]
    assert shown[1].split() == ["missing", "absent", "no"]
    assert shown[2].strip() == "-> get it"
    assert shown[3].startswith("note ") and "OSError: a line and another" in shown[3]
    assert shown[4].strip() == "-> what needs it may fail here" and len(shown) == 5
    assert len({line.index(word) for line, word in zip(shown[:2], ("here", "no"), strict=True)})


def test_of_a_study_its_text_and_cells_are_probed(monkeypatch, capsys, tmp_path) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    assert main(["doctor", "--study", "bai2022"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("This machine runs no cell of bai2022.\n")
    for name in ("cuda", "apex", "slurm", "corpus", "study:bai2022"):
        assert f"missing  {name} " in shown
    assert "data/bai2022.json: No such file" in shown and "study:smoke" not in shown
    own = tmp_path / "own.yaml"
    own.write_text("extends: one-node\nstudy: own\ncells: [{name: a, label: a, strategy: single, "
                   "precision: fp32}]\ncluster: {nodes: [1]}\n")  # fmt: skip
    assert main(["doctor", "--study", str(own)]) == 0
    assert capsys.readouterr().out.startswith("This machine runs own.\n")


@pytest.mark.parametrize("name", sorted(probes.PROBES))
def test_every_probe_answers_on_this_machine(name) -> None:
    finding = show.examine(probes.PROBES[name])
    assert finding.status in (OK, MISSING, NOTE)
    assert finding.text and "\n" not in finding.text
    assert "could not be probed" not in finding.text
    assert bool(finding.fix) or finding.status != MISSING


def test_a_cell_is_refused_for_the_reason_that_its_run_would_have(monkeypatch) -> None:
    assert show.why_not(shipped("smoke", "dps-amp", 4)) is None
    apex = replace(shipped("smoke", "dps", 1).spec, precision="apex_o1")
    assert "apex_o1" in str(show.why_not(resolve(apex)))
    monkeypatch.setattr(probes, "slurm", lambda: missing("none", "get it"))
    assert "2 machines" in str(show.why_not(shipped("cluster-check", "dps", 2)))
    assert show.why_not(shipped("cluster-check", "dps", 1)) is None


def test_a_study_says_how_many_of_its_cells_run(monkeypatch) -> None:
    def refuse(run: ResolvedRun) -> str | None:
        return "no Horovod" if run.spec.strategy == "horovod" else None

    monkeypatch.setattr(show, "why_not", refuse)
    finding = show.cells(Path("workflow/config/smoke/study.yaml"))
    assert finding.status == NOTE and finding.text.startswith("8 of 12 ")
    assert "horovod/n1, horovod/n2, horovod/n4" in finding.text and "no Horovod" in finding.text
    monkeypatch.setattr(show, "why_not", lambda spec: "nothing works")
    assert show.cells(Path("workflow/config/smoke/study.yaml")).status == MISSING
    monkeypatch.setattr(show, "why_not", lambda spec: None)
    assert show.cells(Path("workflow/config/smoke/study.yaml")).status == OK


PROGRAMS = {
    "sinfo": '[ -z "$DOWN" ] || { echo "first\nno controller" >&2; exit 1; }',
    "sacct": 'echo "sacct: error: Slurm accounting storage is disabled" >&2; exit 1',
    "srun": "echo usage: srun $PYXIS",
    "sbatch": """case "$*" in
        *=nope*) echo "sbatch: error: invalid partition specified: nope" >&2; exit 1 ;;
        *gres*) echo "sbatch: error: Invalid generic resource (gres) specification" >&2; exit 1 ;;
    esac""",
}
"""Of SLURM as `doctor --site` asks them."""


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, "ok", "slurm +sinfo answers"),
        ({"partition": "main"}, "ok", "jobs +SLURM takes --nodes=1 --partition=main --mem=0 --e"),
        ({}, "missing", "accounting +.*storage is disabled\n.*-> write `accounting: false`"),
        ({"accounting": False}, "ok", "accounting"),
        ({"network_partition": "nope"}, "missing", "network +SLURM refuses"),
        ({"gpus": "--gres=gpu:h100:N"}, "missing", "gpus +SLURM refuses .*--gres=gpu:h100:1: "),
        ({"before": ["true", "no-such a"]}, "missing", "before .*not found.*'no-such"),
        ({}, "missing", "container +no apptainer or singularity\n.*-> load its module"),
        ({"container": {"runtime": "pyxis"}}, "missing", "container +srun has no --container-im"),
        ({"scratch": "/no/such"}, "note", "folders +not on this machine: /no/such"),
        ({"environment": {"NCCL_IB_HCA": "a,b"}}, "ok", "environment +NCCL_IB_HCA=a,b"),
    ],
)
def test_the_site_file_is_held_against_its_cluster(
    tmp_path, monkeypatch, capsys, changes, status, words
) -> None:
    for name, text in PROGRAMS.items():
        stand_in(tmp_path / name, text)
    for name in ("sh", "grep"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("workflow").mkdir()
    site = {"container": {"runtime": "apptainer"}} | changes
    Path("workflow/site.yaml").write_text(yaml.safe_dump(site))
    assert main(["doctor", "--site"]) == 0
    shown = capsys.readouterr().out
    assert re.search(f"^{status} +{words}", shown, re.MULTILINE), shown
    monkeypatch.setenv("DOWN", "yes")
    assert probes.slurm().text == "first; no controller"
    Path("workflow/site.yaml").write_text("partitoin: x\n")
    assert main(["doctor", "--site"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
