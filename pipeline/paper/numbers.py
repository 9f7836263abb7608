"""Every number and fact that the manuscript may use, from the study and the table of metrics.

The result is plain JSON: what stands in the paper can be looked up, and a sentence is chosen by the
booleans in it, so that the text never says more than the data does. What was asked for is here,
what came out in `facts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pipeline import strategies
from pipeline.catalogue import needs_met
from pipeline.corpus.objectives import KINDS
from pipeline.errors import SamestepError
from pipeline.metrics import headline
from pipeline.metrics.results import LEVELS, Results, records
from pipeline.models import family
from pipeline.paper import facts
from pipeline.study.load import load_study, shipped_studies
from pipeline.study.study import Study
from pipeline.tables.write import made
from pipeline.text import NONE, listed, markdown_code, numbered, plural

_OPTIMISERS = {
    "adamw": {"label": "AdamW", "source": "loshchilov2019"},
    "lamb": {"label": "LAMB", "source": "you2020"},
}
# Of so many cells a matrix, a column for each, is as wide as a page.
_MOST_COMPARED = 20


def collect(
    study: Study, results: Results, verdicts: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The content of numbers.json; JSON types only."""
    # The day on which the last run ended: the one date that the records themselves fix.
    ended = max(text for level in LEVELS for text in results.pick(level, "ended_at")["text"])
    day, asked = date.fromisoformat(ended[:10]), study.content["optimiser"]
    return {
        "study": _study(study, results),
        "corpus": _corpus(study),
        "model": _model(study),
        "optimiser": {
            **{k: f"{v:g}" if isinstance(v, int | float) else str(v) for k, v in asked.items()},
            **_OPTIMISERS[asked["name"]],
        },
        "workload": _workload(study, results),
        "cluster": _cluster(study, results),
        "emulation": facts.emulation(results),
        "runs": {
            "mixed": headline.mixed(results),
            "planned": headline.planned(results),
            "finished": sum(results.finished.values()),
            "any_finished": results.finished["timed"] > 0,
            "all_finished": results.finished == results.planned,
            "exceptions": len(made("status", results)[1]),
            "missing": headline.missing(results),
        },
        "measurement": facts.measurement(results),
        "parity": facts.parity(results),
        "loss": facts.loss(results),
        "split": facts.split(results),
        "claims": facts.claims(verdicts),
        "date": {"iso": day.isoformat(), "text": f"{day.day} {day:%B %Y}"},
        "headline": headline.headline(results),
    }


def _study(study: Study, results: Results) -> dict[str, Any]:
    name, cells = study.name, results.cells
    shipped = name in shipped_studies()
    # What a cell sets for itself: `workload.global_batch = 4 and options.empty_cache = True`.
    own = {arm.name: listed(f"{part}.{key} = {value}" for part, given in arm.own.items()
                            for key, value in given.items()) for arm in study.arms}  # fmt: skip
    if foreign := set(cells["arm"]) - set(own):
        raise SamestepError(
            f"the table of metrics has the cell {min(foreign)!r}, which the study {name!r} has "
            "not; run `python -m pipeline metrics` for this study"
        )
    shown = [
        {"cell": row["arm"], "label": row["arm_label"], "strategy": row["strategy"],
         "precision_ran": row["precision_ran"],
         "links": listed(cells.loc[cells["arm"] == row["arm"], "link"].dropna()) or NONE,
         "own": own[row["arm"]]}
        for row in records(cells.drop_duplicates("arm"))
    ]  # fmt: skip
    others = (load_study(path) for path in shipped_studies().values())
    siblings = [one.name for one in others if one.name != name and {*one.claims} & {*study.claims}]
    repeats = sorted({arm.repeats for arm in study.arms})
    given = f" STUDY={name if shipped else 'FILE.yaml'}" if name != "smoke" else ""
    return {
        "name": name,
        "title": study.title,
        "command": f"make paper{given}",
        "besides": "" if shipped else " with the study's file and its text",
        "repeats": " or ".join([*map(str, repeats[:-1]), plural(repeats[-1], "repeat")]),
        "seeds": listed(study.seeds),
        "num_seeds": len(study.seeds),
        "num_cells": len(shown),
        "few_cells": len(shown) <= _MOST_COMPARED,
        "pairs": len(made("comparisons", results)[1]),
        "nodes": numbered(results.node_counts, "node"),
        "cells": shown,
        "strategies": [
            {"name": name, "about": strategies.about(name).rstrip(".")}
            for name in dict.fromkeys(one["strategy"] for one in shown)
        ],
        "siblings": listed(map(markdown_code, siblings)),
        "any_own": any(own.values()),
        "any_links": bool(cells["link"].notna().any()),
        **needs_met(study),
        "declared": listed(sorted(f.replace("_", " ") for f in results.declared)),
    }


def _model(study: Study) -> dict[str, Any]:
    """Its name and sizes, what its configuration has besides, and what it learns."""
    model, task = study.model, study.objective
    label, source = family(model).label(model)
    besides = ""
    if model.config_sha256:
        besides = f"all else by a configuration of SHA-256 {model.config_sha256[:12]}"
    elif model.config:
        given = (markdown_code(f"{name}: {value}") for name, value in model.config.items())
        besides = f"by its configuration {listed(given)}"
    return {
        "family": label,
        "source": source,
        **{name: getattr(model, name) for name in ("num_layers", "width", "num_heads", "context")},
        "vocabulary": f"{model.vocab_size:,}",
        "besides": besides,
        "learns": KINDS[task.kind].learns(task) if task else "",
    }


def _corpus(study: Study) -> dict[str, Any]:
    corpus, tokenizer = study.corpus, study.tokenizer
    files = listed(markdown_code(Path(path).name) for path in corpus.get("paths", []))
    sources = {
        "python-docs": "the prose that ships with every CPython: its language reference topics "
        "and the docstrings of its standard library",
        "json": f"the strings of {files}",
        "text": f"the text of {files}",
        "hub": f"the data set {markdown_code(str(corpus.get('name')))} (split "
        f"{markdown_code(str(corpus.get('split')))}, "
        f"revision {markdown_code(str(corpus.get('revision'))[:12])})",
    }
    kinds = {
        "bpe": "byte-level byte-pair encoding trained on that text",
        "wordpiece": "WordPiece with BERT's special tokens, trained on that text",
        "char": "one token a character, with a vocabulary built from that text",
        "pretrained": f"the pretrained tokeniser {markdown_code(str(tokenizer.get('name')))}",
    }
    return {"source": sources[corpus["source"]], "tokenizer": kinds[tokenizer["kind"]]}


def _workload(study: Study, results: Results) -> dict[str, Any]:
    work, runs = study.workload, results.runs
    # All cells share the batch of a step, or under weak scaling that of each device.
    batch_differs = runs["global_batch"].nunique() > 1
    # Equal where all have as many sequences a device, which weak scaling keeps.
    each = (runs["global_batch"] / runs["data_devices"]).nunique()
    per_device = bool((runs["scaling"] == "weak").all()) and each == 1
    # Of the cells that set no work of their own, where there are some.
    own = {arm.name for arm in study.arms if arm.own["workload"]}
    plain = runs if set(runs["arm"]) <= own else runs[~runs["arm"].isin(own)]
    same = "the same optimisation step on the same batch"
    if batch_differs and per_device:
        same += " per device, so that the whole grows with them"
    elif batch_differs:
        same = "the same optimisation step wherever global batches are equal"
    return {
        "scaling": work.scaling,
        "batches": " or ".join(map(str, sorted({int(b) for b in plain["global_batch"]}))),
        "tokens": " or ".join(
            f"{t:,}" for t in sorted({int(t) for t in plain["global_batch_tokens"]})
        ),
        "equal": not batch_differs or per_device,
        "same": same,
        "batch_differs": batch_differs,
        "speedup": results.speedup_name,
        "accumulation": plural(work.accumulation_steps, "micro-batch").replace("batchs", "batches"),
        "steps": plural(work.steps, "step"),
        "begin": study.begin_steps or 0,
        "whole": listed(map(markdown_code, study.whole)),
        "phases": listed(
            f"{plural(one.steps, 'step')} of {one.global_batch} sequences of {one.context} tokens"
            for one in work.phases
        ),
        "ends_in_warmup": (study.begin_steps or work.steps)
        <= study.content["optimiser"]["warmup_steps"],
        "untimed": "" if work.first_timed() == 1 else f" {work.first_timed()}",
        "has_untimed": work.first_timed() > 0,
    }


def _cluster(study: Study, results: Results) -> dict[str, Any]:
    cluster, runs = study.cluster, results.runs
    networks = set(runs["network"])
    together = runs.loc[runs["network"] == "loopback", "world_size"]
    cores = results.pick("run", "num_cores")["value"].dropna()
    return {
        "device": {"cpu": "CPU", "cuda": "GPU"}[cluster.device],
        "emulated": "emulated" in networks,
        "loopback": "loopback" in networks,
        "real": bool(((runs["network"] == "real") & (runs["nodes"] > 1)).any()),
        "backend": cluster.backend,
        "ranks_per_node": plural(cluster.ranks_per_node, "rank"),
        "largest_world": int(together.max()) if len(together) else 0,
        "cores": listed(sorted({int(c) for c in cores})),
        "oversubscribed": bool(len(cores) and len(together) and together.max() > cores.min()),
    }
