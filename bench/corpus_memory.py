"""Does the memory of `python -m pipeline tokens` grow with the corpus?

    python -m bench.corpus_memory --out bench/results/corpus_memory.json

The default corpus is written to text files once and many times over; each size is tokenised in a
process of its own with the tokeniser of the smoke study. Memory is the resident set summed over
the process and its children, sampled while it runs; shared pages count once per process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from pipeline.files import write_text
from pipeline.machine.facts import hardware
from pipeline.machine.source import provenance

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 0.02
NUM_PROC = 2
PLAN = ((1, 3), (50, 1))
"""Size of the corpus in copies of the default one, and how often it is tokenised."""


def main() -> int:
    """Measure every size and repeat, write the numbers and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as work:
        halves = default_corpus()
        for copies, repeat in ((c, r) for c, repeats in PLAN for r in range(repeats)):
            run = measure(halves, copies, Path(work))
            runs.append({"copies": copies, "repeat": repeat, **run})
            print(json.dumps(runs[-1]), file=sys.stderr)
    small, large = (
        statistics.median(run["peak_rss_bytes"] for run in runs if run["copies"] == copies)
        for copies, _ in PLAN
    )
    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "num_proc": NUM_PROC,
        "runs": runs,
        "peak_rss_ratio": large / small,
    }
    write_text(args.out, json.dumps(result, indent=1) + "\n")
    print(f"peak memory at {PLAN[1][0]}x is {large / small:.2f} times that at 1x -> {args.out}")
    return 0


def default_corpus() -> tuple[str, str]:
    """The default corpus as two texts, so that both sizes give each reader something to read."""
    from pipeline.corpus.sources import Source

    source = Source({"source": "python-docs"})
    documents, parts = [], []
    for unit in source.units():
        for piece, ends in source.read(unit):
            parts.append(piece)
            if ends:
                documents.append("".join(parts))
                parts = []
    middle = len(documents) // 8  # the help topics come first and are the longest
    return "\n\n".join(documents[:middle]), "\n\n".join(documents[middle:])


def measure(halves: tuple[str, str], copies: int, work: Path) -> dict[str, Any]:
    """Tokenise `copies` of the corpus; returns peak memory, wall time and counts."""
    with tempfile.TemporaryDirectory(dir=work) as folder_name:
        folder = Path(folder_name)
        paths = [folder / f"{copy:03d}-{half}.txt" for copy in range(copies) for half in (0, 1)]
        for number, path in enumerate(paths):
            path.write_text(halves[number % 2], encoding="utf-8")
        spec = {
            "corpus": {"source": "text", "paths": [str(p) for p in paths], "document": "block"},
            "tokenizer": {"kind": "bpe", "vocab_size": 2048},
            "context": 128,
            "model_vocab_size": 2048,
            "min_tokens": 2049,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "pipeline", "tokens", "--spec", str(folder / "spec.json")]
        command += ["--out", str(folder / "out"), "--num-proc", str(NUM_PROC)]
        started = time.monotonic()
        peak = peak_rss(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL))
        seconds = time.monotonic() - started
        manifest = json.loads((folder / "out" / "manifest.json").read_text())
    counts = {name: manifest[name] for name in ("num_documents", "num_characters", "num_tokens")}
    return {"peak_rss_bytes": peak, "wall_seconds": round(seconds, 2), **counts}


def peak_rss(process: subprocess.Popen[bytes]) -> int:
    """The largest sum of resident sets of the process and its descendants until it ends, in bytes.

    Raises CalledProcessError where it fails.
    """
    peak = 0
    root = psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            for member in [root, *root.children(recursive=True)]:
                total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # one ended between being listed and being read
        peak = max(peak, total)
        time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return peak


if __name__ == "__main__":
    sys.exit(main())
