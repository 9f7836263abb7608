"""What a rank says of an exception."""

import errno
from pathlib import Path

import pytest

from pipeline.errors import LaunchError, UnsupportedError
from pipeline.expansion import expand
from pipeline.spec import RunSpec
from pipeline.study import load_study
from pipeline.training import image, worker
from pipeline.training.worker import _kind

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnsupportedError("no Apex"), "unsupported"),
        (LaunchError("two ranks came up"), "error"),
        (OSError(errno.ENOSPC, "No space left on device"), "error"),
        (MemoryError(), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20 MiB"), "oom"),
        (RuntimeError(GLOO), "lost"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "lost"),
        (RuntimeError("a bug"), "failed"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "failed"),
    ],
    ids=str,
)
def test_the_kind_of_an_exception(error: Exception, kind: str) -> None:
    assert _kind(error) == kind


def test_a_step_file_is_cut_back_to_the_checkpoint_or_refused(tmp_path) -> None:
    path = tmp_path / "rank0.jsonl"
    worker._open_steps(path, 0).close()
    path.write_text("0\n1\n2\n3")
    worker._open_steps(path, 2).close()
    assert path.read_text() == "0\n1\n"
    with pytest.raises(LaunchError, match=r"rank0\.jsonl has 2 of the checkpoint's 3 steps"):
        worker._open_steps(path, 3)


@pytest.fixture
def gpu_run(monkeypatch, tmp_path) -> RunSpec:
    """A run that wants a GPU, where torch sees none; devices are files below `tmp_path`."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(worker, "DEVICES", tmp_path)
    return expand(load_study(Path("workflow/config/bai2022.yaml")))[0]


def test_a_container_without_the_driver_of_a_gpu_that_is_there_is_an_error(
    gpu_run, monkeypatch, tmp_path
) -> None:
    """No record `unsupported` of a machine that could do it."""
    monkeypatch.setattr(image, "digest_from_within", lambda: "sha256:1")
    (tmp_path / "nvidia0").touch()
    with pytest.raises(LaunchError, match="started without its driver; add `--nv`"):
        worker._device(gpu_run)


def test_a_machine_without_a_gpu_cannot_run_it(gpu_run, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(image, "digest_from_within", lambda: "sha256:1")
    with pytest.raises(UnsupportedError, match="torch sees no CUDA device"):
        worker._device(gpu_run)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(image, "digest_from_within", lambda: None)
    with pytest.raises(UnsupportedError, match="torch sees no CUDA device"):
        worker._device(gpu_run)
