"""The real image for tests: `make image` on a Debian base, built once for a state of the sources.

The base is made by mmdebstrap, so no registry is asked. The result is kept in .cache/test-image and
used again until something that the image is made of changes. SAMESTEP_TEST_IMAGE=FOLDER names a
folder with a samestep.sif and samestep.json to take instead.

What this machine tells pip (its configuration files and PIP_* variables: a mirror, local wheels, a
certificate) is handed to the build as mounts; the Dockerfile knows nothing of it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from envs import build_image
from envs.horovod_target import cache_folder
from envs.image.builders import Buildah, Recipe
from tests.programs import ran

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "test-image"
BASE = "localhost/samestep-test-base:bookworm"
DEBIAN = "deb.debian.org"
LEND_KEY = (
    "{ cat /etc/os-release; c++ --version; cat /usr/include/nccl.h 2>/dev/null || :; }"
    " | sha256sum | cut -c1-16"
)
LEND = (
    "RUN --mount=type=cache,target=/var/cache/samestep"
    " --mount=type=bind,source=lent,target=/lent cp -r --no-clobber /lent/. /var/cache/samestep/"
)
APEX_BASE = "localhost/samestep-test-apex:bookworm"
SITE = "/usr/local/lib/python3.11/dist-packages"
OF_THE_BASE = f"""FROM {BASE}
RUN python3 -m venv /tmp/venv && /tmp/venv/bin/pip install --no-cache-dir --no-compile \\
    --target {SITE} torch==2.13.0 numpy==1.26.4
COPY older.py /tmp/
RUN python3 /tmp/older.py {SITE} && rm -rf /tmp/venv /tmp/older.py
"""
OLDER = Path(__file__).with_name("older_torch.py")
STANDIN = Path(__file__).with_name("singularity_standin.py")


@dataclass(frozen=True)
class Image:
    """An image file and what samestep.json says about it."""

    file: Path
    facts: dict[str, Any]

    def put_into(self, checkout: Path) -> None:
        """Lay it where `make image` leaves its image."""
        (checkout / "images").mkdir()
        (checkout / "images/samestep.sif").symlink_to(self.file)
        (checkout / "images/samestep.json").write_text(json.dumps(self.facts))


def read_image(folder: Path) -> Image:
    """The image that `make image` left in `folder`."""
    facts = json.loads((folder / build_image.FACTS).read_text())
    return Image((folder / build_image.IMAGE).resolve(), facts)


def why_no_build() -> str | None:
    """Why no image can be built here, or None."""
    if os.geteuid() != 0:
        return "building on a base of mmdebstrap needs root"
    for program, package in [
        ("buildah", "buildah"),
        ("mmdebstrap", "mmdebstrap"),
        ("mksquashfs", "squashfs-tools"),
    ]:
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian package {package})"
    try:
        socket.create_connection((DEBIAN, 80), timeout=10).close()
    except OSError as error:
        return f"no network: {DEBIAN} cannot be reached ({error})"
    return None


def make_base() -> None:
    """Import a small Debian with Python as BASE, unless Buildah has it already."""
    inspect = ["buildah", "inspect", "--type", "image", BASE]
    if subprocess.run(inspect, capture_output=True).returncode != 0:
        with tempfile.TemporaryDirectory() as folder:
            tar = f"{folder}/base.tar"
            packages = "--include=python3,python3-venv,ca-certificates"
            run("mmdebstrap", "--variant=minbase", packages, "bookworm", tar)
            container = run("buildah", "from", "scratch")
            run("buildah", "add", "--quiet", container, tar, "/")
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            run("buildah", "config", "--env", path, "--cmd", "bash", container)
            run("buildah", "commit", "--quiet", "--rm", "--timestamp", "0", container, BASE)


def lend_horovod() -> None:
    """Put the wheel that `make setup` compiled into the builder's cache, where an image finds it.

    The key is that of envs/image/3-horovod.sh: the wheel of another system or compiler is none for
    the image, which then compiles its own, for minutes.
    """
    key = run("sh", "-c", LEND_KEY)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(cache_folder() / "wheels", Path(folder, "lent", key, "wheels"))
        Path(folder, "Dockerfile").write_text(f"FROM {BASE}\n{LEND}\n")
        isolation = ("--isolation", "chroot", "--quiet", "--no-cache")
        run("buildah", "build", *isolation, "--tag", "localhost/samestep-lent", folder)


def versions_on_an_older_torch() -> dict[str, Any]:
    """Contents of an image on a stand-in for NVIDIA's 25.04; kept like the image's facts.

    That base has an own, older torch, NumPy 1 and an Apex with `amp`. The image is not packed.
    """
    options = tuple(site_options(CACHE))
    inputs = build_image.inputs_digest(ROOT, OF_THE_BASE, OLDER.read_text(), *options)
    kept = CACHE / "apex.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if found.get("inputs_sha256") == inputs:
        return dict(found["versions"])
    if reason := why_no_build():
        pytest.skip(reason)
    make_base()
    lend_horovod()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        shutil.copy(OLDER, Path(folder, "older.py"))
        Path(folder, "Dockerfile").write_text(OF_THE_BASE)
        isolation = ("--isolation", "chroot", "--quiet", "--layers")
        run("buildah", "build", *isolation, *options, "--tag", APEX_BASE, folder)
        patch.setenv("BUILDAH_ISOLATION", "chroot")
        patch.chdir(ROOT)
        builder = Buildah()
        builder.build(Recipe(APEX_BASE, "", "", options, Path(folder, "log")))
        versions = builder.read(build_image.VERSIONS_FILE)
    kept.write_text(json.dumps({"inputs_sha256": inputs, "versions": json.loads(versions)}))
    return dict(json.loads(versions))


def run(*command: str) -> str:
    """Standard output of a command that must succeed."""
    done = ran(command)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout.strip()


def site_options(folder: Path) -> list[str]:
    """Options of `buildah build` that let pip inside do what it does on this machine.

    Its settings for every command, where variables win over files, become a pip.conf in
    `folder`, which is mounted as the local paths are that it names.
    """
    told: dict[str, str] = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", ":env:") and option != "config-file":
            told[option] = value.strip("'\"").replace("\\n", " ")
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} = {' '.join(value.split())}" for name, value in sorted(told.items())]
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines]) + "\n")
    words = [word.removeprefix("file://") for value in told.values() for word in value.split()]
    paths = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    # an index lies in a folder beside its files
    shown = sorted(path.parent if path.name == "simple" else path for path in paths)
    mounts = [f"{path}:{path}:ro" for path in shown]
    mounts.append(f"{(folder / 'pip.conf').resolve()}:/etc/pip.conf:ro")
    return [word for mount in mounts for word in ("--volume", mount)]


def make_image(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make image` into `folder`, with this machine's options."""
    settings = {
        "BASE_IMAGE": BASE,
        "BUILDER": "buildah",
        "BUILD_OPTIONS": " ".join(site_options(CACHE)),
        "PIP_ARGS": "",
        # works also inside a container, where an OCI runtime may not
        "BUILDAH_ISOLATION": "chroot",
    }
    command = [sys.executable, "-m", "envs.build_image", "--folder", str(folder)]
    environment = os.environ | settings
    return ran(command, cwd=ROOT, env=environment)


def is_current() -> bool:
    """Whether the kept image is the one of the sources as they are."""
    inputs = build_image.inputs_digest(ROOT, BASE, "", *site_options(CACHE))
    return build_image.is_current(CACHE, inputs)


@pytest.fixture(scope="session")
def image() -> Image:
    """A ready image; skips with the reason where none can be built."""
    ready = os.environ.get("SAMESTEP_TEST_IMAGE")
    if ready:
        return read_image(Path(ready))
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE.with_name("test-image.lock")):
        if not is_current():
            reason = why_no_build()
            if reason is not None:
                pytest.skip(reason)
            make_base()
            lend_horovod()
            done = make_image(CACHE)
            assert done.returncode == 0, done.stdout + done.stderr
    return read_image(CACHE)


def why_no_container() -> str | None:
    """Why the stand-in for `singularity` cannot run here, or None."""
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    done = ran(["unshare", *as_user, "--mount", "true"])
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else None


@pytest.fixture(scope="session")
def singularity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to put first on PATH: it holds a `singularity`, the real one where there is one."""
    real = shutil.which("apptainer") or shutil.which("singularity")
    if real:
        return Path(real).parent
    reason = why_no_container()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("singularity")
    (folder / "singularity").symlink_to(STANDIN)
    return folder
