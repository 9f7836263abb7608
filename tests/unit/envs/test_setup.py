"""Set-up never clears an environment of another checkout, and says in one line what it lacks."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import ran, stand_in

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("is_linked", [True, False])
def test_what_set_up_cannot_do_is_one_line(tmp_path: Path, is_linked: bool) -> None:
    """An environment behind a symlink is not cleared for another checkout; no lock, no set-up."""
    other, here = tmp_path / "other" / ".venv", tmp_path / "here"
    (here / "envs").mkdir(parents=True)
    for name in ("setup.sh", "preflight.sh"):
        shutil.copy(ROOT / "envs" / name, here / "envs")
    said = "error: envs/requirements.lock is missing"
    if is_linked:
        (other / "bin").mkdir(parents=True)
        (other / ".home").write_text(f"{other.parent}\n")
        (here / "envs/requirements.lock").touch()
        (here / ".venv").symlink_to(other)
        said = f"error: .venv is a symlink to {other}, the environment of"
    done = ran(["sh", "envs/setup.sh", ".venv/.stamp"], cwd=here)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(said)
    assert (here / ".venv").exists() == is_linked == (other / "bin").is_dir()
    assert not (other / ".stamp").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is whole; its Python writes down what it is asked for."""
    made = tmp_path / "checkout"
    (made / ".venv" / "bin").mkdir(parents=True)
    (made / ".venv" / ".home").write_text(f"{made}\n")
    (made / "envs").mkdir()
    for name in ("setup.sh", "preflight.sh", "samestep"):
        shutil.copy(ROOT / "envs" / name, made / "envs")
    (made / "envs/requirements.lock").write_text("torch==1.0\n")
    stand_in(made / ".venv/bin/python", f'printf "%s\\n" "$*" >>{made}/calls')
    return made


def set_up(folder: Path, stamp: str = ".stamp-new") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PWD": str(folder), "PYTHON": str(folder / ".venv/bin/python")}
    command = ["sh", "envs/setup.sh", f".venv/{stamp}"]
    return ran(command, cwd=folder, env=environment)


def test_through_a_symlink_to_the_checkout_nothing_is_cleared(checkout: Path) -> None:
    link = checkout.with_name("link")
    link.symlink_to(checkout)
    done = set_up(link)
    assert done.returncode == 0, done.stderr
    calls = (checkout / "calls").read_text()
    assert "pip install" in calls and "--clear" not in calls
    assert (checkout / ".venv/.home").read_text() == f"{checkout}\n"


@pytest.mark.parametrize("lock", [8, 9])
def test_a_lock_that_cannot_be_had_is_no_environment_in_use(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: int
) -> None:
    """71 is what util-linux says of ENOLCK."""
    words = f'for last; do :; done; [ "$last" != {lock} ] || exit 71'
    program = stand_in(tmp_path / "bin/flock", words)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    done = set_up(checkout)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot be locked" in done.stderr and "in use" not in done.stderr
    assert "pip install" not in (checkout / "calls").read_text()


def test_an_environment_in_use_is_not_changed(checkout: Path) -> None:
    lock = checkout / ".snakemake/samestep.lock"
    lock.parent.mkdir()
    lock.write_text("process 7 on here since noon: snakemake --cores 2\n")
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = set_up(checkout)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "process 7 on here since noon: snakemake --cores 2" in done.stderr
    assert "pip install" not in (checkout / "calls").read_text()
    assert not (checkout / ".venv/.installing").exists()
    assert set_up(checkout).returncode == 0


def test_horovod_is_compiled_while_pip_goes_on_and_a_paper_needs_no_torch(checkout: Path) -> None:
    lock = (
        "jinja2==3 \\\n    --hash=sha256:1\n    # via torch\ntorch==1.0\ntqdm==4 \\\n    --hash=x\n"
    )
    (checkout / "envs/requirements.lock").write_text(lock)
    assert set_up(checkout).returncode == 0
    first = "jinja2==3 \\\n    --hash=sha256:1\n    # via torch\n"
    assert (checkout / ".venv/.first.txt").read_text() == first
    assert (checkout / ".venv/.hashed.txt").read_text() == lock.replace("torch==1.0\n", "")
    assert "-m envs.build_horovod --compile-only" in (checkout / "calls").read_text()
    (checkout / "calls").unlink()
    assert set_up(checkout, ".stamp-new-paper").returncode == 0
    calls = (checkout / "calls").read_text()
    assert "build_horovod" not in calls and "torch" not in calls
    assert "--requirement .venv/.hashed.txt" in calls
    # The one that trains comes later, with what is missing, and counts for both.
    assert set_up(checkout).returncode == 0
    assert "torch==1.0" in (checkout / "calls").read_text()
    assert [path.name for path in (checkout / ".venv").glob(".stamp-*")] == [".stamp-new"]


def test_packages_go_into_this_environment_whatever_the_shell_tells_pip(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = r"env | sed -n 's/^\(PIP_[TUDI].*\)=1$/\1/p'"
    stand_in(checkout / ".venv/bin/python", f'[ "$3" != install ] || {told} >>{checkout}/calls')
    names = ("PIP_TARGET", "PIP_USER", "PIP_DRY_RUN", "PIP_INDEX_URL")
    for name in names:
        monkeypatch.setenv(name, "1")
    set_up(checkout)
    seen = (checkout / "calls").read_text().split()
    assert "PIP_INDEX_URL" in seen and not {*names[:3]} & {*seen}
