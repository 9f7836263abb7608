"""GPU kit: what only real hardware shows, with every strategy, before a study is trained there.

    python -m bench.gpu --out bench/results/gpu.json
    python -m bench.gpu --out trial.json --device cpu     (a trial where there is no GPU)

Four points, on one GPU and, where there are two, on two. The first that fails ends the kit with one
line, so that no minute of a GPU is spent on what cannot come to an end:

phases      profiled steps have phases that a record may hold
clocks      steps that run freely are timed too, and leave the weights as they are, to the bit
memory      peaks of the allocator and of the process, a peak rate of a warm device, settings
gradients   loss, norm and each parameter's gradient are those of a single device, in fp32, bf16 and
            fp16; the gradient of a layer norm, 1.5 times as large, is noticed

The study `gpu-check` then trains every strategy and precision as any study does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from bench.scaffold import ROOT, about, parser, write
from envs.image.strategies import ALONE, SPEC, loop_of
from pipeline import models, strategies
from pipeline.errors import UnsupportedError
from pipeline.files import write_text
from pipeline.machine import inherited
from pipeline.machine.facts import loaded_versions
from pipeline.metrics.bands import band_of
from pipeline.parallel.step import Stepper
from pipeline.precision.native import local
from pipeline.records import Step
from pipeline.records.rules import PHASES_TOLERANCE
from pipeline.schemas import validate
from pipeline.study.profiling import IN_STEP
from pipeline.training.clock import measured_flops_per_second
from pipeline.training.devices import why_no_cuda
from pipeline.training.loop import Loop

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
STAGES = {f"zero{stage}": {"stage": stage} for stage in (1, 2)}
"""Of `sharded`, whose default is 3."""
OTHERS = (n for n in strategies.names() if n != ALONE and not strategies.load(n, {}).example)
NAMES = (ALONE, *OTHERS, *STAGES)
"""Strategies that train the model of `SPEC`."""
STEPS, FREE_STEPS = 7, 4
"""Of them the first warms up; what is left are whole rounds of strategies that have some."""
NORM = "h.1.ln_2.weight"
"""The layer norm whose gradient is scaled."""
EACH, FLOOR = 16, 1e-4
"""Band of a parameter's gradient norm (decision 12): so many times that of the whole norm, of its
own size and this share of the whole. In bf16 two tensor ranks on an AMD EPYC reach 12.5."""
Results = dict[str, Any]


class Wrong(Exception):
    """A point fails; the text says where, and what was expected."""


def main(argv: Sequence[str] | None = None) -> int:
    """Try the points; 1 where one fails, 2 where there is no such device."""
    options = parser(__doc__)
    options.add_argument("--device", choices=BACKENDS, default="cuda")
    options.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args(argv)
    if args.rank:
        return rank_main(args.device, args.out)
    devices = torch.cuda.device_count() if args.device == "cuda" else 2
    if not devices:
        print(f"error: torch sees no CUDA device: {why_no_cuda()}", file=sys.stderr)
        return 2
    result = about() | {"versions": loaded_versions(())}
    for ranks in (1, 2)[:devices]:
        results = points(args.device, ranks)
        result[f"points_on_{ranks}"] = results
        write(args.out, result)
        if failed := results.get("failed"):
            print(f"error: {failed} ({ranks} of {args.device}); see {args.out}", file=sys.stderr)
            return 1
    return 0


def points(device: str, ranks: int) -> Results:
    """Findings of the points on so many ranks; `failed` is a line on the one that fails."""
    # By this address: the name of the host may lead nowhere.
    meeting = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "bench.gpu"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="samestep-gpu-") as folder:
        out = Path(folder, "points.json")
        command += ["--rank", f"--device={device}", f"--out={out}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        results: Results = {"output": done.stderr[-3000:], "failed": "ranks end without a word"}
        if out.exists():
            results = json.loads(out.read_text(encoding="utf-8"))
    return results


def rank_main(device: str, out: Path) -> int:
    """Try the points on this rank; the first rank, or one where a point fails, writes `out`."""
    place = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device)
    if device == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(BACKENDS[device])
    results = try_points(place)
    if "failed" in results:
        if not out.exists():  # of the rank that failed first, and not of one that lost it
            write_text(out, json.dumps(results))
        os._exit(1)  # torchrun then ends the others, which may wait for this one
    if dist.get_rank() == 0:
        write_text(out, json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def try_points(device: torch.device) -> Results:
    """Findings by point; where one fails none follows, and its line stands as `failed`."""
    results: Results = {}
    for number, point in ((1, phases), (5, clocks), (7, memory), (9, gradients)):
        try:
            results[point.__name__] = point(device)
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".removeprefix("Wrong: ").split())
            results["failed"] = f"point {number} ({point.__name__}) fails: {words[:500]}"
            return results | {"traceback": traceback.format_exc()}
    return results


@dataclass(frozen=True)
class Trained:
    """A short training: its steps, the gradient norm of each parameter in each, and its loop.

    Where steps are looked at for their times there are no norms. `kept` are this rank's weights
    after the last step that is recorded.
    """

    steps: list[Step]
    gradients: list[dict[str, float]]
    loop: Loop
    kept: list[Tensor]


def each(device: torch.device, precision: str, **given: Any) -> Iterator[tuple[str, Trained]]:
    """Trainings by the strategies that run here in a precision; that of a single device first."""
    for name in NAMES:
        try:
            run = train(name, device, precision, **given)
        except UnsupportedError:
            continue
        except Exception as error:
            raise Wrong(f"{name} in {precision}: {type(error).__name__}: {error}") from error
        yield name, run


def train(
    name: str, device: torch.device, precision: str, *, profile: bool = False, free_steps: int = 0
) -> Trained:
    """`STEPS` steps by a strategy on all ranks, or of a single device on each of them."""
    ranks = 1 if name == ALONE else dist.get_world_size()
    given = {"hybrid": {"pipeline": 1, "tensor": ranks}, "context": {"ranks": ranks}, **STAGES}
    spec = replace(
        SPEC,
        strategy="sharded" if name in STAGES else name,
        options=given.get(name, {}),
        precision=precision,
        profile=profile,
        world=replace(
            SPEC.world, ranks_per_node=ranks, device=device.type, backend=BACKENDS[device.type]
        ),
        workload=replace(SPEC.workload, steps=STEPS),
    )
    loop = loop_of(spec, dist.get_rank() % ranks, device)
    steps, squares, kept = list[Step](), list[dict[str, float]](), list[Tensor]()
    trainable: Any = loop.trainable
    update = trainable.update

    def updated() -> Tensor:
        squares.append(trainable.squares())  # before they are clipped, or dropped by a library
        norm: Tensor = update()
        return norm

    def keep(step: Step) -> None:
        steps.append(step)
        if profile:  # what is sent between its steps counts
            return
        trainable.complete()
        kept[:] = [local(weight).clone() for weight in loop.model.parameters()]

    if not (profile or free_steps):  # it waits for the device
        trainable.update = updated
    loop.run(keep, free_steps=free_steps)
    everywhere: list[Any] = [squares]
    if ranks > 1:
        everywhere = [None] * ranks
        dist.all_gather_object(everywhere, squares)
    norms = []
    for of_ranks in zip(*everywhere, strict=True):
        sums = Counter[str]()
        for own in of_ranks:
            sums.update(own)
        norms.append({name: math.sqrt(square) for name, square in sums.items()})
    return Trained(steps, norms, loop, kept)


def phases(device: torch.device) -> list[str]:
    """Strategies that run here, after all of them had profiled steps that a record may hold.

    Off emulated nodes no CPU seconds stand in them: on CUDA backward passes, and the marks in them,
    run in a thread with a clock of its own.
    """
    names = []
    for name, run in each(device, "fp32", profile=True):
        names.append(name)
        for step in run.steps:
            where = f"{name}, step {step.step}"
            validate(step.to_dict(), "step", where)
            if step.phases is None or step.cpu_phases is not None:
                raise Wrong(f"{where} has no phases, or CPU seconds of them")
            total = sum(step.phases[one] for one in IN_STEP)
            if not math.isclose(total, step.seconds, rel_tol=PHASES_TOLERANCE):
                raise Wrong(f"{where}: phases of {total} s in a step of {step.seconds} s")
    return names


def clocks(device: torch.device) -> Results:
    """Median seconds of a step that begins and ends idle, and of one that runs freely, by name."""
    results = {}
    for name, run in each(device, "fp32", free_steps=FREE_STEPS):
        free = run.loop.free_running
        if free is None or not free["step_seconds"] > 0:
            raise Wrong(f"{name}: no time of freely running steps, found {free}")
        # On the first rank: the others of a parameter server pull its last update with a next step.
        # A strategy of local steps ends with a round, which makes the weights of all ranks one.
        pairs = zip(run.kept, run.loop.model.parameters(), strict=True)
        moved = any(not torch.equal(kept, local(weight)) for kept, weight in pairs)
        if moved and dist.get_rank() == 0 and not run.loop.strategy.algorithm:
            raise Wrong(f"{name}: freely running steps moved the weights, at a learning rate of 0")
        drained = median(step.seconds for step in run.steps if step.timed)
        results[name] = {"drained": drained, "free": free["step_seconds"]}
    return results


def memory(device: torch.device) -> Results:
    """Peaks of memory and of FLOP/s of a single device, and the settings that a record keeps."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    usage = train(ALONE, device, "fp32").loop.sampler.summary()
    # With AdamW a parameter takes 16 bytes. NVML says nothing of a process in a container that
    # numbers its processes by itself.
    names = ("peak_memory_bytes", "peak_reserved_bytes", "peak_process_bytes")
    sizes = [16 * models.num_parameters(SPEC.model)]
    sizes += [usage[name] for name in names if name in usage]
    if sizes != sorted(sizes):
        raise Wrong(f"expected {sizes[0]} <= allocated <= reserved <= the process's, found {usage}")
    first, again = (measured_flops_per_second(device, "float32") for _ in range(2))
    if device.type == "cuda" and not 0.8 < first / again < 1.25:
        raise Wrong(f"the peak is not that of a warm device: {first:.4g}, then {again:.4g} FLOP/s")
    settings = inherited.recorded(os.environ)
    begins = ("TORCH_NCCL_", "CUDA_", "NVIDIA_", "PYTORCH_")
    lost = {name for name in os.environ if name.startswith(begins)} - {*settings}
    if lost := {name for name in lost if not name.endswith("_CACHE_DIR")}:
        raise Wrong(f"a record does not keep {', '.join(sorted(lost))}")
    return {**usage, "peak_flops_per_second": again, "settings": settings}


def gradients(device: torch.device) -> Results:
    """Largest deviation of a gradient's norm, as a share of its band, by precision and strategy."""
    results: Results = {}
    for precision in ("fp32", "bf16", "fp16"):
        runs = each(device, precision)
        _, alone = next(runs)
        results[precision] = {
            name: apart(f"{name} in {precision}", run, alone)
            for name, run in runs
            if not run.loop.strategy.algorithm
        }
    real, alone = Stepper.reduced, train(ALONE, device, "bf16")

    def scaled(stepper: Stepper) -> None:
        real(stepper)
        for name, weight in stepper.model.named_parameters():
            if name == NORM and weight.grad is not None:
                weight.grad *= 1.5

    with mock.patch.object(Stepper, "reduced", scaled):
        broken = train(ALONE, device, "bf16")
    try:
        apart("broken", broken, alone)
    except Wrong:
        return results
    raise Wrong(f"a gradient of {NORM} that is 1.5 times as large is not noticed in bf16")


def apart(where: str, run: Trained, alone: Trained) -> float:
    """Largest deviation of a gradient's norm over its band; raises Wrong for one beyond it.

    Also for a loss, or a norm of the whole gradient, that is beyond its own band.
    """
    band = band_of(alone.loop.precision.info.compute_dtype, same=True, wire=False)
    pairs = zip(run.steps, alone.steps, strict=True)
    for (one, other), key in product(pairs, ("loss", "grad_norm")):
        value, wanted = getattr(one, key), getattr(other, key)
        if value is None or wanted is None:  # not finite: a step that a loss scaler skips
            off = 0.0 if value is wanted else math.inf
        else:
            off = abs(value - wanted) / abs(wanted)
        limit = band.first_steps if one.step else band.first_step
        if not off <= limit:
            raise Wrong(
                f"{where}, step {one.step}: {key} {value}, on a single device {wanted}; "
                f"expected within {limit:g} of it ({band.name})"
            )
    most, limit = 0.0, EACH * band.first_steps
    for step, norms, wanted in zip(alone.steps, run.gradients, alone.gradients, strict=True):
        if step.grad_norm is None or not norms:
            continue  # a step that was skipped, or a library that keeps gradients to itself
        if norms.keys() != wanted.keys():
            raise Wrong(f"{where}: gradients of {sorted(norms)}, a single device {sorted(wanted)}")
        for name, norm in wanted.items():
            off = abs(norms[name] - norm) / (norm + FLOOR * step.grad_norm)
            if not off <= limit:
                raise Wrong(
                    f"{where}, step {step.step}: the gradient of {name} has the norm "
                    f"{norms[name]:.6g}, on a single device {norm:.6g}; expected within {limit:.2g}"
                )
            most = max(most, off / limit)
    return most


if __name__ == "__main__":
    sys.exit(main())
