"""The image that a run must be inside, and the command that enters it."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.doctor import probes
from pipeline.errors import LaunchError
from pipeline.machine import image
from pipeline.machine.site import PYXIS, Site
from pipeline.study.spec import RunSpec
from tests.fake_records import shipped
from tests.programs import ran, stand_in

ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.fixture
def run() -> RunSpec:
    return shipped("smoke").spec


@pytest.fixture
def built(tmp_path) -> Path:
    file = tmp_path / "samestep.sif"
    file.write_bytes(b"image")
    file.with_suffix(".json").write_text(json.dumps({"image_digest": ONE}))
    return file


def be_inside(monkeypatch, tmp_path, digest: str) -> None:
    file = tmp_path / "digest"
    file.write_text(digest + "\n")
    monkeypatch.setattr(image, "DIGEST_FILE", file)


def test_the_file_beside_the_image_says_what_must_be_found(run, built) -> None:
    assert image.digest_from_within() is None
    assert image.required_digest(run, None) is None
    assert image.required_digest(run, built) == ONE
    assert image.required_digest(replace(run, image_digest=ONE), built) == ONE
    assert image.required_digest(replace(run, image_digest=ONE), None) == ONE
    with pytest.raises(LaunchError, match=f"the study is for image {OTHER}.* is {ONE}"):
        image.required_digest(replace(run, image_digest=OTHER), built)
    built.with_suffix(".json").write_text("{")
    with pytest.raises(LaunchError, match=r"no readable samestep.json .*`make image`"):
        image.required_digest(run, built)
    with pytest.raises(LaunchError, match=r"no image .*absent.sif; run `make image`"):
        image.facts(built.with_name("absent.sif"))


def test_inside_the_image_its_own_file_may_be_out_of_sight(
    monkeypatch, tmp_path, run, built
) -> None:
    """`images/samestep.sif` is a link to where the runtime mounts nothing."""
    built.unlink()
    built.symlink_to("/nowhere/samestep.sif")
    with pytest.raises(LaunchError, match="no image"):
        image.required_digest(run, built)
    be_inside(monkeypatch, tmp_path, ONE)
    assert image.required_digest(run, built) == ONE


def test_a_run_is_inside_its_image_alone(monkeypatch, tmp_path) -> None:
    image.check_inside(None)
    with pytest.raises(LaunchError, match=f"inside image {ONE}, this process is on the host"):
        image.check_inside(ONE)
    be_inside(monkeypatch, tmp_path, OTHER)
    with pytest.raises(LaunchError, match=f"inside image {ONE}, this one is {OTHER}"):
        image.check_inside(ONE)
    image.check_inside(OTHER)
    image.check_inside(None)


def runtime(monkeypatch, tmp_path, name: str) -> None:
    monkeypatch.setenv("PATH", str(stand_in(tmp_path / "bin" / name).parent))


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_the_runtime_that_is_there_enters_it(monkeypatch, tmp_path, name) -> None:
    runtime(monkeypatch, tmp_path, name)
    here = Path.cwd()
    inside = here / "results"
    folders, file = [inside, Path("/scratch/x")], Path("i.sif")
    command = image.enter(file, Site(), device="cpu", folders=folders)
    assert command == (
        name, "exec", "--home", str(here), "--pwd", str(here), "--bind", "/scratch/x", "i.sif"
    )  # fmt: skip
    monkeypatch.setenv("USER", "me")
    site = Site(binds=("/opt/fabric:/opt:ro",), options=("--no-mount=tmp",), scratch="/s/$USER")
    words = image.enter(file, site, device="cpu", folders=folders)
    bound = "/opt/fabric:/opt:ro,/s/me,/scratch/x"
    assert words[-4:] == ("--bind", bound, "--no-mount=tmp", "i.sif")


def test_gpus_come_with_their_driver_and_without_a_runtime_nothing_runs(
    monkeypatch, tmp_path
) -> None:
    runtime(monkeypatch, tmp_path, "apptainer")
    command = image.enter(Path("i.sif"), Site(), device="cuda", folders=[])
    assert command[:3] == ("apptainer", "exec", "--nv") and "--bind" not in command
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="neither apptainer nor singularity is on the PATH"):
        image.enter(Path("i.sif"), Site(), device="cpu", folders=[])


RECORDS = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
json.dump(words, open(os.environ["RECORD"], "w"))
while words[0].startswith("--"):
    words.pop(0)
os.execvp(words[0], words)
"""
"""A `srun` that writes down its arguments and runs what is to run in the container."""


def test_pyxis_gets_image_mounts_and_options_and_the_site_s_variables(
    monkeypatch, tmp_path, built
) -> None:
    stand_in(tmp_path / "srun", RECORDS)
    variables = {"NCCL_IB_HCA": "a,b", "ODD": 'it\'s $HOME; "x"', "LD_LIBRARY_PATH": "/opt/fabric"}
    site = Site(
        runtime=PYXIS, binds=("/opt/fabric",), options=("--container-writable",)
    )  # fmt: skip
    folders = [Path("/scratch/x")]
    enter = image.enter(built, site, device="cuda", folders=folders, variables=variables)
    given = {"RECORD": str(tmp_path / "record"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    inside = ran(
        ["srun", "--nodes=2", *enter, "env"],
        check=True,
        env=given | {"LD_LIBRARY_PATH": "/driver", "NCCL_IB_HCA": "of the image"},
    ).stdout.splitlines()
    here = Path.cwd()
    words = json.loads((tmp_path / "record").read_text())
    assert words[:6] == [
        "--nodes=2", f"--container-image={built}",
        f"--container-mounts={here}:{here},/opt/fabric:/opt/fabric,/scratch/x:/scratch/x",
        f"--container-workdir={here}", "--no-container-mount-home", "--container-writable",
    ]  # fmt: skip
    expected = variables | {"LD_LIBRARY_PATH": "/opt/fabric:/driver", "HOME": str(here)}
    assert {f"{name}={value}" for name, value in expected.items()} <= {*inside}
    facts = {"image_digest": ONE, "format": "sif"}
    built.with_suffix(".json").write_text(json.dumps(facts))
    with pytest.raises(LaunchError, match="is a SIF, which pyxis cannot read; build it by"):
        image.enter(built, site, device="cpu", folders=[])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"base_image": "python:3.12"}, "base python:3.12 is not pinned"),
        ({"base_image": "python:3.12", "base_digest": "sha256:1"}, "=python:3.12@sha256:1 does"),
        ({"base_image": "python@sha256:" + "a" * 64}, None),
        ({}, None),  # an earlier version built it
        ({"versions": {"strategies": {"ddp": None, "sharded": "old torch"}}}, "out sharded: old"),
    ],
)
def test_the_doctor_says_what_an_image_lacks(built, monkeypatch, facts, message) -> None:
    built.with_suffix(".json").write_text(json.dumps({"image_digest": ONE, **facts}))
    monkeypatch.setattr(probes, "IMAGE", built)
    words = probes.image().text
    assert words.endswith(ONE) if message is None else message in words
