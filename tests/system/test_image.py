"""The real image: built twice, packed, run."""

import json
import os
import sys
from pathlib import Path

import pytest

from envs.build_horovod import sha256_of
from envs.build_image import DIGEST_FILE, git_commit
from envs.image.builders import Buildah, Recipe
from pipeline.schemas import validate
from tests.system.image import (
    BASE,
    CACHE,
    ROOT,
    Image,
    run,
    site_options,
    versions_on_an_older_torch,
    why_no_build,
)

REPEATED = CACHE / "repeated.json"
"""Facts of a second build, so that an unchanged image is not built a third time."""


def in_namespace(image: Image, *command: str) -> str:
    """Output of `command` with the image's file system, mounted read-only, at /mnt."""
    script = 'mount -t squashfs -o loop,ro "$1" /mnt && shift && exec "$@"'
    unshare = ["unshare", "--mount", "sh", "-c", script, "sh", str(image.file)]
    return run(*unshare, *command)


def test_the_facts_are_those_of_the_file(image: Image) -> None:
    validate(image.facts, "image", "samestep.json")
    assert image.facts["file_sha256"] == f"sha256:{sha256_of(image.file)}"
    assert image.facts["file_bytes"] == image.file.stat().st_size
    versions = image.facts["versions"]
    assert versions["torch"].partition("+")[0] == "2.13.0"
    assert versions["horovod"].startswith("0.28.1+torch2.13.0")
    assert versions["apex"] is None, "Debian has no Apex"
    assert {*versions["strategies"]} >= {"ddp", "deepspeed", "horovod"}
    assert {*versions["strategies"].values()} == {None}, "on this base each took its steps"


def test_the_digest_inside_is_that_of_what_is_inside(image: Image) -> None:
    if os.geteuid() != 0 or image.facts["format"] != "squashfs":
        pytest.skip("only root may mount the squashfs file")
    written = in_namespace(image, "cat", "/mnt/etc/samestep-image-digest")
    assert written == image.facts["image_digest"]
    # where the build had mounts, the image holds an empty place
    places = [mount.split(":")[1] for mount in site_options(CACHE) if mount.endswith(":ro")]
    without = [word for place in places for word in ("--without", place)]
    command = [sys.executable, "-m", "envs.image.content_digest", "/mnt", *without]
    assert in_namespace(image, *command) == written


def test_two_builds_are_one_image(image: Image, tmp_path: Path, monkeypatch) -> None:
    """Horovod's wheel comes from the builder's cache; every other step runs anew.

    That equal files are packed into equal bytes is a matter of `unit/envs/image/test_squashfs.py`.
    """
    inputs = image.facts["inputs_sha256"]
    second = json.loads(REPEATED.read_text()) if REPEATED.exists() else {}
    if second.get("inputs_sha256") != inputs:
        if reason := why_no_build():
            pytest.skip(reason)
        monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
        monkeypatch.chdir(ROOT)
        builder, commit = Buildah(), git_commit(ROOT) or ""
        options = (*site_options(CACHE), "--no-cache")
        built = builder.build(Recipe(BASE, commit, "", options, tmp_path / "log"))
        config = json.loads(run("buildah", "inspect", "--type", "image", built))["OCIv1"]["config"]
        assert config["User"] == "1000"
        assert config["Labels"]["org.opencontainers.image.revision"] == (commit or "unknown")
        assert config["Labels"]["org.opencontainers.image.base.name"] == BASE
        second = {"inputs_sha256": inputs, "image_digest": builder.read(DIGEST_FILE).strip()}
        # The label names the commit: of another one only what is inside can be compared.
        second |= {"oci_digest": built} if commit == image.facts["git_commit"] else {}
        REPEATED.write_text(json.dumps(second))
    assert second == {key: image.facts[key] for key in second}


def test_on_a_base_with_an_older_torch_it_states_what_that_lacks() -> None:
    """As the image `apex`, on a stand-in for its base: all other strategies took their steps."""
    versions = versions_on_an_older_torch()
    assert (versions["numpy"], versions["apex"]) == ("1.26.4", "unknown"), "those of the base"
    assert any("pandas needs numpy>=2" in one for one in versions["unmet"])
    reasons = versions["strategies"]
    lacking = {name: reason for name, reason in reasons.items() if reason is not None}
    assert {*lacking} == {"sharded", "pipeline_parallel", "hybrid"}
    assert {*reasons} - {*lacking} >= {"ddp", "horovod", "parameter_server", "deepspeed", "tensor"}
    assert all("or the image `current`" in reason for reason in lacking.values())


@pytest.mark.usefixtures("image")  # which makes the base
def test_steps_from_the_cache_name_the_commit_of_this_build(tmp_path, monkeypatch) -> None:
    if reason := why_no_build():
        pytest.skip(reason)
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    last = "\n".join(lines[lines.index("ARG BASE_IMAGE") :])
    recipe = tmp_path / "Labels"
    recipe.write_text(f"FROM {BASE}\n{last.replace('sh envs/image/5-seal.sh', 'true')}\n")
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    monkeypatch.chdir(tmp_path)

    def build(commit: str, *options: str) -> str:
        given = ("--file", str(recipe), *options)
        return Buildah().build(Recipe(BASE, commit, "", given, tmp_path / "log"))

    for commit in ("first", "second", "first"):
        built = build(commit)
        labels = json.loads(run("buildah", "inspect", "--type", "image", built))["OCIv1"]["config"]
        assert labels["Labels"]["org.opencontainers.image.revision"] == commit
        assert build(commit, "--no-cache") == built


def test_nccl_finds_its_libraries_for_infiniband_inside(image, singularity, tmp_path) -> None:
    """Runs inside, and what their records say of it, are in `test_slurm_in_image.py`."""
    names = (singularity / name for name in ("apptainer", "singularity"))
    program = next(path for path in names if path.exists())
    options = ("exec", "--home", str(tmp_path), "--bind", f"{ROOT},{tmp_path}", "--pwd", str(ROOT))
    probe = "from pipeline.doctor import probes; print(probes.rdma().status)"
    assert run(str(program), *options, str(image.file), "python", "-c", probe) == "ok"
