"""Cost of a run besides its steps: from the start of its stage to its record, less the steps.

    python -m bench.overhead --out bench/results/overhead.json

A run of one tiny layer and three steps is made again and again, in every setting in turn: on the
loopback, and on 1 to 8 emulated nodes, as a workflow makes it (`forked`: stage, launchers and ranks
are forks of loaded processes) and by itself (`alone`). Seconds of the wall clock depend on what
else the machine does.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.scaffold import STUDY, about, make_tokens, parser, stage, write
from pipeline.files import write_text
from pipeline.launch import preloaded
from pipeline.records import read_record
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.link import LinkSpec
from pipeline.study.load import load_study
from pipeline.study.spec import ModelSpec, RunSpec

MODEL = ModelSpec("gpt2", num_layers=1, width=16, num_heads=2, context=16, vocab_size=1024)
STEPS = 3
PLACES = (("loopback", 1), ("loopback", 2), *(("emulated", nodes) for nodes in (1, 2, 4, 8)))
ALONE = {preloaded.STAGES: "", preloaded.variable(1): ""}
"""Environment of a stage that finds no loaded process."""


def main() -> int:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=10)
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="samestep-overhead-") as folder:
        settings = measure(Path(folder), args.repeats)
    write(args.out, about() | {"steps": STEPS, "repeats": args.repeats, "settings": settings})
    for setting in settings:
        print(json.dumps(setting))
    return 0


def measure(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Median and quartiles of every setting, which all run in each repeat; the first warms up."""
    study = load_study(STUDY)
    make_tokens(study, folder)
    base = expand(study)[0]
    specs = [spec_of(base, *place) for place in PLACES]
    preloaded.start_stages()
    preloaded.start_ranks(map(resolve, specs))
    settings = [(spec, forked) for spec in specs for forked in (True, False)]
    rounds = [[run(folder, *setting) for setting in settings] for _ in range(repeats + 1)]
    summaries = []
    for taken in zip(*rounds[1:], strict=True):
        overhead = [one["overhead_seconds"] for one in taken]
        low, _, high = statistics.quantiles(overhead, n=4, method="inclusive")
        steps = statistics.median(one["step_seconds"] for one in taken)
        middle = {"overhead_seconds": statistics.median(overhead), "step_seconds": steps}
        summaries.append({**taken[0], **middle, "quartiles": [low, high]})
    return summaries


def spec_of(base: RunSpec, network: str, nodes: int) -> RunSpec:
    """A run of DDP that does next to nothing, at the speed and dilation of its own nodes."""
    link = LinkSpec("bench", 1000) if network == "emulated" else None
    cores, threads = (1, None) if link else (None, 1)
    world = replace(
        base.world, nodes=nodes, network=network, link=link, cores_per_node=cores,
        threads_per_rank=threads, yardstick=None, dilated_for=None,
    )  # fmt: skip
    work = replace(base.workload, steps=STEPS, untimed_steps=1, global_batch=8)
    strategy = "ddp" if nodes > 1 else "single"
    return replace(base, strategy=strategy, world=world, workload=work, model=MODEL)


def run(folder: Path, spec: RunSpec, forked: bool) -> dict[str, Any]:
    """Seconds of one run, by the wall clock, besides its steps."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    write_text(out / "spec.json", spec.to_json())
    begun = time.perf_counter()
    words = [f"--spec={out}/spec.json", f"--tokens={folder}/tokens", f"--out={out}"]
    stage("train", *words, **({} if forked else ALONE))
    wall = time.perf_counter() - begun
    record = read_record(out)
    if record.status != "ok":
        raise SystemExit(f"{spec.run_id}: {record.status}: {record.run['reason']}")
    execution = record.run["execution"]
    dilation = execution.get("emulation", {}).get("dilation", 1)
    steps = dilation * sum(step.seconds for step in record.steps if step.rank == 0)
    return {
        "setting": f"{spec.world.network} {spec.world.nodes} {'forked' if forked else 'alone'}",
        "network": execution["network"],
        "overhead_seconds": wall - steps,
        "step_seconds": steps,
    }


if __name__ == "__main__":
    sys.exit(main())
