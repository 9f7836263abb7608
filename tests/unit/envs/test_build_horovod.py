import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from envs import build_horovod, horovod_target
from envs.horovod_target import BuildError, Target
from pipeline.strategies.horovod import plan
from tests.programs import wait_until

CPU_TORCH = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"
CUDA_TORCH = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n"
TARGET = Target("2.13.0+cpu", "gloo")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's folder and a cache of their own."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("SAMESTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return tmp_path


NCCL_HEADER, NCCL_LIBRARY = "include/nccl.h", "lib/libnccl.so.2"


def fake_torch(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    nccl: tuple[str, ...] = (NCCL_HEADER, NCCL_LIBRARY),
) -> None:
    torch = folder / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "version.py").write_text(text)
    monkeypatch.setattr(horovod_target, "torch_folder", lambda: torch)
    monkeypatch.setattr(horovod_target, "SYSTEM_NCCL", ())
    for name in nccl:
        path = folder / "site" / "nvidia" / "nccl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def fake_nvcc(folder: Path) -> dict[str, str]:
    (folder / "cuda" / "bin").mkdir(parents=True)
    (folder / "cuda" / "bin" / "nvcc").touch()
    return {"CUDA_HOME": str(folder / "cuda"), "PATH": ""}


@pytest.mark.parametrize(
    ("text", "nccl", "nvcc", "kind"),
    [
        (CUDA_TORCH, True, True, "nccl"),
        (CUDA_TORCH, True, False, "gloo"),
        (CUDA_TORCH, False, True, "gloo"),
        (CPU_TORCH, True, True, "gloo"),
    ],
)
def test_nccl_needs_a_cuda_torch_its_compiler_and_its_library(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str, nccl: bool, nvcc: bool, kind: str
) -> None:
    fake_torch(home, monkeypatch, text, (NCCL_HEADER, NCCL_LIBRARY) if nccl else ())
    monkeypatch.setattr(horovod_target, "SYSTEM_NVCC", home / "none")
    environment = fake_nvcc(home) if nvcc else {"PATH": ""}
    target = horovod_target.read_target(environment)
    assert target.kind == kind
    variables = horovod_target.build_environment(target, environment, home)
    assert variables.get("HOROVOD_GPU_OPERATIONS") == ("NCCL" if kind == "nccl" else None)
    assert variables.get("HOROVOD_NCCL_LINK") == ("SHARED" if kind == "nccl" else None)


def test_cmake_finds_the_nccl_of_a_wheel_under_its_plain_name(home, monkeypatch) -> None:
    fake_torch(home, monkeypatch, CUDA_TORCH)
    environment = fake_nvcc(home)
    (home / "work").mkdir()
    target = horovod_target.read_target(environment)
    variables = horovod_target.build_environment(target, environment, home / "work")
    library = Path(variables["HOROVOD_NCCL_LIB"], "libnccl.so")
    assert library.is_relative_to(home / "work")
    assert library.resolve() == home / "site" / "nvidia" / "nccl" / NCCL_LIBRARY
    assert variables["LDFLAGS"] == f"-Wl,-rpath,{library.resolve().parent}"
    assert variables["CUDA_HOME"] == str(home / "cuda")


@pytest.mark.parametrize(
    ("there", "lacks", "variable"),
    [
        (NCCL_LIBRARY, NCCL_HEADER, "HOROVOD_NCCL_INCLUDE"),
        (NCCL_HEADER, NCCL_LIBRARY, "HOROVOD_NCCL_LIB"),
    ],
)
def test_half_of_nccl_is_said_and_a_variable_brings_the_other_half(
    home, monkeypatch, capsys, there, lacks, variable
) -> None:
    fake_torch(home, monkeypatch, CUDA_TORCH, (there,))
    for name, value in fake_nvcc(home).items():
        monkeypatch.setenv(name, value)
    gloo = Target("2.13.0+cu130", "gloo").full_version
    monkeypatch.setattr(build_horovod, "installed_version", lambda: gloo)
    assert build_horovod.main([]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    folder, name = lacks.split("/")
    assert f"NCCL's {name.removesuffix('.2')}" in warning
    assert f"{home}/site/nvidia/nccl/{folder}" in warning
    assert f"set {variable}" in warning
    (home / name).touch()
    monkeypatch.setenv(variable, str(home))
    assert horovod_target.read_target(os.environ).kind == "nccl"


def test_the_compilation_does_not_inherit_an_outer_make(home: Path) -> None:
    outer = {"MAKEFLAGS": "-j64 --jobserver-auth=3,4", "MAKELEVEL": "1", "HOME": "h"}
    variables = horovod_target.build_environment(TARGET, outer, home)
    assert variables["MAKEFLAGS"].startswith("-j")
    assert "jobserver" not in variables["MAKEFLAGS"]
    assert "MAKELEVEL" not in variables
    assert variables["HOME"] == "h"


def test_an_archive_with_another_hash_is_refused(home, monkeypatch) -> None:
    archive = home / "cache" / "wheels" / "horovod-0.28.1.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_text("cut short")

    def download(command: list[str], *_: object, **__: object) -> bool:
        Path(command[command.index("--dest") + 1], archive.name).write_text("something else")
        return True

    monkeypatch.setattr(build_horovod, "run_logged", download)
    (home / "work").mkdir()
    with pytest.raises(BuildError, match="another SHA-256"):
        build_horovod.fetch_sdist(home / "work", home / "log", {})
    assert archive.read_text() == "cut short"


def failing(lasting: bool, calls: list[int]) -> Callable[..., Path]:
    def build(*_: object) -> Path:
        calls.append(1)
        raise BuildError("no way", lasting=lasting)

    return build


@pytest.fixture
def absent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without Horovod; returns the file that keeps the reason."""
    monkeypatch.setattr(build_horovod, "read_target", lambda _: TARGET)
    monkeypatch.setattr(build_horovod, "installed_version", lambda: None)
    return home / build_horovod.UNSUPPORTED_FILE


def test_a_failure_leaves_its_reason_and_lets_the_rest_go_on(absent, monkeypatch, capsys) -> None:
    monkeypatch.setattr(build_horovod, "build_wheel", failing(True, []))
    assert build_horovod.main([]) == 0
    assert absent.read_text().splitlines()[0] == "no way"
    warning = capsys.readouterr().err
    assert warning.startswith("warning: no Horovod here: no way\n")
    assert "--retry" in warning
    assert build_horovod.main(["--strict"]) == 1


def test_without_a_compiler_no_log_is_named(absent, monkeypatch, capsys) -> None:
    """Nothing was fetched or logged, and the next set-up tries again by itself."""
    monkeypatch.setenv("PATH", "")
    assert build_horovod.main([]) == 0
    warning = capsys.readouterr().err
    assert "apt-get install cmake g++" in warning and "--retry" not in warning
    assert "apt-get install cmake g++" in absent.read_text()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSPC])
def test_a_cache_that_cannot_be_used_is_a_reason_and_no_traceback(
    absent, monkeypatch, capsys, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    assert build_horovod.main([]) == 0
    warning = capsys.readouterr().err
    assert os.strerror(number) in warning and "set XDG_CACHE_HOME" in warning
    assert "wheels" in absent.read_text() and "lasting" not in absent.read_text()


@pytest.mark.parametrize(("lasting", "builds"), [(True, 1), (False, 2)])
def test_only_a_failed_compilation_is_remembered(absent, monkeypatch, lasting, builds) -> None:
    calls: list[int] = []
    monkeypatch.setattr(build_horovod, "build_wheel", failing(lasting, calls))
    build_horovod.main([])
    build_horovod.main([])
    assert len(calls) == builds
    build_horovod.main(["--retry"])
    assert len(calls) == builds + 1
    monkeypatch.setattr(build_horovod, "read_target", lambda _: Target("2.14.0", "gloo"))
    build_horovod.main([])
    assert len(calls) == builds + 2, "the failure was that of another torch"


def test_the_strategy_reads_the_file_that_the_build_writes() -> None:
    assert plan.UNSUPPORTED_FILE == build_horovod.UNSUPPORTED_FILE


def test_a_terminated_build_takes_its_compilers_along(tmp_path: Path) -> None:
    program = (
        "import signal, sys, pathlib, envs.build_horovod as b\n"
        "signal.signal(signal.SIGTERM, b.stop)\n"
        'child = \'import subprocess, sys; print(subprocess.Popen(["sleep", "60"]).pid, '
        "flush=True); import time; time.sleep(60)'\n"
        "b.run_logged([sys.executable, '-c', child], pathlib.Path(sys.argv[1]), {}, label='x')\n"
    )
    log = tmp_path / "log"
    root = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", program, str(log)], cwd=root)
    while not (log.is_file() and log.read_text().strip()):
        assert process.poll() is None
        time.sleep(0.02)
    grandchild = int(log.read_text())
    process.terminate()
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    with suppress(psutil.NoSuchProcess):
        killed = psutil.Process(grandchild)
        wait_until(lambda: killed.status() == psutil.STATUS_ZOMBIE, 4)
