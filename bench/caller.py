"""Step times from an empty shell and from one as sites set it up: the ratio of their medians.

    python -m bench.caller --out bench/results/caller.json

Two ranks of DDP train the default study's model on the loopback, from both shells in turn and each
pair in the other order than the one before. Each start loads for itself. What `module load`, an
allocation and a person's own file of settings leave in a shell reaches no rank, so that the medians
should be within 3 %; on a machine with other work their quartiles are wider than that.
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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.overhead import ROOT, STUDY, stage
from pipeline.files import write_text
from pipeline.machine.facts import hardware
from pipeline.machine.source import provenance
from pipeline.study.expansion import expand, tokens_spec
from pipeline.study.load import load_study

BARE = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
SITE = BARE | {
    "OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_NUM_THREADS": "64", "OMP_WAIT_POLICY":
    "active", "KMP_AFFINITY": "compact", "KMP_ALL_THREADS": "1", "MKL_DOMAIN_NUM_THREADS": "ALL=1",
    "ATEN_CPU_CAPABILITY": "default", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4096", "TORCH_SHOW_CPP_STACKTRACES": "1",
    "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": "/opt/site", "LD_PRELOAD": "", "LC_ALL": "C",
    "MODULEPATH": "/opt/modules", "LOADEDMODULES": "gcc:intel:openmpi", "MKLROOT": "/opt/mkl",
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_btl": "tcp", "CONDA_PREFIX": "/opt/conda",
    "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
}  # fmt: skip
"""A shell of `salloc` after a site's modules, as bad as people have reported it."""


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    study = load_study(STUDY)
    base = next(run for run in expand(study) if run.strategy == "ddp" and run.world.nodes == 2)
    world = replace(base.world, network="loopback", link=None, cores_per_node=None,
                    threads_per_rank=1, yardstick=None, dilated_for=None)  # fmt: skip
    work = replace(base.workload, steps=60, untimed_steps=10)
    spec = replace(base, world=world, workload=work)
    with tempfile.TemporaryDirectory(prefix="samestep-caller-") as name:
        folder = Path(name)
        write_text(folder / "tokens.json", json.dumps(tokens_spec(study)))
        stage("tokens", f"--spec={folder}/tokens.json", f"--out={folder}/tokens", "--num-proc=2")
        write_text(folder / "spec.json", spec.to_json())
        pairs = list[dict[str, float]]()
        for repeat in range(args.repeats):
            order = ("bare", "site") if repeat % 2 else ("site", "bare")
            pairs.append({shell: _median_step(folder, shell) for shell in order})
    ratios = [pair["site"] / pair["bare"] for pair in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    about = hardware()
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {key: about[key] for key in ("cpu_model", "num_cores")},
        "git_commit": provenance()["git_commit"],
        "ratio": middle,
        "quartiles": [low, high],
        "pairs": pairs,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.out, json.dumps(result, indent=1) + "\n")
    print(f"site over bare: {middle:.3f}, quartiles {low:.3f} to {high:.3f}")
    return 0


def _median_step(folder: Path, shell: str) -> float:
    """Median seconds of the timed steps of a run that is started from the shell."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    words = [f"--spec={folder}/spec.json", f"--tokens={folder}/tokens", f"--out={out}"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "train", *words], cwd=ROOT,
        env=SITE if shell == "site" else BARE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    record = json.loads((out / "run.json").read_text(encoding="utf-8")) if out.is_dir() else {}
    if record.get("status") != "ok":
        raise SystemExit(f"{shell}: {record.get('reason')}: {done.stderr[-2000:]}")
    lines = map(json.loads, (out / "steps.jsonl").read_text(encoding="utf-8").splitlines())
    return float(statistics.median(line["seconds"] for line in lines if line["timed"]))


if __name__ == "__main__":
    sys.exit(main())
