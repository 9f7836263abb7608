"""How a study becomes runs: `expand(study)`, and what else follows from a study alone.

A study is the mapping of a `workflow/config/*.yaml` file after validation by
`workflow/schemas/config.schema.yaml`. It becomes one `RunSpec` for each cell x link x node count x
repeat; one node uses no link, so over several links its runs are made once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pipeline.errors import StudyError
from pipeline.study.spec import (
    LinkSpec,
    ModelSpec,
    OptimiserSpec,
    RunSpec,
    WorkloadSpec,
    WorldSpec,
)

MAX_RUNS = 10_000
"""More than any study has had (`smoke`: 216), and about what one Snakemake can schedule."""

FALLBACK = "loopback"
"""Stands for the link of runs that were to be emulated and were made on the loopback."""


def repeat_bounds(study: Mapping[str, Any]) -> tuple[int, int]:
    """Fewest and most repeats of a cell; equal where the study fixes their number."""
    repeats = study["repeats"]
    if isinstance(repeats, int):
        return repeats, repeats
    least, most = repeats["at_least"], repeats["at_most"]
    if most < least:
        raise StudyError(f"repeats.at_most {most} is under repeats.at_least {least}; raise at_most")
    return least, most


def expand(study: Mapping[str, Any]) -> list[RunSpec]:
    """All runs of a validated study, cell by cell; raises StudyError on a contradiction.

    With adaptive repeats these are all that there may be; `pipeline.metrics.adaptive` says which
    of them are called for.
    """
    cells = cells_of(study)
    _check_names(study, [cell["name"] for cell in cells])
    worlds = [(cell, nodes) for cell in cells for nodes in cell["nodes"]]
    repeats = repeat_bounds(study)[1]
    if len(worlds) * repeats > MAX_RUNS:
        raise StudyError(
            f"the study has {len(worlds) * repeats} runs, over {MAX_RUNS}: {len(worlds)} cells and "
            f"node counts of {repeats} repeats each; split it or have fewer repeats"
        )
    _check_conditions(study, max(nodes for _, nodes in worlds))
    runs = [_run(study, cell, nodes, repeat) for cell, nodes in worlds for repeat in range(repeats)]
    for run in runs:
        run.check()
    return runs


def _check_names(study: Mapping[str, Any], names: list[str]) -> None:
    """Every cell has a name of its own, also where it falls back to the loopback."""
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"cell name {name!r} stands {names.count(name)} times; make it unique")
    if any(link.name == FALLBACK for link in links_of(study)):
        raise StudyError(f"link name {FALLBACK!r} is that of no link; give it another name")
    for cell in study["cells"] if links_of(study) else []:
        if fallback_name(cell["name"]) in names:
            raise StudyError(
                f"cell name {fallback_name(cell['name'])!r} is that of {cell['name']!r} where it "
                "is run on the loopback; give it another name"
            )


def _check_conditions(study: Mapping[str, Any], most_nodes: int) -> None:
    """Every condition of a link means something, and can hold somewhere."""
    for link in links_of(study):
        if link.receive_mbits == link.rate_mbits:
            raise StudyError(
                f"link {link.name!r} receives at its rate_mbits {link.rate_mbits:g}; leave "
                "receive_mbits out"
            )
        for name in link.conditions if most_nodes < 2 else ():
            raise StudyError(
                f"link {link.name!r}: {name} needs a cell on 2 nodes or more; leave it out or "
                "raise cluster.nodes"
            )


def fallback_name(arm: str) -> str:
    """The cell of an arm's runs that were to be emulated and were made on the loopback."""
    return f"{arm}-{FALLBACK}"


def links_of(study: Mapping[str, Any]) -> list[LinkSpec]:
    """The links of an emulated network; none elsewhere. Raises StudyError on a contradiction."""
    cluster = study["cluster"]
    emulated = cluster["network"] == "emulated"
    for key in ("links", "cores_per_node"):
        if emulated != (key in cluster):
            raise StudyError(
                f"cluster.{key} belongs to cluster.network emulated, given {cluster['network']}; "
                f"{'add it' if emulated else 'leave it out'}"
            )
    return [LinkSpec(**link) for link in cluster.get("links", [])]


def without_conditions(link: LinkSpec, links: Iterable[LinkSpec]) -> LinkSpec | None:
    """Which of `links` is this one without its conditions; None for one that has none itself."""
    if not link.conditions:
        return None
    return next((x for x in links if x == replace(link.plain, name=x.name)), None)


def compares_conditions(study: Mapping[str, Any]) -> bool:
    """Whether a study has a link under conditions and the same link without them."""
    links = links_of(study)
    return any(without_conditions(link, links) for link in links)


def cells_of(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells of a study, each with its `nodes`; `arm` is the name that the study gave.

    Over several links an arm is one cell for each, with the link in its name, on several nodes.
    One node sends nothing over a link: it is a cell once, under the arm's own name, and the first
    link stands in its spec.
    """
    links = links_of(study)
    found: list[dict[str, Any]] = []
    for cell in study["cells"]:
        nodes = cell.get("nodes", study["cluster"]["nodes"])
        arm = {"arm": cell["name"], **cell, "nodes": nodes}
        if len(links) < 2:
            found += [arm | {"link": link.to_dict()} for link in links] or [arm]
            continue
        if 1 in nodes:
            found.append(arm | {"link": links[0].to_dict(), "nodes": [1]})
        if several := [count for count in nodes if count > 1]:
            found += [
                arm | {"link": x.to_dict(), "nodes": several, "name": f"{cell['name']}-{x.name}"}
                for x in links
            ]
    return found


def _run(study: Mapping[str, Any], cell: Mapping[str, Any], nodes: int, repeat: int) -> RunSpec:
    cluster = study["cluster"]
    work = study["workload"] | cell.get("workload", {})
    optimiser = study["optimiser"] | cell.get("optimiser", {})
    world = WorldSpec(
        nodes=nodes,
        ranks_per_node=cell.get("ranks_per_node", cluster["ranks_per_node"]),
        device=cluster["device"],
        backend=cluster["backend"],
        network=cluster["network"],
        threads_per_rank=cluster.get("threads_per_rank"),
        link=_link(cell, nodes),
        cores_per_node=cluster.get("cores_per_node"),
    )
    factor = world.size if work["scaling"] == "weak" else 1
    seeds = study["seeds"]
    return RunSpec(
        study=study["study"],
        cell=cell["name"],
        strategy=cell["strategy"],
        precision=cell["precision"],
        world=world,
        model=ModelSpec(**study["model"]),
        optimiser=OptimiserSpec(**optimiser),
        workload=WorkloadSpec(**{**work, "global_batch": work["global_batch"] * factor}),
        repeat=repeat,
        seed=seeds[repeat % len(seeds)],
        compile=study.get("compile", False),
        timeout_seconds=study["timeout_seconds"],
        image_digest=study.get("image_digest"),
        options=dict(cell.get("options", {})),
    )


def _link(cell: Mapping[str, Any], nodes: int) -> LinkSpec | None:
    """The link of a cell's runs; on one node no condition holds."""
    if "link" not in cell:
        return None
    link = LinkSpec(**cell["link"])
    return link if nodes > 1 else link.plain


def tokens_spec(study: Mapping[str, Any]) -> dict[str, Any]:
    """What the token shards of a study depend on, and nothing else.

    `min_tokens` is one global batch of the largest world: (sequences x context) + 1.
    """
    largest = max(run.workload.global_batch for run in expand(study))
    return {
        "corpus": study["corpus"],
        "tokenizer": study["tokenizer"],
        "context": study["model"]["context"],
        "model_vocab_size": study["model"]["vocab_size"],
        "min_tokens": largest * study["model"]["context"] + 1,
    }


def run_order(runs: list[RunSpec]) -> list[RunSpec]:
    """The runs in a random order that the study's seeds fix: repeats first, shuffled inside.

    Drift of the machine then spreads over all cells instead of hitting one (Hoefler & Belli, SC15).
    """
    generator = random.Random(f"{[(run.study, run.seed) for run in runs]}")
    shuffled = generator.sample(runs, len(runs))
    return sorted(shuffled, key=lambda run: run.repeat)
