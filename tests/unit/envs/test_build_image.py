import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from envs import build_horovod, build_image
from envs.build_image import choose, inputs_digest, is_current
from envs.image.builders import ImageError
from pipeline.schemas import validate
from tests.programs import stand_in

SHA = f"sha256:{64 * '0'}"
VERSIONS: dict[str, object] = {
    "python": "3.12.3", "torch": "2.7.0", "cuda": "12.9", "numpy": "1.26.4",
    "horovod": "0.28.1+torch2.7.0.nccl.p1", "horovod_operations": "nccl", "apex": "0.1",
    "samestep": "0.1.0", "unmet": ["pandas needs numpy>=2.0.2; the image holds 1.26.4"],
}  # fmt: skip
FAKE_DOCKER = """#!/bin/sh
echo "$@" >>"$CALLS"
case $1-$2 in
version-*) echo "${SERVER-27.0}" ;;
buildx-version) exit ${BUILDX:-0} ;;
buildx-build) case "$*" in *broken*) echo "error: it broke" >&2; exit 1 ;; esac ;;
image-inspect) case $4 in
    {{*Id*) echo "$SHA" ;; {{*Env*) echo '["PATH=/usr/bin"]' ;;
    {{*Digests*) [ -z "$LOCAL" ] && echo '["python@'$SHA'"]' || echo '[]' ;;
    esac
    case $3 in gone) exit 1 ;; esac ;;
pull-*) echo "Error: no such host" >&2; exit 1 ;;
create-*) echo c1 ;;
cp-*) case $2 in
    */.singularity.d) cp -r "$2" "$ROOTFS" ;;
    *digest) echo "$SHA" >"$3" ;;
    *) echo "$VERSIONS" >"$3" ;;
    esac ;;
export-*) [ -z "$ENDLESS" ] || while :; do echo more; done
    tar -cf - -C "$ROOTFS" . ;;
esac
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of this folder alone, with the few plain tools that the fakes need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "tar", "cp", "git", "env"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))
    for name in ("BASE_IMAGE", "BUILDER", "BUILD_OPTIONS", "PIP_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something under every name that goes into an image."""
    folder = tmp_path / "project"
    for name in build_image.SOURCES:
        path = folder / name if "." in name or name[0].isupper() else folder / name / "file.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return folder


@pytest.fixture
def docker(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Docker, with the real mksquashfs; returns the log of its calls."""
    mksquashfs = shutil.which("mksquashfs", path=os.defpath)
    if mksquashfs is None:
        pytest.skip("mksquashfs is not installed (Debian package squashfs-tools)")
    (tools / "mksquashfs").symlink_to(mksquashfs)
    stand_in(tools / "docker", FAKE_DOCKER)
    (tmp_path / "rootfs" / "etc").mkdir(parents=True)
    (tmp_path / "rootfs" / "etc" / "name").write_text("in the image\n")
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("ROOTFS", str(tmp_path / "rootfs"))
    monkeypatch.setenv("SHA", SHA)
    monkeypatch.setenv("VERSIONS", json.dumps(VERSIONS))
    return calls


def facts_of(project: Path) -> dict[str, Any]:
    """Facts of a build about its image."""
    facts: dict[str, Any] = json.loads((project / "images" / "samestep.json").read_text())
    validate(facts, "image", "samestep.json")
    return facts


DEAF_DOCKER = "#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n"


def test_the_first_builder_that_works_is_taken_or_the_one_asked_for(tools, monkeypatch) -> None:
    monkeypatch.setenv("CALLS", os.devnull)
    stand_in(tools / "docker", DEAF_DOCKER)
    with pytest.raises(ImageError) as caught:
        choose("")
    for words in (
        "docker is installed, but docker version failed: Cannot connect to the daemon",
        "buildah is not installed", "apptainer is not installed",
        "apt-get install buildah squashfs-tools",
    ):  # fmt: skip
        assert words in str(caught.value)
    stand_in(tools / "apptainer")
    assert choose("").name == "apptainer"
    stand_in(tools / "buildah")
    assert choose("").name == "buildah"
    stand_in(tools / "docker", FAKE_DOCKER)
    assert choose("").name == "docker"
    assert choose("apptainer").name == "apptainer"
    (tools / "docker").unlink()
    with pytest.raises(ImageError, match="docker is not installed"):
        choose("docker")
    with pytest.raises(ImageError, match="BUILDER=kaniko is unknown; expected one of docker"):
        choose("kaniko")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("BUILDX", "1", "docker is installed, but without BuildKit.*docker-buildx"),
        # some versions end well and say nothing where the engine cannot be reached
        ("SERVER", "", "docker is installed, but no engine answers"),
    ],
)
def test_a_docker_that_cannot_build_is_passed_over(
    tools, monkeypatch, variable, value, told
) -> None:
    monkeypatch.setenv("CALLS", os.devnull)
    monkeypatch.setenv(variable, value)
    stand_in(tools / "docker", FAKE_DOCKER)
    with pytest.raises(ImageError, match=told):
        choose("docker")
    stand_in(tools / "buildah")
    assert choose("").name == "buildah"


def test_a_missing_packer_is_named_before_anything_is_built(tools, project, capsys) -> None:
    stand_in(tools / "buildah")
    stand_in(tools / "apptainer")  # has an mksquashfs of its own, for its own images
    assert build_image.main([]) == 2
    assert "mksquashfs is not installed" in capsys.readouterr().err
    assert not (project / "images" / "build.log").exists()


def test_an_image_of_the_same_inputs_is_not_built_again(docker, project, capsys) -> None:
    assert build_image.main([]) == 0
    facts = facts_of(project)
    assert facts["versions"] == VERSIONS
    assert (facts["builder"], facts["format"], facts["git_commit"]) == ("docker", "squashfs", None)
    assert facts["file_bytes"] == (project / "images" / "samestep.sif").stat().st_size
    before = docker.read_text()
    assert build_image.main([]) == 0
    assert docker.read_text() == before
    assert "up to date" in capsys.readouterr().out
    assert build_image.main(["--force"]) == 0
    assert docker.read_text().count("buildx build ") == 2
    assert facts_of(project) == facts
    assert {path.name for path in (project / "images").iterdir()} == {
        *("samestep.sif", "samestep.json", "build.log", ".lock")
    }


def test_a_packer_that_ends_early_ends_the_build(
    docker, project, tools, monkeypatch, capsys
) -> None:
    (tools / "mksquashfs").unlink()
    stand_in(tools / "mksquashfs", "#!/bin/sh\necho 'No space left on device' >&2\nexit 1\n")
    monkeypatch.setenv("ENDLESS", "yes")
    assert build_image.main([]) == 2
    assert "packing the image failed" in capsys.readouterr().err
    assert "No space left" in (project / "images" / "build.log").read_text()
    assert docker.read_text().splitlines()[-1] == "rm c1"


def test_apptainer_alone_builds_from_its_own_definition(
    tools: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """#!/bin/sh
case $1 in
build) for last; do before=$target target=$last; done
    [ "$last$SOURCE_DATE_EPOCH" = envs/samestep.def0 ] && echo "$@" >"$before" ;;
exec) case $4 in *digest) echo "$SHA" ;; *) echo "$VERSIONS" ;; esac ;;
esac
"""
    stand_in(tools / "apptainer", script)
    monkeypatch.setenv("SHA", SHA)
    monkeypatch.setenv("VERSIONS", json.dumps(VERSIONS))
    monkeypatch.setenv("BASE_IMAGE", "debian:12")
    assert build_image.main([]) == 0
    facts = facts_of(project)
    assert (facts["builder"], facts["format"], facts["oci_digest"]) == ("apptainer", "sif", None)
    assert "--build-arg BASE_IMAGE=debian:12" in (project / "images" / "samestep.sif").read_text()


@pytest.mark.parametrize(("local", "known"), [("", SHA), ("1", None)])
def test_the_digest_of_a_base_that_a_registry_gave_is_kept(
    docker: Path, project: Path, monkeypatch: pytest.MonkeyPatch, local: str, known: str | None
) -> None:
    """An image that was made on this machine has none."""
    monkeypatch.setenv("LOCAL", local)
    assert build_image.main([]) == 0
    facts = facts_of(project)
    assert facts["base_digest"] == known


def test_options_reach_the_builder_as_words(docker, project, monkeypatch) -> None:
    monkeypatch.setenv("BUILD_OPTIONS", "--network host --label 'a=$(id) b'")
    monkeypatch.setenv("BASE_IMAGE", "debian:12")
    monkeypatch.setenv("PIP_ARGS", "--index-url https://example.org/simple")
    assert build_image.main([]) == 0
    (build,) = [
        line for line in docker.read_text().splitlines() if line.startswith("buildx build ")
    ]
    assert "--network host --label a=$(id) b ." in build
    assert "--build-arg BASE_IMAGE=debian:12" in build
    assert "--build-arg PIP_ARGS=--index-url https://example.org/simple" in build


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"BASE_IMAGE": "gone"}, ["Error: no such host", "BASE_IMAGE=python:3.12-bookworm"]),
        ({"BUILD_OPTIONS": "--broken"}, ["error: it broke", "build.log"]),
        ({"BUILD_OPTIONS": "'"}, ["BUILD_OPTIONS=': No closing quotation"]),
    ],
)
def test_a_failed_build_is_one_line_and_leaves_the_last_image(
    docker, project, monkeypatch, capsys, settings, told
) -> None:
    images = project / "images"
    images.mkdir()
    (images / "samestep.sif").write_text("the last one")
    (images / "samestep.json").write_text("{}")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert build_image.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert all(text in line for text in told), line
    assert (images / "samestep.sif").read_text() == "the last one"
    assert not [path for path in images.iterdir() if path.name.endswith(".new")]


def test_an_edited_source_or_setting_makes_an_image_stale(project: Path) -> None:
    before = inputs_digest(project, "base")
    assert inputs_digest(project, "base") == before
    assert inputs_digest(project, "another base") != before
    (project / "pipeline" / "__pycache__").mkdir()
    (project / "pipeline" / "__pycache__" / "file.pyc").touch()
    assert inputs_digest(project, "base") == before
    (project / "pipeline" / "file.py").write_text("edited")
    assert inputs_digest(project, "base") != before


def test_a_damaged_image_is_not_current(tmp_path: Path) -> None:
    image = tmp_path / "samestep.sif"
    image.write_text("whole")
    facts = {"inputs_sha256": SHA, "file_sha256": f"sha256:{build_horovod.sha256_of(image)}"}
    (tmp_path / "samestep.json").write_text(json.dumps(facts))
    assert is_current(tmp_path, SHA)
    image.write_text("w")
    assert not is_current(tmp_path, SHA)
    (tmp_path / "samestep.json").write_text("{")
    assert not is_current(tmp_path, SHA)


def test_each_of_the_two_images_has_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IMAGE", "BASE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    assert build_image.parse([]).base_image == build_image.BASES["current"]
    monkeypatch.setenv("IMAGE", "apex")
    assert build_image.parse([]).base_image.endswith("pytorch:25.04-py3")
    monkeypatch.setenv("BASE_IMAGE", "debian:12")
    assert build_image.parse([]).base_image == "debian:12"
    monkeypatch.setenv("IMAGE", "apx")
    with pytest.raises(SystemExit):
        build_image.parse([])
