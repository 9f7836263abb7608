"""One rank: `python -m pipeline.training.worker --spec FILE --tokens DIR --out DIR`.

Started by torchrun, or forked on emulated nodes. It leaves below `--out` the steps (see
`step_files.py`), and `rank<r>.json` (what the rank used) or `rank<r>.error.json`.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipeline.emulation.pacing import Pacer
from pipeline.errors import (
    DisturbedError,
    LaunchError,
    LostError,
    PeerError,
    SamestepError,
    StoppedError,
    StrategyError,
    UnsupportedError,
)
from pipeline.files import write_text
from pipeline.machine import addresses, image, inherited, nccl
from pipeline.machine.processes import die_with_parent, keep_freed_memory
from pipeline.parallel.types import Trainable
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.spec import ModelSpec, RunSpec
from pipeline.training import devices, fence

if TYPE_CHECKING:  # the launcher imports this module without torch
    from pipeline.training.loop import Loop

FREE_STEPS = 50
"""Most steps that are timed together, after those of the record; see decision 10."""

OF_A_DISK = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOLCK,
)  # fmt: skip
"""Errors of a disk or a file server: faults from outside, which make no record."""

OUT_OF_MEMORY = ("outofmemory", "out of memory", "can't allocate memory", "alloc_failed")
UNSEEN_STEPS = 50
"""Last steps of a training whose text is held out: its loss is taken before it is trained on."""
LOST_PEER = (
    "closed by peer", "connection reset", "connection refused", "broken pipe", "timed out waiting",
    "remote process exited", "distnetworkerror", "host unreachable", "no route to host",
)  # fmt: skip
"""Words of Gloo, NCCL and torch's store for a peer that is gone; a strategy may add to them."""


def main() -> int:
    """Run the rank that this process is."""
    die_with_parent()
    return run(parse(sys.argv[1:]))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the run")
    parser.add_argument("--tokens", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--out", type=Path, required=True, help="folder for the rank's files")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--resume-from", type=int, default=0, help="steps done by a checkpoint")
    parser.add_argument("--launch", required=True, help="token of the launch, see fence.py")
    parser.add_argument("--owner", default="", help="key of the checkpoints, see checkpoint.py")
    parser.add_argument("--image-digest", help="container image that this rank must be in")
    parser.add_argument("--stop-file", type=Path, help="ends the run, see inherited.STOP")
    parser.add_argument("--yardstick", type=Path, help="of runs on emulated nodes that have one")
    return parser.parse_args(arguments)


def run(
    args: argparse.Namespace,
    resolved: ResolvedRun | None = None,
    make_pacer: Callable[[], Pacer] = Pacer,
    share: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Run one rank; every failure is left as a file for the launcher, then raised.

    A rank that is forked on an emulated node is given its run, as `resolved`; others read it.
    """
    lost_peer: Sequence[str] = ()
    try:
        image.check_inside(args.image_digest)
        resolved = resolved or resolve(read_spec(args))
        lost_peer = resolved.strategy.lost_peer
        train(resolved, args, make_pacer(), share)
    except Exception as error:
        left = leave_error(error, args, devices.rank_of(os.environ), lost_peer)
        if left and isinstance(error, SamestepError):
            print(f"error: {error}", file=sys.stderr)
            return 2
        raise
    return 0


def read_spec(args: argparse.Namespace) -> RunSpec:
    """The spec in the file of the arguments."""
    return RunSpec.from_dict(json.loads(args.spec.read_text(encoding="utf-8")))


def leave_error(
    error: Exception, args: argparse.Namespace, rank: int, lost_peer: Sequence[str] = ()
) -> bool:
    """Write what went wrong for the launcher; False where a later launch has taken over."""
    if fence.lost(args.out, args.launch) is not None:
        return False
    about = {
        "kind": kind_of(error, lost_peer),
        "type": type(error).__name__,
        "message": " ".join(str(error).split())[:500],
    }
    write_text(args.out / f"rank{rank}.error.json", json.dumps(about))
    return True


def import_heavy(models: Iterable[ModelSpec] = ()) -> None:
    """Import what `train` imports, also for these models; once, before ranks are forked."""
    import safetensors.torch  # noqa: F401
    import torch

    import pipeline.corpus.batches
    import pipeline.precision
    import pipeline.training.checkpoint
    import pipeline.training.loop  # noqa: F401
    from pipeline.models.build import deferred_model

    # The first optimiser of a process makes torch import its compiler, for more than a second.
    torch.optim.AdamW([torch.zeros(1)])
    # transformers imports a class when it is first used: of BERT for 3.5 seconds of a core.
    for model in models:
        deferred_model(model, seed=0)


def check_ours(args: argparse.Namespace) -> None:
    """Raise LaunchError where a later launch has taken over, or the folder is gone."""
    if (reason := fence.lost(args.out, args.launch)) is not None:
        raise LaunchError(f"{reason}; this rank leaves nothing")


def train(
    run: ResolvedRun,
    args: argparse.Namespace,
    pacer: Pacer,
    share: Callable[[], AbstractContextManager[None]],
) -> None:
    """Train the run on this rank and write the rank's files.

    On an emulated node `pacer` dilates its time, `share` pins it to its cores. Only the training is
    held so; what comes before and after is not timed.
    """
    forked = "torch" in sys.modules  # by the process that this one is a fork of
    import torch

    from pipeline.corpus.batches import Batches
    from pipeline.training import checkpoint
    from pipeline.training.clock import Clock
    from pipeline.training.loop import Loop
    from pipeline.training.step_files import StepFile

    spec = run.spec
    rank, work, done = devices.rank_of(os.environ), spec.workload, args.resume_from
    if spec.world.num_machines > 1 and not os.environ.get(addresses.INTERFACE):
        # Gloo by itself takes the address of the host's name, on Debian 127.0.1.1: bind it to the
        # interface that leads to the first node, unless the user chose one.
        own = addresses.source_address(os.environ["MASTER_ADDR"])
        os.environ[addresses.INTERFACE] = addresses.interface_of(own)
    nccl_log = args.out / f"rank{rank}.nccl.log"
    if spec.world.backend == "nccl":
        nccl.listen(os.environ, nccl_log)
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    run.strategy.check()
    clock = Clock(devices.choose(run), pacer)
    batches = Batches(args.tokens, spec.model.context, work.global_batch, spec.seed, spec.objective)
    loop = Loop(spec, run.strategy, batches, rank, clock)
    check_ours(args)
    state = checkpoint.Saved(args.checkpoints, done) if done else None

    with StepFile(args.out, rank, done) as steps:

        def keep_checkpoint(step: int, trainable: Trainable) -> None:
            # A checkpoint is good for nothing without the rows of its steps.
            steps.to_disk()
            # Nothing can be resumed after the last step: a record needs one that is timed.
            if step < work.steps:
                check_ours(args)
                checkpoint.save(
                    args.checkpoints, step, trainable.shards(), args.owner, rank=rank,
                    size=run.layout.num_processes, launch=args.launch, agree=trainable.agree,
                )  # fmt: skip

        def stops(trainable: Trainable) -> bool:
            # Rank 0 is on the launcher's node: files show late on others. All take its word.
            may_stop = args.stop_file is not None and run.strategy.resumes
            asked = may_stop and rank == 0 and args.stop_file.exists()
            return may_stop and not trainable.agree(not asked)

        with share():
            free_steps = 0 if spec.world.network == "emulated" else FREE_STEPS
            loop.run(
                steps.write,
                keep_checkpoint,
                stops=stops,
                free_steps=free_steps,
                done=done,
                state=state,
            )
    check_ours(args)
    about = _summary(loop, nccl.account(nccl_log)) | {"resumed_from_step": done}
    about["rank"]["forked"] = forked
    write_text(args.out / f"rank{rank}.json", json.dumps(about))


def unseen_text(loop: Loop) -> dict[str, float] | None:
    """Entropy of the text of the last steps, which no step before had; by rank 0.

    None for few steps, after the first epoch, and for other objectives than the next token.
    """
    work, objective = loop.spec.workload, loop.spec.objective
    causal = objective is None or objective.kind == "causal"
    if loop.rank or not causal or work.phases or work.steps <= UNSEEN_STEPS:
        return None
    entropy = loop.batches.unigram_entropy(work.steps - UNSEEN_STEPS, work.steps)
    return None if entropy is None else {"steps": UNSEEN_STEPS, "unigram_entropy": entropy}


def _summary(loop: Loop, account: dict[str, Any] | None) -> dict[str, Any]:
    """Software and hardware of this rank, for the record; `account` is NCCL's of its network."""
    from pipeline.machine.facts import loaded_versions, rank_environment
    from pipeline.models import flops_per_token, num_parameters
    from pipeline.training.clock import measured_flops_per_second

    spec, precision = loop.spec, loop.precision.info
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    usage = loop.sampler.summary()
    # Not every rank, and not every strategy, has these: they are left out where there are none.
    of_strategy = {n: getattr(loop.trainable, n, None) for n in ("placements", "autotuned")}
    of_rank = {
        "nccl": account,
        "tcp": loop.tcp,
        "sent": loop.sent,
        "free_running": loop.free_running,
        "padding_share": fmean(loop.padding) if loop.padding else None,
        "unseen_text": unseen_text(loop),
    }
    del loop.trainable  # the peak below is measured without it
    about = {
        "rank": {
            "rank": loop.rank,
            "node": loop.rank // local,
            "device": str(loop.device),
            "weights_sha256": loop.weights_sha256,
            "base_memory_bytes": loop.base_memory_bytes,
            "timer_overhead_seconds": loop.clock.overhead(),
            "peak_flops_per_second": measured_flops_per_second(
                loop.device, precision.compute_dtype
            ),
            **usage,
            "environment": rank_environment(loop.device, alone=spec.world.size == 1),
            **{name: value for name, value in of_rank.items() if value is not None},
            **loop.clock.pacer.summary(),
        },
        "precision": vars(precision),
        "model": {
            "num_parameters": num_parameters(spec.model),  # a rank may hold parts of them
            "flops_per_token": flops_per_token(spec.model),
        },
        "versions": loaded_versions(loop.strategy.requires),
        "host": socket.gethostname(),
        "image_digest": image.digest_from_within(),
        "settings": inherited.recorded(os.environ),
    }
    return about | {name: value for name, value in of_strategy.items() if value is not None}


def kind_of(error: Exception, lost_peer: Sequence[str] = ()) -> str:
    """The record's status for an exception, `lost` for a vanished peer, `error` for no record.

    `lost_peer` are words of the strategy's backend besides `LOST_PEER`.
    """
    for kind, own in (
        ("unsupported", UnsupportedError),
        ("stopped", StoppedError),
        ("disturbed", DisturbedError),
        ("lost", LostError | PeerError),
        ("failed", StrategyError),
        ("error", SamestepError),
    ):
        if isinstance(error, own):
            return kind
    if isinstance(error, OSError) and error.errno in OF_A_DISK:
        return "error"
    text = f"{type(error).__name__} {error}".lower()
    if isinstance(error, MemoryError) or any(sign in text for sign in OUT_OF_MEMORY):
        return "oom"
    return "lost" if any(sign in text for sign in (*LOST_PEER, *lost_peer)) else "failed"


if __name__ == "__main__":
    sys.exit(main())
