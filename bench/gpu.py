"""What one GPU shows in eight minutes, as one archive.

    python -m bench.gpu --out gpu.zip [--minutes 8]
    python -m bench.gpu --out cpu.zip --device cpu --size tiny --eager     (a trial without a GPU)

peak        rates of square matrix products in each number format
pairs       step time against the other programs of `bench.peers`, in alternating blocks
precisions  this project alone in each precision, eager and compiled: step time, tokens/s, FLOP
            utilisation over the measured rate, peak memory and the predicted one
parity      losses and gradient norms of one small model on the device and on the CPU
phases      where a step's time goes
tests       tests/system/test_gpu.py, where pytest is installed

It needs torch, numpy and PyYAML, and for `pairs` transformers; no network and no other package of
this project. A part that fails is a result with its error, and no part, precision or pair begins
after `--minutes`; what matters most comes first.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.contestants.ours import Ours
from bench.contestants.setting import Setting
from bench.peers import run_rounds
from pipeline import models
from pipeline.parallel.types import Batch
from pipeline.planner.memory import predict
from pipeline.study.profiling import MARKED, REST
from pipeline.study.spec import RunSpec, WorkloadSpec, WorldSpec
from pipeline.training.clock import Clock
from pipeline.training.peak import measured_flops_per_second
from pipeline.training.phases import PhaseTimer

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = ("bf16", "fp32", "tf32", "amp_o1", "amp_o2", "apex_o1", "apex_o2")
BATCH = {"tiny": 2, "124M": 8}
PARITY_STEPS = 20
LATE = {"left_out": "its turn came after the bench's minutes"}
Found = dict[str, Any]


class Bench:
    """The parts, on one device and at one size; each returns its results."""

    def __init__(
        self,
        device: str,
        size: str,
        rounds: int,
        compiled: Sequence[bool],
        ends: float = math.inf,
    ) -> None:
        self.ends = ends
        self.device, self.rounds, self.compiled = torch.device(device), rounds, compiled
        self.base = Setting(size, BATCH.get(size, 8), "fp32", compiled=False, device=device)
        self.peaks: Found = {}

    def peak(self) -> Found:
        """FLOP/s of the best product in each number format."""
        names = ["float32", "bfloat16", "float16"]
        names += ["tf32"] if self.device.type == "cuda" else []
        for name in names:
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            self.peaks[name] = measured_flops_per_second(self.device, name)
        return self.peaks

    def pairs(self) -> Found:
        """Seconds of a step of every contestant in every round."""
        from bench.peers import contestants

        found: Found = {}
        for precision in ("bf16", "fp32"):
            for compiled in self.compiled:
                setting = replace(self.base, precision=precision, compiled=compiled)
                if self._is_late():
                    found[_name(setting)] = dict(LATE)
                    continue
                seconds = run_rounds(contestants(setting), setting, self.rounds, steps=3)
                ours = seconds[Ours.name]
                found[_name(setting)] = {
                    "step_seconds": seconds,
                    "median_ratio": {
                        name: median(a / b for a, b in zip(ours, taken, strict=True))
                        for name, taken in seconds.items()
                        if name != Ours.name
                    },
                }
                self._forget()
        return found

    def precisions(self) -> Found:
        """This project alone in each precision; one that the machine lacks says why."""
        found: Found = {}
        for precision in PRECISIONS:
            for compiled in self.compiled:
                setting = replace(self.base, precision=precision, compiled=compiled)
                if self._is_late():
                    found[_name(setting)] = dict(LATE)
                    continue
                try:
                    found[_name(setting)] = self._alone(setting)
                except Exception as error:
                    found[_name(setting)] = {"error": _line(error)}
                self._forget()
        return found

    def _alone(self, setting: Setting) -> Found:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        ours, clock = Ours(setting), Clock(self.device)
        ours.train(3)
        steps = [clock.time(lambda: ours.train(1))[1].seconds for _ in range(self.rounds)]
        tokens = setting.batch * setting.model.context
        rate = tokens * models.flops_per_token(setting.model) / median(steps)
        kind = {"fp32": "float32", "tf32": "tf32"}.get(setting.precision)
        kind = kind or ("bfloat16" if setting.precision == "bf16" else "float16")
        found = {
            "step_seconds": steps,
            "tokens_per_second": tokens / median(steps),
            "flops_per_second": rate,
            "over_measured_peak": rate / self.peaks[kind] if kind in self.peaks else None,
            "predicted_memory": asdict(predict(_spec(setting))),
        }
        if self.device.type == "cuda":
            found["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        return found

    def parity(self) -> Found:
        """Losses and norms of a small model from the same weights and batches, here and there."""
        small = Setting("5M", 4, "fp32", compiled=False, device=str(self.device))
        small = small if self.base.size != "tiny" else self.base
        here, there = Ours(small), Ours(replace(small, device="cpu"))
        losses, norms = [], []
        for _ in range(PARITY_STEPS):
            losses.append((here.train(1), there.train(1)))
            norms.append([one.trainable.report().grad_norm for one in (here, there)])
        return {
            "losses": losses,
            "grad_norms": norms,
            "largest_relative_deviation": max(abs(a - b) / abs(b) for a, b in losses),
            "largest_relative_deviation_of_norms": max(abs(a - b) / abs(b) for a, b in norms),
        }

    def phases(self) -> Found:
        """Median seconds of each phase of a step."""
        clock = Clock(self.device)
        timer = PhaseTimer(clock)
        ours = Ours(replace(self.base, precision="bf16"), timer)
        ours.train(3)
        splits = []

        def step(batch: Batch) -> None:
            timer.record(lambda: ours.trainable.step([batch]))

        for _ in range(self.rounds):
            _, spent = clock.time(partial(step, ours.read()))
            splits.append(timer.split(spent.seconds, 0.0))
        return {name: median(split[name] for split in splits) for name in (*MARKED, REST)}

    def tests(self) -> Found:
        """The end of what pytest says of tests/system/test_gpu.py."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "tests/system/test_gpu.py"], cwd=ROOT, capture_output=True, text=True
        )
        return {"returncode": done.returncode, "output": (done.stdout + done.stderr)[-6000:]}

    def _is_late(self) -> bool:
        return time.monotonic() > self.ends

    def _forget(self) -> None:
        torch.compiler.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def parts(self) -> Iterator[tuple[str, Callable[[], Found]]]:
        """Names and calls, what matters most first."""
        names = ("peak", "parity", "precisions", "pairs", "phases", "tests")
        yield from ((name, getattr(self, name)) for name in names)


def _name(setting: Setting) -> str:
    return f"{setting.precision}{'-compiled' * setting.compiled}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _spec(setting: Setting) -> RunSpec:
    from bench.contestants.setting import OPTIMISER

    backend = {"cpu": "gloo", "cuda": "nccl"}[setting.device]
    return RunSpec(
        study="bench",
        cell="single",
        strategy="single",
        precision=setting.precision,
        world=WorldSpec(1, 1, setting.device, backend, "loopback"),
        model=setting.model,
        optimiser=OPTIMISER,
        workload=WorkloadSpec(setting.batch, 1, 10, 2, "strong", 0),
        repeat=0,
        seed=11,
    )


def about(device: torch.device) -> Found:
    """Versions, and the device as torch sees it."""
    found: Found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "machine": platform.machine(),
        "device": device.type,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": list(torch.cuda.get_device_capability(device)),
            "architectures": torch.cuda.get_arch_list(),
        }
    return found


def main() -> int:
    """Run the parts within the time and write the archive; 1 where there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="archive of the results (zip)")
    parser.add_argument("--minutes", type=float, default=8.0, help="no part begins after these")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", default="124M")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("error: torch sees no CUDA device; --device cpu tries the bench", file=sys.stderr)
        return 1
    ends = time.monotonic() + 60 * args.minutes
    compiled = (False,) if args.eager else (False, True)
    bench = Bench(args.device, args.size, args.rounds, compiled, ends)
    results: Found = {"about": about(bench.device)}
    for name, part in bench.parts():
        begun = time.monotonic()
        if begun > ends:
            results[name] = dict(LATE)
            continue
        try:
            results[name] = part()
        except Exception as error:
            results[name] = {"error": _line(error)}
        spent = time.monotonic() - begun
        results[name]["part_seconds"] = spent
        print(f"{name}: {spent:.0f} s {results[name].get('error', '')}", file=sys.stderr)
        _write(args.out, results)
    _write(args.out, results)
    print(f"-> {args.out}")
    return 0


def _write(out: Path, results: Found) -> None:
    """What there is so far; a machine that is taken away leaves what was done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(out.name + ".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gpu.json", json.dumps(results, indent=1) + "\n")
    new.replace(out)


if __name__ == "__main__":
    sys.exit(main())
