"""The clock of a step, what a rank samples beside it, and the peak of its device."""

import os
import time
from collections.abc import Callable
from itertools import accumulate, count
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from pipeline.emulation.pacing import Pacer
from pipeline.training import clock
from pipeline.training.clock import EMPTY_TIMINGS, Clock, Spent
from pipeline.training.sampler import Sampler


def test_a_call_is_timed_and_its_result_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, spent = iter([10.0, 10.5, 11.0, 13.5]), iter([3.0, 3.25])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    monkeypatch.setattr("pipeline.emulation.pacing.time.thread_time", lambda: next(spent))
    clock = Clock(torch.device("cpu"))
    assert clock.time(lambda: "done") == ("done", (0.5, 0.25))
    assert clock.between(clock.stamp(), clock.stamp()) == 2.5, "stamps are of the same clock"


def test_a_gpu_has_finished_at_both_ends_and_after_the_barrier(monkeypatch) -> None:
    """The barrier itself is work of the device, and kernels of the step are only queued."""
    done: list[str] = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: done.append("synchronised"))

    def read_clock() -> float:
        done.append("clock")
        return 0.0

    monkeypatch.setattr("time.perf_counter", read_clock)
    clock = Clock(torch.device("cuda"))
    clock.time(lambda: done.append("step"), lambda: done.append("barrier"))
    wait = "synchronised"
    assert done == [wait, "barrier", wait, "clock", "step", wait, "clock"]


def test_the_overhead_is_the_median_of_empty_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every timing reads the clock twice and takes 1, 2, 3, ... seconds.
    readings = accumulate(gap for timing in count(1) for gap in (0, timing))
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert Clock(torch.device("cpu")).overhead() == (EMPTY_TIMINGS + 1) / 2


def test_the_overhead_is_that_of_the_clock_and_not_of_pacing(monkeypatch) -> None:
    pacer = Pacer(4.0)
    monkeypatch.setattr(pacer, "settle", lambda: pytest.fail("an empty timing was paced"))
    assert Clock(torch.device("cpu"), pacer).overhead() > 0


def test_on_a_gpu_stamps_are_events_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        made = count()

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(self.made)

        def elapsed_time(self, later: "Event") -> float:
            return 1500.0 * (later.at - self.at)

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: pytest.fail("a mark waited"))
    clock = Clock(torch.device("cuda"))
    assert clock.between(clock.stamp(), clock.stamp()) == 1.5


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
    peaks = {"peak_memory_bytes": 5, "peak_reserved_bytes": 7}
    assert gpu.summary().items() >= (peaks | {"mean_utilisation": None}).items()


def test_a_rank_tells_its_cores_and_their_clock(tmp_path, monkeypatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("".join(f"processor\t: {n}\ncpu MHz\t\t: {2000 + n}.5\n\n" for n in range(4)))
    monkeypatch.setattr("pipeline.machine.facts.CPU_INFO", info)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 1})
    sampler = Sampler(torch.device("cpu"))
    sampler.start()
    assert sampler.summary()["cores"] == [1, 2] and sampler.summary()["cpu_mhz"] == 2001.5
    info.write_text("processor : 1\n")
    sampler.start()
    assert sampler.summary()["cpu_mhz"] is None


def test_what_the_host_takes_is_a_share_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(torch.device("cpu"))
    assert sampler.summary()["steal_share"] == 0.0
    stolen, clock = iter([5.0, 6.0]), iter([100.0, 102.0])
    monkeypatch.setattr("pipeline.training.sampler.steal_seconds", lambda: next(stolen))
    # The module's own name for it: pytest asks the real clock meanwhile.
    told = SimpleNamespace(monotonic=lambda: next(clock), process_time=time.process_time)
    monkeypatch.setattr("pipeline.training.sampler.time", told)
    monkeypatch.setattr("pipeline.training.sampler.psutil.cpu_count", lambda: 4)
    sampler.start()
    sampler.sample()
    assert sampler.summary()["steal_share"] == pytest.approx(1 / 8)


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
    name = "nvmlDeviceGetComputeRunningProcesses"
    processes = lambda _: [SimpleNamespace(pid=pid, usedGpuMemory=next(used))]  # noqa: E731
    monkeypatch.setattr(pynvml, name, processes)
    about = SimpleNamespace(uuid="1")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: about)
    monkeypatch.setattr("torch.cuda.utilization", lambda _: 20)
    gpu.sample()
    gpu.sample()
    assert gpu.summary().get("peak_process_bytes") == (900 if told else None)


def work_at(monkeypatch: pytest.MonkeyPatch, rate: Callable[[int], float]) -> list[int]:
    """Make every product of size n take 2 n^3 / rate(n) seconds; returns the sizes as they come."""
    sizes: list[int] = []

    def time(_: Clock, call: Callable[[], Any]) -> tuple[Any, Spent]:
        result = call()
        sizes.append(len(result))
        seconds = 2 * len(result) ** 3 / rate(len(result))
        return result, Spent(seconds, seconds)

    monkeypatch.setattr(Clock, "time", time)
    return sizes


def test_the_peak_is_the_best_rate_and_the_size_grows_to_the_time_that_is_left(monkeypatch) -> None:
    sizes = work_at(monkeypatch, lambda size: 1e9 * min(size, 128))
    assert clock.measured_flops_per_second(torch.device("cpu"), "float32") == pytest.approx(128e9)
    assert sizes[0] == clock.CPU_FIRST_SIZE and sizes[-1] == 1024
    assert sum(2 * n**3 / (1e9 * min(n, 128)) for n in sizes) <= clock.CPU_SECONDS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "tf32"])
def test_every_format_of_a_run_has_a_peak_on_this_machine(dtype: str) -> None:
    assert clock.measured_flops_per_second(torch.device("cpu"), dtype) > 1e6


def test_a_gpu_is_warm_and_its_products_are_timed_together(monkeypatch) -> None:
    """The first block is ten times as slow; each synchronisation would cost a launch."""
    seconds = iter([1.0, 0.1])

    def time(_: Clock, call: Callable[[], Any]) -> tuple[Any, Spent]:
        spent = next(seconds)
        return call(), Spent(spent, spent)

    monkeypatch.setattr(Clock, "time", time)
    monkeypatch.setattr(clock, "SIZE", 64)
    real = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, device: real(*size))
    rate = clock.measured_flops_per_second(torch.device("cuda"), "float32")
    assert rate == pytest.approx(clock.REPEATS * 2 * 64**3 / 0.1)
