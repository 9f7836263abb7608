"""Versions, hardware and provenance; `python -m pipeline table environment`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.format import NONE, probability, significant
from pipeline.metrics.select import fact

CAPTION = (
    "The environment that the runs recorded. Where runs differ, all values are listed, separated "
    "by commas."
)
# It lists what was used and compares nothing.
COMPARES = FIELDS
_FACTS = (
    ("Processor", "cpu_model"),
    ("Cores", "num_cores"),
    ("Memory [GiB]", "memory_bytes"),
    ("GPUs", "gpus"),
    ("Launcher", "launcher"),
    ("Backend", "backend"),
    ("Git commit", "git_commit"),
    ("Image digest", "image_digest"),
    ("Tokeniser SHA-256", "tokenizer_sha256"),
)
_OF_RANKS = (
    ("Host", "host"),
    ("Kernel", "kernel"),
    ("Virtualisation", "virtualisation"),
    ("GPU driver", "driver"),
    ("NCCL", "nccl"),
    ("NCCL's transports", "nccl_transports"),
    ("NCCL's cards", "nccl_cards"),
    ("NCCL's channels", "nccl_channels"),
    ("Interface", "interface"),
    ("Interface [Mbit/s]", "interface_mbits"),
)
"""What the ranks tell of their machines; older records lack it."""

_GIBIBYTE = 2**30


def build(table: pd.DataFrame) -> pd.DataFrame:
    """Two columns, item and value: hardware, threads, provenance, data, then versions."""
    runs = table[table["level"] == "run"]
    value = {str(name): rows["value"].dropna() for name, rows in runs.groupby("metric")}
    none = pd.Series(dtype=float)
    sizes = sorted(value.get("memory_bytes", none).unique())
    memory = ", ".join(f"{size / _GIBIBYTE:.1f}" for size in sizes) or NONE
    found = [
        (item, memory if name == "memory_bytes" else fact(runs, name)) for item, name in _FACTS
    ]
    # The cores are divided, so one number of threads would not say it.
    threads = runs[runs["metric"] == "threads_per_rank"].groupby("world_size")["value"].unique()
    of_worlds = "; ".join(
        f"{'/'.join(f'{v:.0f}' for v in sorted(values))} at world size {size}"
        for size, values in threads.items()
    )
    found.insert(4, ("Threads a rank", of_worlds))
    found.append(("Order of runs", fact(table, "order_kept")))
    timer, clock = "not measured", value.get("timer_overhead_seconds", none)
    if len(clock):
        share = probability(100 * value["timer_overhead_share"].max())
        timer = f"at most {significant(1e6 * clock.max(), 2)} microseconds, {share} % of a step"
    found.append(("Timer overhead", timer))
    found += [(item, fact(runs, name)) for item, name in _OF_RANKS if (runs.metric == name).any()]
    if len(taken := value.get("steal_share", none)):
        found.append(("Time taken by the host", f"at most {100 * taken.max():.1f} % of a run"))
    if len(clocks := value.get("cpu_mhz", none)):
        found.append(("Clock of the cores", f"{clocks.min():,.0f} to {clocks.max():,.0f} MHz"))
    data = sorted(runs["data"].dropna().unique())
    found.append(("Token manifest SHA-256", ", ".join(data) or NONE))
    versions = sorted(m for m in runs["metric"].unique() if m.startswith("version:"))
    found += [(name.removeprefix("version:"), fact(runs, name)) for name in versions]
    return pd.DataFrame(found, columns=["item", "value"])


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; hashes are shortened to 12 characters."""
    shown = [", ".join(_short(part) for part in value.split(", ")) for value in frame["value"]]
    return pd.DataFrame({"Item": frame["item"], "Value": shown})


def _short(part: str) -> str:
    words = part.split(" ")
    hashed = len(words[0]) >= 40 and all(c in "0123456789abcdef:sha" for c in words[0])
    return " ".join([words[0][:12], *words[1:]]) if hashed else part
