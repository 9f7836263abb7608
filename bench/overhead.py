"""Cost of a run besides its steps: from the start of its stage to its record, less the steps.

    python -m bench.overhead --out bench/results/overhead.json

A run of one tiny layer and three steps is made again and again, in every setting in turn: on the
loopback, and on 1 to 8 emulated nodes, as a workflow makes it (`forked`: stage, launchers and ranks
are forks of loaded processes) and by itself (`alone`). Seconds of the wall clock depend on what
else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.files import write_text
from pipeline.launch import preloaded
from pipeline.resolved import resolve
from pipeline.study.expansion import expand, tokens_spec
from pipeline.study.link import LinkSpec
from pipeline.study.load import load_study
from pipeline.study.spec import ModelSpec, RunSpec

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "workflow/config/smoke/study.yaml"
MODEL = ModelSpec("gpt2", num_layers=1, width=16, num_heads=2, context=16, vocab_size=1024)
STEPS = 3
PLACES = (("loopback", 1), ("loopback", 2), *(("emulated", nodes) for nodes in (1, 2, 4, 8)))
ALONE = {preloaded.STAGES: "", preloaded.variable(1): ""}
"""Environment of a stage that finds no loaded process."""


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    from pipeline.machine.facts import hardware

    with tempfile.TemporaryDirectory(prefix="samestep-overhead-") as folder:
        settings = measure(Path(folder), args.repeats)
    about = {"cpu_model": hardware()["cpu_model"], "num_cores": os.cpu_count(), "steps": STEPS}
    result = {**about, "repeats": args.repeats, "settings": settings}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.out, json.dumps(result, indent=1) + "\n")
    for setting in settings:
        print(json.dumps(setting))
    return 0


def measure(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Median and quartiles of every setting, which all run in each repeat; the first warms up."""
    study = load_study(STUDY)
    write_text(folder / "tokens.json", json.dumps(tokens_spec(study)))
    stage("tokens", f"--spec={folder}/tokens.json", f"--out={folder}/tokens", "--num-proc=2")
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
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    if record["status"] != "ok":
        raise SystemExit(f"{record['run_id']}: {record['status']}: {record['reason']}")
    lines = map(json.loads, (out / "steps.jsonl").read_text(encoding="utf-8").splitlines())
    dilation = record["execution"].get("emulation", {}).get("dilation", 1)
    steps = dilation * sum(line["seconds"] for line in lines if line["rank"] == 0)
    return {
        "setting": f"{spec.world.network} {spec.world.nodes} {'forked' if forked else 'alone'}",
        "network": record["execution"]["network"],
        "overhead_seconds": wall - steps,
        "step_seconds": steps,
    }


def stage(*words: str, **environment: str) -> None:
    """`python -m pipeline WORDS`; what it says is shown only where it fails."""
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {done.stderr[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
