"""The stand-in for `singularity` keeps to what tests rely on, as root and as another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.image import STANDIN, why_no_container

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(why_no_container() is not None, reason=str(why_no_container())),
]
PROGRAMS = ("sh", "id", "touch", "cat", "env")
Run = Callable[..., subprocess.CompletedProcess[str]]


def open_to_all(folder: Path) -> None:
    """Let every user into a folder of the tests and those above it, which pytest closes."""
    temporary = Path(tempfile.gettempdir())
    for one in (folder, *folder.parents):
        if temporary in one.parents:
            one.chmod(0o755)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest image: a few of this machine's programs with their libraries."""
    top = tmp_path_factory.mktemp("rootfs") / "root"
    for program in PROGRAMS:
        path = shutil.which(program, path="/usr/bin:/bin")
        assert path is not None
        shown = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        libraries = [word for word in shown.split() if word.startswith("/")]
        for source, place in [(path, f"/bin/{program}"), *((lib, lib) for lib in libraries)]:
            (top / place[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, top / place[1:])
    (top / "opt").mkdir()
    (top / "opt" / "name").write_text("of the image\n")
    environment = top / ".singularity.d" / "env" / "10-docker2singularity.sh"
    environment.parent.mkdir(parents=True)
    environment.write_text("export PATH=/bin\nexport FROM_IMAGE=yes\n")
    open_to_all(top)
    return top


@pytest.fixture(scope="module")
def squashfs(root: Path) -> Path:
    """The same as a file."""
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not installed (Debian package squashfs-tools)")
    target = root.with_name("image.sif")
    command = ["mksquashfs", str(root), str(target), "-quiet", "-no-progress", "-no-xattrs"]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(params=["root", "user"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Call the stand-in as root, or as the user 1234."""
    home = tmp_path / "home"
    home.mkdir()
    prefix: list[str] = []
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    if request.param == "user" and os.geteuid() == 0:
        os.chown(home, 1234, 1234)
        open_to_all(home.parent)
        prefix = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"]

    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home), **variables}
        return subprocess.run(
            [*prefix, python, str(STANDIN), *arguments],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
        )

    return call


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command_runs_in_the_image_as_its_caller(run, root, squashfs, tmp_path) -> None:
    assert good(run("--version")).startswith("singularity version 3."), "which Snakemake takes"
    script = "id -u; cat /opt/name; echo $PATH $FROM_IMAGE $MINE; pwd; exit 7"
    home = tmp_path / "home"
    for image in (root, squashfs):
        done = run("exec", str(image), "sh", "-c", script, MINE="kept")
        owner = str(home.stat().st_uid)
        assert done.stdout.splitlines() == [owner, "of the image", "/bin yes kept", str(home)]
        assert done.returncode == 7


def test_the_caller_wins_over_the_image_and_the_image_over_the_host(run, root) -> None:
    ask = (str(root), "sh", "-c", "echo $FROM_IMAGE")
    assert good(run("exec", *ask, FROM_IMAGE="of the host")) == "yes\n"
    assert good(run("exec", *ask, APPTAINERENV_FROM_IMAGE="mine")) == "mine\n"
    assert good(run("exec", "--env", "FROM_IMAGE=mine", *ask)) == "mine\n"


def test_the_image_is_read_only_and_what_is_bound_is_as_asked_for(run, root, tmp_path) -> None:
    home = tmp_path / "home"
    assert "Read-only file system" in run("exec", str(root), "touch", "/opt/new").stderr
    good(run("exec", "--home", str(home), str(root), "touch", f"{home}/made"))
    assert (home / "made").stat().st_uid == home.stat().st_uid
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("bound\n")
    binds = f"{tmp_path}/data:/data/deep:ro,{tmp_path}/data/x:/opt/x"
    inside = "cat /data/deep/x /opt/x /opt/name; pwd; touch /data/deep/y"
    done = run("exec", "--bind", binds, "--pwd", "/data/deep", str(root), "sh", "-c", inside)
    assert done.stdout.splitlines() == ["bound", "bound", "of the image", "/data/deep"]
    assert "Read-only file system" in done.stderr


def test_what_cannot_be_is_fatal(run, root) -> None:
    for words in (
        ("exec", "/none.sif", "true"),
        ("exec", "--bind", "/none:/data", str(root), "true"),
        ("pull", "docker://x"),
    ):
        done = run(*words)
        assert (done.returncode, done.stderr[:6]) == (255, "FATAL:")
