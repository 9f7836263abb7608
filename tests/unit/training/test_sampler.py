"""What a rank samples of a GPU that tells nothing of itself."""

import os
import time
from types import SimpleNamespace

import pynvml
import pytest
import torch

from pipeline.training.sampler import Sampler


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Sampler:
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda _: 5)
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda _: 7)
    sampler = Sampler(torch.device("cuda"))
    sampler.start()
    return sampler


# NVML's own errors derive from Exception alone.
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Not Supported"),
        ModuleNotFoundError("pynvml"),
        pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
    ],
    ids=["torch's", "no NVML", "NVML's"],
)
def test_a_slice_of_a_gpu_has_no_utilisation(gpu, error, monkeypatch) -> None:
    """NVML refuses it for MIG and vGPU; that must not end the run."""

    def refused(_: torch.device) -> int:
        raise error

    monkeypatch.setattr("torch.cuda.utilization", refused)
    gpu.sample()
    assert gpu.summary() == {
        "peak_memory_bytes": 5,
        "peak_reserved_bytes": 7,
        "mean_utilisation": None,
    }


def test_a_rank_tells_its_cores_and_their_clock(tmp_path, monkeypatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("".join(f"processor\t: {n}\ncpu MHz\t\t: {2000 + n}.5\n\n" for n in range(4)))
    monkeypatch.setattr("pipeline.machine.facts.CPU_INFO", info)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 1})
    sampler = Sampler(torch.device("cpu"))
    assert sampler.placement == {}
    sampler.start()
    assert sampler.placement == {"cores": [1, 2], "cpu_mhz": 2001.5}
    info.write_text("processor : 1\n")
    sampler.start()
    assert sampler.placement == {"cores": [1, 2], "cpu_mhz": None}


def test_what_the_host_takes_is_a_share_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(torch.device("cpu"))
    assert sampler.steal_share() == 0.0
    stolen, clock = iter([5.0, 6.0]), iter([100.0, 102.0])
    monkeypatch.setattr("pipeline.training.sampler.steal_seconds", lambda: next(stolen))
    # The module's own name for it: pytest asks the real clock meanwhile.
    told = SimpleNamespace(monotonic=lambda: next(clock), process_time=time.process_time)
    monkeypatch.setattr("pipeline.training.sampler.time", told)
    monkeypatch.setattr("pipeline.training.sampler.psutil.cpu_count", lambda: 4)
    sampler.start()
    sampler.sample()
    assert sampler.steal_share() == pytest.approx(1 / 8)


def test_a_timed_part_of_a_millisecond_is_not_counted_in_ticks() -> None:
    """A tick of 10 ms in a step of 2 ms made a run that had trained a record that is refused."""
    sampler, most = Sampler(torch.device("cpu")), 0.0
    for _ in range(100):
        sampler.start()
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        sampler.sample()
        most = max(most, sampler.summary()["mean_utilisation"])
    assert 0 < most < 2


@pytest.mark.parametrize(("pid", "told"), [(os.getpid(), True), (0, False)], ids=["own", "other"])
def test_the_memory_of_the_process_is_what_nvml_tells_at_most(gpu, monkeypatch, pid, told) -> None:
    used = iter([900, 700])
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda _: [SimpleNamespace(pid=pid, usedGpuMemory=next(used))],
    )
    about = SimpleNamespace(uuid="1")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: about)
    monkeypatch.setattr("torch.cuda.utilization", lambda _: 20)
    gpu.sample()
    gpu.sample()
    assert gpu.summary().get("peak_process_bytes") == (900 if told else None)
