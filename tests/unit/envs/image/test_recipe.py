"""The Dockerfile and the Apptainer definition are one recipe, and a clean one."""

import re
import sys
from pathlib import Path

from envs import build_image
from tests.programs import ran

ROOT = Path(__file__).parents[4]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEFINITION = (ROOT / "envs" / "samestep.def").read_text()
STEPS = sorted((ROOT / "envs" / "image").glob("[0-9]-*.sh"))


def test_both_run_every_step_in_its_order() -> None:
    names = [step.name for step in STEPS]
    assert re.findall(r"^RUN .*sh envs/image/(\S+)$", DOCKERFILE, re.MULTILINE) == names
    assert "for step in envs/image/[1-5]-*.sh" in DEFINITION
    assert [name[0] for name in names] == list("12345")


def test_both_start_from_the_documented_base() -> None:
    (of_docker,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    (of_apptainer,) = re.findall(r"^\s+BASE_IMAGE=(\S+)$", DEFINITION, re.MULTILINE)
    assert of_docker == of_apptainer == build_image.BASE_IMAGE


def test_all_that_the_dockerfile_copies_makes_an_image_stale_and_is_sent() -> None:
    copies = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    tops = {source.split("/")[0] for line in copies for source in line.split()}
    assert tops <= set(build_image.SOURCES)
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert set(sent) == tops


def test_editing_the_project_compiles_nothing_anew() -> None:
    assert DOCKERFILE.index("3-horovod.sh envs/image/\nRUN") < DOCKERFILE.index("COPY pipeline")
    before = DOCKERFILE[: DOCKERFILE.index("COPY pipeline")]
    assert not re.search(r"^COPY (\.|envs) ", before, re.MULTILINE)
    assert "ARG GIT_COMMIT" not in before


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = ran([str(hadolint), str(ROOT / "Dockerfile")])
    assert (done.returncode, done.stdout) == (0, "")
