from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.training import peak
from pipeline.training.clock import Clock, Spent


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
    assert peak.measured_flops_per_second(torch.device("cpu"), "float32") == pytest.approx(128e9)
    assert sizes[0] == peak.CPU_FIRST_SIZE and sizes[-1] == 1024
    assert sum(2 * n**3 / (1e9 * min(n, 128)) for n in sizes) <= peak.CPU_SECONDS


def test_a_slow_format_stays_small(monkeypatch) -> None:
    sizes = work_at(monkeypatch, lambda size: 2e7)
    assert peak.measured_flops_per_second(torch.device("cpu"), "bfloat16") == pytest.approx(2e7)
    assert sizes == [peak.CPU_FIRST_SIZE] * peak.CPU_REPEATS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "tf32"])
def test_every_format_of_a_run_has_a_peak_on_this_machine(dtype: str) -> None:
    assert peak.measured_flops_per_second(torch.device("cpu"), dtype) > 1e6


def test_a_gpu_is_warm_and_its_products_are_timed_together(monkeypatch) -> None:
    """The first block is ten times as slow; each synchronisation would cost a launch."""
    seconds = iter([1.0, 0.1])

    def time(_: Clock, call: Callable[[], Any]) -> tuple[Any, Spent]:
        spent = next(seconds)
        return call(), Spent(spent, spent)

    monkeypatch.setattr(Clock, "time", time)
    monkeypatch.setattr(peak, "SIZE", 64)
    real = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, device: real(*size))
    rate = peak.measured_flops_per_second(torch.device("cuda"), "float32")
    assert rate == pytest.approx(peak.REPEATS * 2 * 64**3 / 0.1)
