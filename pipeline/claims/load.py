"""Read a file of claims and check it at the door (closed schema, then every name in it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from pipeline import reference, strategies
from pipeline.claims.predicted import configurations
from pipeline.claims.types import Claim, Region, Scale, Selector
from pipeline.claims.worlds import APEX, BACKENDS
from pipeline.documents import read_document
from pipeline.errors import ClaimError, StudyError, refuse
from pipeline.parallel.mesh import CONTEXT, DATA, EXPERT, PIPELINE, REPLICA, TENSOR
from pipeline.schemas import validate
from pipeline.study.spec import WorldSpec
from pipeline.study.study import Study

FOLDER = Path(__file__).parents[2] / "workflow" / "config"

# Folders of claims until each publication had the name of its study: studies in archives say so.
_FORMER = {"alpa": "alpa2022", "gspmd": "gspmd2021", "mtnlg": "mtnlg2022", "ptdp": "ptdp2021"}


def load_claims(*paths: Path) -> list[Claim]:
    """The claims of files in their order; raises ClaimError naming the key, value and rule."""
    files: dict[str, Path] = {}
    claims = []
    for path in paths:
        for claim in parse(read_document(path, "", ClaimError, "see workflow/config"), path):
            if claim.id in files:
                raise ClaimError(
                    f"{path}: the claim {claim.id!r} stands twice, also in {files[claim.id]}; give "
                    "each file once and each claim an id of its own"
                )
            files[claim.id] = path
            claims.append(claim)
    return claims


def parse(content: Any, where: Path | str) -> list[Claim]:
    """The claims of a file's mapping, whose ids may stand twice; raises ClaimError."""
    validate(content, "claims", where, ClaimError, "see claims.schema.yaml")
    if content.get("reference", reference.ids()[0]) not in reference.ids():
        raise ClaimError(
            f"{where}: no published figures of {content['reference'][:80]!r}; use one of "
            f"{', '.join(reference.ids())}"
        )
    selectors: dict[str, Selector] = {}
    for name, cell in content["cells"].items():
        one = _selector(name, cell, f"{where}: cell {name!r}")
        # A ratio of two that are alike would compare runs with themselves.
        for other, known in selectors.items():
            if one == known:
                raise ClaimError(
                    f"{where}: cells {other!r} and {name!r} select the same runs; leave one out"
                )
        selectors[name] = one
    return [
        _claim(entry, content, selectors, f"{where}: claim {entry['id']}")
        for entry in content["claims"]
    ]


def _selector(name: str, cell: Mapping[str, Any], at: str) -> Selector:
    """Cells of a strategy that there is, by knobs that it has."""
    selector = Selector(name=name, **cell)
    try:
        strategy = strategies.load(selector.strategy, selector.options)
        # There has to be a layout on so many nodes, with whatever ranks on each.
        for ranks in (8, 4, 2, 1) if selector.nodes is not None else ():
            try:
                strategy.layout(WorldSpec(selector.nodes or 1, ranks, "cpu", "gloo", "loopback"))
                break
            except StudyError:
                if ranks == 1:
                    raise
    except StudyError as error:
        raise ClaimError(f"{at}: {error}") from None
    known, software = sorted({APEX, *BACKENDS, *strategy.requires}), selector.software or APEX
    axes = [DATA, REPLICA, PIPELINE, TENSOR, CONTEXT, EXPERT, *getattr(strategy, "axes", ())]
    low, high = selector.min_batch_per_rank, selector.max_batch_per_rank
    refuse(ClaimError, f"{at}: ", [
        (software.lower() not in known,
         f"no record of strategy {selector.strategy} says whether {software[:80]!r} ran; "
         f"expected one of {', '.join(known)}"),
        *((axis not in axes, f"no axis {axis[:80]!r}; expected {', '.join(dict.fromkeys(axes))}")
          for axis in sorted(selector.axes)),
        *((point not in configurations(),
           f"no published point {point[:80]!r}; name a row of pipeline/reference/points")
          for point in selector.points),
        (low > high,
         f"min_batch_per_rank {low} is over max_batch_per_rank {high}; no cell has both"),
    ])  # fmt: skip
    return selector


def _claim(
    entry: Mapping[str, Any], content: Mapping[str, Any], cells: Mapping[str, Selector], at: str
) -> Claim:
    source, test, needs = entry["source"], entry["test"], entry.get("needs", {})
    # Seconds and bytes are of a machine; a ratio of two is not, and may be tested on any.
    if test["kind"] == "absolute":
        because = "it is no ratio, so it holds for its own machine and model alone"
        needs = {"same_hardware": True, "same_model": True, "because": because} | needs
    return Claim(
        id=entry["id"],
        document=content["publication"],
        sentence=entry["sentence"],
        source=f"{_known(content['sources'], source['key'], 'source', at)}, {source['place']}",
        place=source["place"],
        made_at=Scale(**entry.get("made_at", content["made_at"])),
        kind=test["kind"],
        test=_resolve(test, cells, at),
        region=_region(test),
        needs=needs,
        published=_published(entry, content, at),
        **{key: entry.get(key) for key in ("disagreement", "part_of", "shared_effect")},
    )


def _known(names: Mapping[str, Any], name: str, what: str, at: str) -> Any:
    if name not in names:
        raise ClaimError(f"{at} names the {what} {name!r}; use one of {', '.join(names)}")
    return names[name]


def _resolve(test: Mapping[str, Any], cells: Mapping[str, Selector], at: str) -> dict[str, Any]:
    """The test with names of cells replaced by their selectors."""
    tolerance, is_about = test.get("tolerance"), test.get("comparison", "about") == "about"
    refuse(ClaimError, f"{at}: ", [
        *((two in test and test[one] == test[two],
           f"{one} and {two} are both {test.get(one)!r}; name two cells")
          for one, two in (("a", "b"), ("c", "d"), ("fits", "too_large"))),
        ("d" in test and (test["a"], test["b"]) == (test["c"], test["d"]),
         f"both ratios are {test.get('a')!r} over {test.get('b')!r}; name two"),
        ("comparison" in test and is_about and not tolerance,
         "an effect is never exactly its bound; add a tolerance over 0"),
        (tolerance is not None and not is_about,
         f"comparison {test.get('comparison')} has no tolerance; leave tolerance out, or compare "
         "`about`"),
        (test.get("a") in test.get("others", ()),
         f"{test.get('a')!r} is one of its own others; leave it out there"),
    ])  # fmt: skip
    resolved = dict(test)
    for key, value in test.items():
        if key in ("a", "b", "c", "d", "fits", "too_large"):
            resolved[key] = _known(cells, value, "cell", at)
        elif key in ("others", "cells"):
            resolved[key] = [_known(cells, name, "cell", at) for name in value]
    return resolved


def _region(test: Mapping[str, Any]) -> Region | None:
    """Region of the effect; a best must be above 1, a distance below its tolerance."""
    match test["kind"]:
        case "best" | "robust":
            return Region("above", 1.0, 0.0)
        case "worst":
            return Region("below", 1.0, 0.0)
        case "utilisation":
            return Region("within", float(test["tolerance"]), 0.0)
        case "fits" | "same_steps":
            return None
    return Region(test["comparison"], float(test["bound"]), float(test.get("tolerance", 0.0)))


def _published(
    entry: Mapping[str, Any], content: Mapping[str, Any], at: str
) -> reference.Number | None:
    """The effect by the published figures, with the places that they stand at."""
    if "published" not in entry:
        return None
    if "reference" not in content:
        raise ClaimError(f"{at} has published figures, but the file names no reference; add one")
    over, under = entry["published"]["over"], entry["published"].get("under", [])
    if both := {*over} & {*under}:
        raise ClaimError(f"{at}: {min(both)!r} is both over and under; leave it out of published")
    number = reference.load(content["reference"]).number
    value = prod(number(name).value for name in over) / prod(number(name).value for name in under)
    sources = dict.fromkeys(number(name).source for name in [*over, *under])
    return reference.Number(value, "; ".join(sources))


def files_of(study: Study) -> Sequence[Path]:
    """The files of claims that a study names; raises ClaimError where one does not exist."""
    paths = [FOLDER / _FORMER.get(name, name) / "claims.yaml" for name in study.claims]
    for path in paths:
        if not path.is_file():
            known = ", ".join(sorted(p.parent.name for p in FOLDER.glob("*/claims.yaml")))
            raise ClaimError(
                f"study {study.name!r} names the claims {path.parent.name!r}; use one of {known}"
            )
    return paths
