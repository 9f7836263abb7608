"""A batch job runs its site's lines; tests/system sends the signal at which its training ends."""

import json
import os
import sys
from pathlib import Path

from tests.programs import ran

ROOT = Path(__file__).parents[3]


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
