"""A batch job runs its site's lines, and at SIGUSR1 its training ends at a checkpoint."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.launch import preloaded
from pipeline.records import read_record
from tests.parity.cases import Case
from tests.programs import ran, stand_in, wait_until

ROOT = Path(__file__).parents[3]
STEPS = 1000
"""So many that the signal comes before the last one."""


@pytest.fixture
def job(tmp_path: Path, small_tokens: Path):
    """Starts a batch script that trains two ranks into a folder, as a scheduler starts one."""
    spec = Case("ddp").spec(2)
    work = replace(spec.workload, steps=STEPS, checkpoint_every=0)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "spec.json").write_text(replace(spec, workload=work).to_json())
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\nset -eu\n. envs/begin_job.sh\n"
        f'exec {sys.executable} -m pipeline train --spec "$1/spec.json" --tokens {small_tokens} '
        '--out "$1" --attempt 3\n'
    )
    words = f'echo "$@" >>{tmp_path}/calls\necho Requeue=1 Restarts=0'
    stand_in(tmp_path / "scontrol", words)
    (tmp_path / "envs").symlink_to(ROOT / "envs")
    variables = {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SAMESTEP_SENT_AGAIN": "yes",
        preloaded.STAGES: "",  # the stage is the script's own process, as in a job
    }

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", str(script), str(folder)], cwd=tmp_path, env={**os.environ, **variables},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


@pytest.mark.parametrize("loaded", ["two"], indirect=True)
def test_a_signal_ends_a_run_at_a_checkpoint_from_which_it_goes_on(loaded, job, tmp_path) -> None:
    """Parity and tests/system see that it then has the losses of an undisturbed run."""
    folder, process = tmp_path / "run", job()
    rows = folder / "ranks/rank1.steps"
    wait_until(lambda: rows.exists() and rows.stat().st_size)
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "start it again and it resumes" in said
    assert not (folder / "run.json").exists(), "the third attempt too is no result"
    (kept,) = (path.name for path in (folder / "checkpoints").iterdir())
    done = int(kept.removeprefix("step-"))
    assert 0 < done < STEPS
    assert (tmp_path / "calls").read_text() == "show job 7\nrequeue 7\n"

    process = job()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert (tmp_path / "calls").read_text().count("requeue") == 1
    record = read_record(folder)
    assert (record.status, len(record.steps)) == ("ok", 2 * STEPS)
    assert record.run["execution"]["resumed_from_step"] == done


def test_the_site_s_lines_run_first_and_one_that_fails_ends_the_job(tmp_path: Path) -> None:
    for name in ("envs", "pipeline", ".venv"):
        (tmp_path / name).symlink_to(Path(sys.prefix) if name == ".venv" else ROOT / name)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/schemas").symlink_to(ROOT / "workflow/schemas")
    site = tmp_path / "workflow/site.yaml"
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\nset -eu\n. envs/begin_job.sh\necho "ran with $A, $1"\n')
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7"}
    for lines, status, said in (
        (["export B=a # first", "A=$B"], 0, "ran with a, here\n"),
        (["false # 1"], 2, "error: workflow/site.yaml: the line 'false # 1' of `before` failed;"),
        (["A=1", "module load 'x'"], 2, "the line \"module load 'x'\" of `before`"),
    ):
        site.write_text(json.dumps({"container": {"runtime": "none"}, "before": lines}))
        done = ran(["sh", str(script), "here"], cwd=tmp_path, env=variables)
        assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done
    site.write_text("runtime: none\n")
    done = ran(["sh", str(script), "here"], cwd=tmp_path, env=variables)
    assert done.returncode == 2 and done.stderr.startswith("error: site file workflow/site.yaml")
