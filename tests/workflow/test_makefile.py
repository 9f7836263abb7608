"""What a person gives to make reaches a program as it is, and never a shell as text.

Nothing trains here: the workflow's script is one that writes down its arguments.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.project import Project, make_project

AWKWARD = 'it\'s a "new" $(touch made) $HOME `touch made` ü; touch made #.yaml'
NASTY = "x'; touch made; echo '\"; touch made; echo \"$(shell touch made)`touch made`"
STAND_IN = """#!/bin/sh
printf '%s\\n' "$@" >arguments.txt
"""


def a_project(folder: Path) -> Project:
    made = make_project(folder / "checkout")
    (made.folder / "envs/run_workflow.sh").write_text(STAND_IN)
    # Building Horovod is not what is tested.
    (made.folder / "envs/build_horovod.py").write_text("")
    for study in ("tiny", "smoke"):
        (made.folder / "results" / study).mkdir(parents=True)
    return made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return a_project(tmp_path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """One that every command must leave as it is."""
    made = a_project(tmp_path_factory.mktemp("kept"))
    yield made
    assert results(made) == ["smoke", "tiny"]
    assert not (made.folder / "arguments.txt").exists()


def make(project: Project, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = project.make(*arguments, **variables)
    assert not list(project.folder.rglob("made")), "a value was run as a command"
    return done


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr, besides that of make itself."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def results(project: Project) -> list[str]:
    return sorted(path.name for path in (project.folder / "results").iterdir())


@pytest.mark.parametrize("exported", [False, True])
def test_a_study_file_may_have_any_name(project: Project, exported: bool) -> None:
    project.study.rename(project.folder / AWKWARD)
    given = [] if exported else [f"STUDY={AWKWARD}"]
    variables = {"STUDY": AWKWARD} if exported else {}
    done = make(project, "paper", *given, **variables)
    assert done.returncode == 0, done.stderr
    passed = (project.folder / "arguments.txt").read_text().splitlines()
    assert AWKWARD in [argument.removeprefix("--configfile=") for argument in passed]
    assert "results/tiny/paper/paper.pdf" in done.stdout
    assert "tiny" in refusal(make(project, "archive", *given, **variables))


def test_no_variable_is_run(kept: Project) -> None:
    for words in (("paper", f"STUDY={NASTY}"), ("archive", f"STUDY={NASTY}")):
        assert "there is no study" in refusal(make(kept, *words))
    for given in (NASTY, ""):  # an empty one ran the default study
        refusal(make(kept, "paper", f"FROM={given}"))


@pytest.mark.parametrize("given", ["study=tiny", "V=1"])
def test_a_variable_that_is_none_runs_no_other_study(kept: Project, given: str) -> None:
    done = make(kept, "paper", given)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"no variable is called {given.partition('=')[0]}; use one of STUDY" in done.stderr


@pytest.mark.parametrize(
    ("given", "exported", "said"),
    [
        ("paper STUDY=tiny FROM=tiny.zip", {}, "STUDY FROM all name a study"),
        ("paper STUDY=tiny", {"FROM": "tiny.zip"}, "STUDY FROM all name a study"),
        ("studies STUDY=tiny", {}, "STUDY would do nothing with make studies"),
        ("test UPGRADE=1", {}, "UPGRADE would do nothing with make test"),
    ],
)
def test_a_variable_without_effect_is_not_ignored(kept, given, exported, said) -> None:
    done = make(kept, *given.split(), **exported)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.parametrize("name", ["PIPELINE", "SHELL"])
def test_the_makefile_s_own_variables_are_not_to_be_given(kept: Project, name: str) -> None:
    given = f"{name}=touch made; echo"
    assert make(kept, "archive", "STUDY=tiny", given).returncode == 2


def test_a_study_that_cannot_be_starts_no_workflow(project: Project) -> None:
    study = project.study.read_text()
    project.study.write_text(study.replace("repeats: 1\n", "repeats: 6.0\n"))
    assert "tiny.yaml" in refusal(make(project, "paper", "STUDY=tiny.yaml"))
    assert not (project.folder / "arguments.txt").exists()


def test_the_image_s_variables_are_data(project: Project) -> None:
    (project.folder / "envs/build_image.py").write_text(
        "import os, sys; print(os.environ['BASE_IMAGE'], os.environ['BUILDER'], sys.argv[1:])"
    )
    given = ("BASE_IMAGE=a'$(touch made)", "BUILDER=$(shell touch made)", "FORCE=--force")
    done = make(project, "image", *given)
    assert done.stdout == "a'$(touch made) $(shell touch made) ['--force']\n"


@pytest.mark.parametrize("given", ["STUDY=typo", "STUDY=", "STUDY=../results"])
def test_what_is_no_study_runs_none(kept: Project, given: str) -> None:
    refusal(make(kept, "paper", given))
