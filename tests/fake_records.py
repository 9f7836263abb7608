"""TEST ONLY: plausible synthetic records.

No number here was measured. The step times follow a toy law (work shared by the ranks, plus a cost
for each exchange, plus noise of the run and of the step); the losses fall along a fixed curve.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd

from pipeline.files import write_text
from pipeline.metrics import table as tidy
from pipeline.metrics.build import build
from pipeline.metrics.results import Results
from pipeline.models import flops_per_token, num_parameters
from pipeline.records import RunRecord, Step, read_record, texts, write_record
from pipeline.resolved import ResolvedRun, first_runs
from pipeline.study.expansion import expand, planned_order, profiled
from pipeline.study.load import find_study, load_study
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.tables import write

# strategy -> (cost of one exchange in seconds, memory of the root over the others in bytes)
_LAW = {
    "single": (0.0, 0),
    "parameter_server": (0.05, 90_000_000),
    "ddp": (0.02, 0),
    "horovod": (0.025, 0),
}
_MIXED = {"amp_o1": ("torch", False), "amp_o2": ("torch", True), "apex_o1": ("apex", False),
          "apex_o2": ("apex", True)}  # fmt: skip

SIX_CELLS = (
    ("single", "Single device", "single", "fp32", [1]),
    ("sps", "Single Parameter Server", "parameter_server", "fp32", None),
    ("dps", "Distributed Parameter Server (DDP)", "ddp", "fp32", None),
    ("horovod", "Horovod", "horovod", "fp32", None),
    ("dps-amp", "Distributed Parameter Server (DDP) + AMP", "ddp", "amp_o1", None),
    ("horovod-apex", "Horovod + Apex", "horovod", "apex_o1", None),
)

EMULATED: dict[str, Any] = {
    "device": "cpu", "ranks_per_node": 1, "nodes": [1, 2, 4], "backend": "gloo",
    "network": "emulated", "cores_per_node": 1,
    "links": [
        {"name": "slow", "rate_mbits": 200},
        {"name": "fast", "rate_mbits": 1000},
    ],
}  # fmt: skip
"""The `cluster` of a study on emulated nodes over two links."""


PLAIN = {"name": "plain", "rate_mbits": 1000}
CONDITIONED = EMULATED | {
    "real_time": True,
    "links": [
        PLAIN,
        PLAIN | {"name": "straggler", "straggler": 0.5},
        PLAIN | {"name": "jitter", "jitter": 0.3},
        PLAIN | {"name": "asymmetric", "receive_mbits": 250},
        PLAIN | {"name": "oversubscribed", "uplink_mbits": 1000},
    ],
}
"""The `cluster` of a study of four conditions and of the same link without any."""

NO_NODES = "the kernel lets no user make network namespaces"
"""Why runs fell back to the loopback."""


def a_cell(name: str, strategy: str = "ddp", label: str = "", **more: Any) -> dict[str, Any]:
    """A cell of a study, in fp32 unless told otherwise."""
    plain = {"name": name, "label": label or name, "strategy": strategy, "precision": "fp32"}
    return plain | more


def make_study(**changes: Any) -> dict[str, Any]:
    """A valid study of six cells at 1, 2 and 4 nodes; `changes` replace top-level keys."""
    cells = [
        {"name": n, "label": la, "strategy": s, "precision": p} | ({"nodes": k} if k else {})
        for n, la, s, p, k in SIX_CELLS
    ]
    study = {
        "study": "fake",
        "title": "Synthetic study for tests",
        "corpus": {"source": "python-docs"},
        "tokenizer": {"kind": "bpe", "vocab_size": 2048},
        "model": {"family": "gpt2", "num_layers": 4, "width": 128, "num_heads": 4, "context": 128,
                  "vocab_size": 2048},
        "optimiser": {"name": "adamw", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999,
                      "eps": 1e-8, "weight_decay": 0.01, "max_grad_norm": 1.0,
                      "schedule": "linear", "warmup_steps": 5},
        "workload": {"global_batch": 16, "accumulation_steps": 1, "steps": 30, "untimed_steps": 5,
                     "scaling": "strong", "checkpoint_every": 0},
        "cluster": {"device": "cpu", "ranks_per_node": 1, "nodes": [1, 2, 4], "backend": "gloo",
                    "network": "loopback"},
        "cells": cells,
        "repeats": 3,
        "seeds": [20220613],
        "timeout_seconds": 300,
    }  # fmt: skip
    return {**study, **changes}


CONDITIONS: dict[str, Any] = {
    "repeats": 6, "cluster": CONDITIONED | {"nodes": [1, 4]}, "cells": make_study()["cells"][:4],
}  # fmt: skip
"""Changes of the study after which three cells are compared under each of the four conditions."""


def spec_of(cell: str = "dps", nodes: int | None = 2, **changes: Any) -> RunSpec:
    """The first run of a cell on so many nodes; of a study with a profile a profiled run."""
    study = Study.of(make_study(**changes))
    runs = profiled(study) if "profile" in changes else expand(study)
    return next(r for r in runs if r.cell == cell and nodes in (r.world.nodes, None))


@cache
def shipped(study: str, cell: str | None = None, nodes: int | None = None) -> ResolvedRun:
    """The first run of a shipped study, or of one of its cells on so many nodes."""
    runs = [(r.spec.cell, r.spec.world.nodes, r) for r in first_runs(load_study(find_study(study)))]
    return next(r for name, n, r in runs if cell in (name, None) and nodes in (n, None))


def fail(spec: RunSpec) -> tuple[str, str] | None:
    """Default failures: Apex never runs, the parameter server runs out of memory once."""
    if spec.precision.startswith("apex"):
        return "unsupported", "apex.amp is not importable and there is no CUDA device"
    if spec.cell == "sps" and spec.world.nodes == 4 and spec.repeat == 1:
        return "oom", "rank 0 was killed at 3.1 GiB of resident memory"
    return None


def make_records(
    study: Mapping[str, Any], failures: Any = fail, fell_back: Any = None
) -> list[RunRecord]:
    """One record for every run of `study`, in the planned order.

    `fell_back(spec)` says which runs were to be emulated and were made on the loopback.
    """
    return [
        make_record(spec, failures(spec), place, fell_back=bool(fell_back and fell_back(spec)))
        for place, spec in enumerate(planned_order(Study.of(study)))
    ]


def _bound(record: RunRecord) -> RunRecord:
    """The record as it is written and read, with the hash of its steps."""
    run = json.loads(json.dumps(record.run))
    bound = RunRecord(run, record.steps)
    run["steps_sha256"] = _sha(bound.step_text)
    return bound


def write_records(root: Path, study: Mapping[str, Any], failures: Any = fail) -> Path:
    """Write those records below `root`, which is returned."""
    for record in make_records(study, failures):
        put_record(root / record.spec.folder, record)
    return root


def put_record(folder: Path, record: RunRecord) -> None:
    """Write a record in half the time of `write_record`; who reads it validates it."""
    for name, text in texts(_bound(record)).items():
        write_text(folder / name, text)


def table_of(
    study: Mapping[str, Any], records: Iterable[RunRecord], uncertainty: float = 0.0
) -> pd.DataFrame:
    """The table of metrics of these records, which the stage gets in place of files.

    Writing and reading them takes three quarters of the time, and changes no row
    (`unit/metrics/test_build.py`).
    """
    found = {record.spec.run_id: _bound(record) for record in records}

    def read_all(_: Study, specs: Sequence[RunSpec], runs: Path) -> list[RunRecord]:
        return [found[spec.run_id] for spec in specs]

    with patch("pipeline.metrics.build.read_all", read_all):
        return build(Study.of(study), Path(), uncertainty)


def make_table(*, failures: Any = fail, fell_back: Any = None, **changes: Any) -> pd.DataFrame:
    """The table of metrics of the synthetic study, through the real stage; a copy of one's own."""
    study = make_study(**changes)
    if failures is fail and fell_back is None:
        return _table_of(json.dumps(study)).copy()
    return table_of(study, make_records(study, failures, fell_back))


@cache
def _table_of(study: str) -> pd.DataFrame:
    """Many tests of a process ask for the same study."""
    content = json.loads(study)
    return table_of(content, make_records(content))


def edited_table(root: Path, edit: Callable[[Path], object], **changes: Any) -> pd.DataFrame:
    """The table of the synthetic study after its records below `root` were edited."""
    study = make_study(**changes)
    edit(write_records(root, study))
    return build(Study.of(study), root)


def pick(table: pd.DataFrame, level: str, *metrics: str) -> pd.DataFrame:
    """Rows of these metrics, as `Results.pick` orders them."""
    return Results(table).pick(level, *metrics)


def altered(table: pd.DataFrame, where: Mapping[str, Any], **values: Any) -> pd.DataFrame:
    """A copy of the table with other `values` in the rows whose columns are as in `where`."""
    rows = pd.Series(True, index=table.index)
    for name, value in where.items():
        rows &= table[name].eq(value).fillna(False).astype(bool)
    copy = table.copy()
    for name, value in values.items():
        copy.loc[rows, name] = value
    return copy


def made(name: str, table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The raw numbers of a table of a study, and its text."""
    return write.made(name, Results(table))


def row_of(table: pd.DataFrame, metric: str, cell: str, nodes: int) -> pd.Series:
    """The one row of a metric of level `cell`."""
    rows = pick(table, "cell", metric)
    [place] = rows.index[(rows["cell"] == cell) & (rows["nodes"] == nodes)]
    return rows.loc[place]


def edited(record: RunRecord, edit: Callable[[dict[str, Any]], object]) -> RunRecord:
    """The record after `edit` has changed a copy of the content of its run.json."""
    run = json.loads(json.dumps(record.run))
    edit(run)
    return RunRecord(run, record.steps)


def edit_record(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Write the record below `folder` anew after `edit` has changed the content of its run.json."""
    write_record(folder, edited(read_record(folder), edit))


def edit_steps(folder: Path, edit: Callable[[Step], Step]) -> None:
    """Write the record below `folder` anew with each of its steps changed."""
    record = read_record(folder)
    write_record(folder, RunRecord(record.run, [edit(step) for step in record.steps]))


def write_table(table: pd.DataFrame, folder: Path) -> Path:
    """The table as the stages of figures and tables read it; returns the file."""
    tidy.write(table, folder / "metrics.parquet")
    return folder / "metrics.parquet"


def make_record(
    spec: RunSpec,
    failure: tuple[str, str] | None = None,
    place: int = 0,
    *,
    fell_back: bool = False,
) -> RunRecord:
    """One synthetic record; `failure` is (status, reason) of a run that did not finish.

    `place` is how many runs came before, each of which took half a minute; a run that `fell_back`
    was to be on emulated nodes and ran on the loopback.
    """
    emulated = spec.world.network == "emulated" and not fell_back
    status, reason = failure or ("ok", None)
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + place * timedelta(seconds=30)
    ok = failure is None
    run = {
        "schema_version": 1,
        "run_id": spec.run_id,
        "spec": spec.to_dict(),
        "spec_sha256": spec.sha256(),
        "status": status,
        "reason": reason,
        "origin": "measured",
        "started_at": start.isoformat(),
        "ended_at": (start + timedelta(seconds=30)).isoformat(),
        "versions": {"python": "3.11.2", "samestep": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
        "hardware": {"cpu_model": "Synthetic CPU", "num_cores": 2, "memory_bytes": 8 << 30,
                     "gpus": []},
        "data": {"manifest_sha256": _sha("manifest"), "tokenizer_sha256": _sha("tokenizer")},
        "execution": {"launcher": "fork" if emulated else "torchrun",
                      "world_size": spec.world.size,
                      "threads_per_rank": 1, "backend": spec.world.backend,
                      "network": "loopback" if fell_back else spec.world.network,
                      "clock": "after_barrier",
                      "layout": {"data_parallel": spec.world.size}, "settings": {}}
        | ({"network_reason": NO_NODES} if fell_back else {})
        | (_emulation(spec) if emulated else {}),
        "precision": _precision(spec) if ok else None,
        "model": {"num_parameters": num_parameters(spec.model),
                  "flops_per_token": flops_per_token(spec.model)} if ok else None,
        "ranks": [_rank(spec, rank) for rank in range(spec.world.size)] if ok else [],
        "provenance": {"git_commit": "0" * 40, "git_dirty": False, "image_digest": None},
    }  # fmt: skip
    world = spec.world if emulated else replace(spec.world, link=None)
    return with_steps(run, _steps(replace(spec, world=world)) if ok else [])


def with_steps(run: Mapping[str, Any], steps: Sequence[Step]) -> RunRecord:
    """A record of these steps, which ends half a minute after its start or when they are done."""
    dilation = run["execution"].get("emulation", {}).get("dilation", 1)
    total = dilation * sum(step.seconds for step in steps if step.rank == 0)
    ended = datetime.fromisoformat(run["started_at"]) + timedelta(seconds=max(30, math.ceil(total)))
    return RunRecord({**run, "ended_at": ended.isoformat()}, steps)


def _emulation(spec: RunSpec) -> dict[str, Any]:
    world, link = spec.world, spec.world.link
    if link is None:
        return {}
    share, rate = [0.97] * world.nodes, [0.95 * link.rate_mbits] * world.nodes
    tcp = {"rto_min_ms": 200 * max(1, world.nodes / 2), "quickack": True,
           "slow_start_after_idle": False, "loss_probes": False,
           "congestion_control": "reno"}  # fmt: skip
    return {"emulation": {
        "dilation": max(1, world.nodes // 2), "cores": 2,
        "cores_per_node": world.cores_per_node, "shares": "paced" if world.nodes > 2 else "own",
        "measured_cores": share, "link": link.to_dict(), "mtu": 9000, "tcp": tcp,
        "measured_mbits": rate if world.nodes > 1 else [],
    }}  # fmt: skip


def _precision(spec: RunSpec) -> dict[str, Any]:
    library, master = _MIXED.get(spec.precision, ("torch", False))
    compute = "float32" if spec.precision == "fp32" else "bfloat16"
    return {"name": spec.precision, "library": library, "compute_dtype": compute,
            "weights_dtype": "float32", "master_weights": master,
            "loss_scaling": False}  # fmt: skip


def _rank(spec: RunSpec, rank: int) -> dict[str, Any]:
    extra = _LAW.get(spec.strategy, (0.02, 0))[1] if rank == 0 and spec.world.size > 1 else 0
    noise = _random(spec, f"memory{rank}").randrange(4_000_000)
    device = f"cuda:{rank % spec.world.ranks_per_node}" if spec.world.device == "cuda" else "cpu"
    return {"rank": rank, "node": rank // spec.world.ranks_per_node, "device": device,
            "peak_memory_bytes": 420_000_000 // (1 + spec.world.size // 4) + extra + noise,
            "timer_overhead_seconds": 4e-7,
            "peak_flops_per_second": 5e10 + 100 * noise,
            "mean_utilisation": 0.9 / max(1, spec.world.size / 2) + noise / 1e8,
            "weights_sha256": _sha(f"{spec.run_id}")}  # fmt: skip


def rank_environment(host: str = "node0") -> dict[str, Any]:
    """Where a rank was, as records have it since they hold one for each rank."""
    return {"host": host, "cpu_model": "Synthetic CPU", "num_cores": 2, "memory_bytes": 8 << 30,
            "kernel": "Linux 6.1.0", "virtualisation": None, "gpu": None, "driver": None,
            "nccl": None, "interface": "lo", "interface_mbits": None}  # fmt: skip


def _steps(spec: RunSpec) -> list[Step]:
    noise, size, work = _random(spec, "steps"), spec.world.size, spec.workload
    mixed = spec.precision != "fp32"
    exchange = _LAW.get(spec.strategy, (0.02, 0))[0] * math.log2(size) * _slowness(spec)
    link = spec.world.link
    # How many times as long the slowest node of a step computes.
    longer = 1 if link is None else (1 + 0.8 * (link.jitter or 0)) / (link.straggler or 1)
    mean = (0.16 if mixed else 0.22) * work.global_batch / 16 / min(size, 2) * longer
    mean += exchange
    run_factor = noise.gauss(1, 0.02)
    wobble = 0.0 if spec.strategy == "single" else (3e-3 if mixed else 2e-7)
    steps = []
    for step in range(work.steps):
        truth = 4.2 + 3.4 * math.exp(-step / 9) + 0.08 * math.sin(step * 1.7)
        loss = truth * (1 + wobble * (0 if step == 0 else step / 8) * noise.uniform(-1, 1))
        norm = (2.5 - 0.04 * step) * (1 + wobble * noise.uniform(-1, 1))
        slow = mean * run_factor * (1 + abs(noise.gauss(0, 0.05))) * (1.6 if step < 2 else 1)
        for rank in range(size):
            seconds = slow * (1 - 0.01 * rank)
            steps.append(
                Step(step, rank, seconds, spec.at(step)[1].global_batch_tokens, loss, norm,
                     spec.rate(step), step >= work.first_timed(),
                     _phases(spec, seconds, exchange / mean) if spec.profile else None)
            )  # fmt: skip
    return steps


def _slowness(spec: RunSpec) -> float:
    """Of the exchange over the link; what a star sends meets at one cable."""
    link = spec.world.link
    if link is None:
        return 1
    star = spec.strategy == "parameter_server"
    receiving = link.rate_mbits / (link.receive_mbits or link.rate_mbits)
    crossing = link.rate_mbits / (link.uplink_mbits or math.inf)
    meeting = max(receiving if star else 0.7 * receiving, 1)
    return 1000 / link.rate_mbits * meeting * (1 + crossing * (1 if star else 0.02))


def _phases(spec: RunSpec, seconds: float, exchange: float) -> dict[str, float]:
    shares = {"forward": 0.3, "backward": 0.55, "optimiser": 0.1, "rest": 0.05}
    phases = {name: share * (1 - exchange) * seconds for name, share in shares.items()}
    return {**phases, "communication": exchange * seconds, "data": 0.004}


def _random(spec: RunSpec, purpose: str) -> random.Random:
    # A profiled run takes the steps of the timed run whose beginning it is.
    return random.Random(f"{replace(spec, profile=False).run_id}/{purpose}")


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def a_verdict() -> dict[str, Any]:
    """The content of a verdicts.json on the study `fake`, of one reproduced claim."""
    effect = {"value": 1.1, "low": 1.0, "high": 1.2, "unit": "1", "interval": "how"}
    one = {
        "id": "a-claim", "publication": "A paper", "sentence": "It is so.", "source": "page 1",
        "disagreement": None, "kind": "ratio", "verdict": "reproduced",
        "line": "reproduced: because; made on 8 V100",
        "why": "because", "scale": "made on 8 V100", "notes": ["a note"], "effect": effect,
        "claimed": {"low": None, "high": 2.0, "text": "below 2"},
        "published": {"value": 1.5, "source": "figure 1"}, "runs": ["fake/single/n1/r0"],
    }  # fmt: skip
    return {"schema_version": 1, "study": "fake", "verdicts": [one]}


def make_manifest() -> dict[str, Any]:
    """The content of a manifest.json of tokens that nobody made."""
    sha = "0" * 64
    return {
        "schema_version": 1,
        "source": {"source": "text", "files": ["text.txt"], "document": "block"},
        "tokenizer": {"kind": "bpe", "separator": "<|endoftext|>", "sha256": sha,
                      "trained_on_every_nth_piece": 1},
        "num_documents": 1,
        "num_characters": 9,
        "num_tokens": 9,
        "vocab_size": 257,
        "separator_id": 256,
        "dtype": "uint16",
        "text_sha256": sha,
        "shards": [{"file": "shard-00000.bin", "num_tokens": 9, "sha256": sha}],
        "versions": {"datasets": "5", "python": "3", "tokenizers": "0"},
    }  # fmt: skip
