"""Seconds from records to results: the metrics of 10,000 runs, and an archive's rebuild.

    python -m bench.from_records --out bench/results/from_records.json [--quick]

Both are of synthetic records (`tests/fake_records.py`), which are written first and are not timed.
The archive is of the default study's shape: it is packed, then `make paper FROM=` makes its results
anew and compares every byte. The 10,000 runs are those of `eight-nodes` over three links. Seconds
are of the wall clock; CPU seconds, of all processes, depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.archive.layout import ROOT
from pipeline.files import sha256_of_file, write_text
from pipeline.machine.facts import hardware, provenance
from pipeline.metrics.collect import run_folder
from pipeline.records import RunRecord, write_record
from pipeline.study.load import load_study
from pipeline.study.real_time import planned_order
from pipeline.study.study import Study
from tests.fake_bench import make_yardstick
from tests.fake_records import make_manifest, make_record

SHAPE, MANY = (ROOT / f"workflow/config/{name}/study.yaml" for name in ("smoke", "eight-nodes"))
NAME = "bench-of-records"
"""Of the study whose archive is rebuilt: `results` and `paper/generated` have it for a minute."""

LINKS = [{"name": f"{rate}mbit", "rate_mbits": rate} for rate in (200, 500, 1000)]
REPEATS = 196
"""51 cells and node counts over three links: 9,996 timed and 51 profiled runs."""

QUICK: dict[str, Any] = {"repeats": 1, "cluster": {"nodes": [1, 2]}}


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--quick", action="store_true", help="one repeat on 1 and 2 nodes")
    args = parser.parse_args()
    less: dict[str, Any] = QUICK if args.quick else {}
    about = hardware()
    with tempfile.TemporaryDirectory(prefix="samestep-records-") as folder:
        result = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": {key: about[key] for key in ("cpu_model", "num_cores")},
            "git_commit": provenance()["git_commit"],
            "rebuild": rebuild(Path(folder), study(study=NAME, **less)),
            "metrics": metrics(Path(folder), study(**({"repeats": REPEATS} | less), links=LINKS)),
        }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.out, json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("rebuild", "metrics")}))
    return 0


def study(cluster: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The default study with other keys and others of its cluster; over `links`, `eight-nodes`."""
    content = load_study(MANY if "links" in changes else SHAPE).to_dict()
    linked = {"links": changes.pop("links")} if "links" in changes else {}
    return {**content, **changes, "cluster": {**content["cluster"], **(cluster or {}), **linked}}


def metrics(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The table of all runs of a study."""
    results = folder / "many"
    count = write_results(results, content)
    words = [f"--study={results}/study.json", f"--runs={results}/runs"]
    words += [f"--yardstick={results}/yardstick.json"]
    return {"runs": count} | timed(*pipeline("metrics", *words, f"--out={results}/m.parquet"))


def rebuild(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Everything from the archive of a study; its results are made first by the same rules."""
    made, work = ROOT / "results" / "from_archive" / NAME, folder / NAME
    try:
        count = write_results(made, content)
        rules = ["--snakefile", "from_archive.smk", "--configfile", str(made / "study.json")]
        timed("sh", "envs/run_workflow.sh", *rules, "--cores", "all", "--quiet")
        shutil.copytree(made, work)
        shutil.rmtree(made)
        archive = folder / "study.zip"
        from pipeline.archive.pack import contents, write_zip

        write_zip(contents(work), archive)
        return {"runs": count} | timed("make", "paper", f"FROM={archive}", "STAMP=")
    finally:
        for left in (made, ROOT / "paper" / "generated" / "from_archive" / NAME):
            shutil.rmtree(left, ignore_errors=True)


def write_results(results: Path, content: dict[str, Any]) -> int:
    """Records of all runs with what belongs to them; returns their number."""
    write_text(results / "study.json", json.dumps(content, sort_keys=True) + "\n")
    write_text(results / "tokens/manifest.json", json.dumps(make_manifest()))
    drawn = random.Random(19)
    passes = [[drawn.gauss(0.01, 0.0005) for _ in range(20)] for _ in range(8)]
    write_text(results / "yardstick.json", json.dumps(make_yardstick(*passes)))
    tokens = {"manifest_sha256": sha256_of_file(results / "tokens/manifest.json")}
    specs = planned_order(Study.of(content))
    for place, spec in enumerate(specs):
        record = make_record(spec, None, place)
        run = {**record.run, "data": {**record.run["data"], **tokens}}
        write_record(run_folder(results / "runs", spec), RunRecord(run, record.steps))
        write_text(run_folder(results / "runs", spec) / "spec.json", spec.to_json())
    return len(specs)


def pipeline(*words: str) -> Sequence[str]:
    """`python -m pipeline WORDS`."""
    return [sys.executable, "-m", "pipeline", *words]


def timed(*command: str) -> dict[str, float]:
    """Wall and CPU seconds of a command; what it says is shown only where it fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed: {(done.stdout + done.stderr)[-3000:]}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": spent}


if __name__ == "__main__":
    sys.exit(main())
