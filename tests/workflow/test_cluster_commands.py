"""A dry run of the study at its own scale shows the exact commands; golden files hold them.

They move only by `pytest tests/workflow/test_cluster_commands.py --write-golden`.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.programs import stand_in
from tests.workflow.project import Project, make_project

GOLDEN = Path(__file__).parents[1] / "golden"
STUDY = "workflow/config/bai2022/study.yaml"
PROFILE = ("--profile", "workflow/profiles/slurm")


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """The project with an image of a known digest, on a site that is as the example has it.

    Nothing is started in these tests.
    """
    made = make_project(tmp_path_factory.mktemp("cluster"))
    site = made.folder / "workflow/site.yaml"
    site.write_text((made.folder / "workflow/site.example.yaml").read_text())
    (made.folder / "data").mkdir()
    (made.folder / "data/bai2022.json").write_text(json.dumps(["a text " * 2000]))
    images = made.folder / "images"
    images.mkdir()
    (images / "samestep.sif").write_bytes(b"not read by a dry run")
    (images / "samestep.json").write_text(json.dumps({"image_digest": "sha256:" + "a" * 64}))
    stand_in(made.folder / "bin/apptainer", "echo apptainer version 1.4.0")
    return made


def run(project: Project, *command: str, both: bool = False) -> str:
    """What a command of this environment prints: on stdout, or on both streams."""
    program = str(Path(sys.executable).with_name(command[0]))
    path = f"{project.folder / 'bin'}:{project.environment()['PATH']}"
    done = project.call(program, *command[1:], PATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    text = done.stdout + (done.stderr if both else "")
    return text.replace(str(project.folder), "PROJECT").replace(sys.executable, "PYTHON")


def hold(request: pytest.FixtureRequest, name: str, text: str) -> None:
    golden = GOLDEN / name
    if request.config.getoption("--write-golden"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_jobs_of_a_dry_run(project, request) -> None:
    shown = run(
        project, "snakemake", "--dry-run", "--printshellcmds", *PROFILE, "--configfile", STUDY
    )
    blocks = [block for block in shown.split("\n\n") if re.search(r"rule train\w*:", block)]
    jobs = []
    for block in blocks:
        rule = re.search(r"rule (\w+):", block)
        asked = re.search(r"resources: (.*)", block)
        command = re.search(r"Shell command: (.*)", block)
        assert rule and asked and command
        if "/r0/" not in command[1]:
            continue
        wanted = ("nodes", "tasks", "mem_mb", "runtime", "slurm_extra", "mpi")
        pairs = (pair.partition("=") for pair in asked[1].split(", "))
        resources = ", ".join(f"{key}={value}" for key, _, value in pairs if key in wanted)
        jobs.append(f"{rule[1]}: {resources}\n  {command[1].strip()}\n")
    assert len(jobs) == 10
    hold(request, "bai2022-jobs.txt", "".join(sorted(jobs, key=lambda job: job.split("--spec")[1])))


def test_the_commands_of_the_ranks(project, request) -> None:
    stage = ("python", "-m", "pipeline", "commands", "--study", STUDY)
    shown = run(project, *stage, "--image", "images/samestep.sif")
    assert "apptainer exec --nv" in shown
    hold(request, "bai2022-commands.txt", shown)


def test_a_job_starts_what_the_commands_say() -> None:
    """The scheduler's part of a job is the start of the command that `commands` prints."""
    jobs = (GOLDEN / "bai2022-jobs.txt").read_text()
    printed = (GOLDEN / "bai2022-commands.txt").read_text()
    prefixes = set(re.findall(r" -- (srun .*)", jobs))
    starts = set(re.findall(r"^(srun .*?) apptainer exec", printed, re.MULTILINE))
    assert prefixes == starts and len(starts) == 1


def test_what_a_hub_has_is_fetched_where_the_network_is(project) -> None:
    """Beside Snakemake, or in the partition that the site file names for it."""
    corpus = {"source": "hub", "name": "a/b", "split": "train", "revision": 40 * "a", "column": "x"}
    study = {"extends": "workflow/config/bai2022/study.yaml", "study": "hub", "corpus": corpus}
    (project.folder / "hub.yaml").write_text(yaml.safe_dump(study))
    # A dry run does not show which rules are local.
    look = 'include: "Snakefile"\nprint("local:", "tokens" in workflow._localrules)\n'
    (project.folder / "look.smk").write_text(look)
    command = (
        *("snakemake", "results/hub/tokens/manifest.json", "--snakefile", "look.smk"),
        *("--dry-run", "--quiet", *PROFILE, "--configfile", "hub.yaml"),
    )
    site = project.folder / "workflow/site.yaml"
    example = site.read_text()
    try:
        for line, local in (("", True), ("network_partition: with-network\n", False)):
            site.write_text(example + line)
            assert f"local: {local}" in run(project, *command)
    finally:
        site.write_text(example)


def test_an_image_that_cannot_draw_still_trains(project) -> None:
    """Its base keeps an older NumPy: said in one line, and only training is started inside."""
    lock = project.folder / "images/samestep.json"
    whole = lock.read_text()
    facts = json.loads(whole) | {"versions": {"unmet": ["pandas needs numpy>=2"]}}
    inside = ("--cores", "1", "--use-singularity")
    command = ("snakemake", "--dry-run", *inside, "--configfile", "tiny.yaml", "--summary")
    try:
        lock.write_text(json.dumps(facts))
        said = run(project, *command, both=True)
    finally:
        lock.write_text(whole)
    assert "only the training runs, the other stages run on this machine: pandas needs" in said


def test_a_site_has_its_own_way_before_an_image_exists_and_by_a_copied_profile(
    project, tmp_path
) -> None:
    """Only a real start needs the image.

    Snakemake finds the project's own profile too, which leaves its trigger `software-env` out.
    """
    shutil.copy(project.folder / "workflow/profiles/slurm/config.yaml", tmp_path)
    images, site = project.folder / "images", project.folder / "workflow/site.yaml"
    example = site.read_text()
    images.rename(project.folder / "no-images")
    command = ("snakemake", "--dry-run", "--printshellcmds", "--profile", str(tmp_path),
               "--configfile", STUDY)  # fmt: skip
    own = {"partition": "gpu", "account": "me", "qos": "long", "max_minutes": 60}
    try:
        site.write_text(yaml.safe_dump(yaml.safe_load(example) | own | {"gpus": "--gres=gpu:N"}))
        shown = run(project, *command, both=True)
        assert "there is no image" in shown and "profiles/default for setting" in shown
        site.unlink()
        with pytest.raises(
            AssertionError, match=r"error: there is no workflow/site.yaml, .*; copy"
        ):
            run(project, *command)
    finally:
        site.write_text(example)
        (project.folder / "no-images").rename(images)
    for asked in ("slurm_partition=gpu", "slurm_account=me", "qos=long", "gres=gpu:4"):
        assert asked in shown
    assert "--gres=gpu:4 --cpu-bind=none" in shown and "runtime=60" in shown
    assert "slurm_extra=--exclusive --signal=B:USR1@120" in shown
