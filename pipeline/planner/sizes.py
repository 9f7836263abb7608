"""Shapes of GPT-2 and GPT-3 by size: those published, and any other on the curve of GPT-3's table.

The published shapes are in `pipeline/reference/models.json`, each with its source; their family is
that of all sizes.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from pipeline import reference
from pipeline.errors import StudyError
from pipeline.models import num_parameters
from pipeline.study.model_files import with_files
from pipeline.study.spec import ModelSpec, OptimiserSpec

SMALLEST, LARGEST = 40e6, 10e12
"""Parameters of a size that is not published: from one of few layers to ten times any known."""
GPT3_CONTEXT = 2048
_ABOUT = ("id", "document", "note")
ADAMW = OptimiserSpec("adamw", 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, "linear", 2000)


@cache
def sizes(part: str = "models") -> dict[str, ModelSpec]:
    """The published sizes of the table, or those `further` ones beside it, the smallest first."""
    path = Path(reference.__file__).with_name("models.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        one["id"]: ModelSpec(content["family"], **{k: one[k] for k in one if k not in _ABOUT})
        for one in content[part]
    }


def model_of(given: str) -> ModelSpec:
    """The model of a size, or of a configuration of transformers, the path of its config.json."""
    if not given.endswith(".json"):
        return size_of(given)
    section = {"family": "transformers", "config": given}
    return ModelSpec(**with_files(section, Path(), extends=False))


def size_of(name: str) -> ModelSpec:
    """The model of a size such as `1.3B` or `350M`: a published one, or a shape on GPT-3's curve.

    Its width lies between those of the two neighbours in GPT-3's table, by the logarithm of their
    parameters, as a multiple of eight heads of 128 (of four heads of 64 under a width of 2048); its
    depth brings the parameters nearest to the size. Beyond the table the width grows with the cube
    root. Raises StudyError for what is no size, or one that no such model has.
    """
    known = sizes() | sizes("further")
    if name in known:
        return known[name]
    parts = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([MB])", name)
    wanted = float(parts[1]) * {"M": 1e6, "B": 1e9}[parts[2]] if parts else 0.0
    if not SMALLEST <= wanted <= LARGEST:
        raise StudyError(
            f"size {name[:60]!r} is none; write parameters in millions or billions from "
            f"{SMALLEST / 1e6:g}M to {LARGEST / 1e9:g}B, as 350M or 1.3B"
        )
    of_table = [one for one in known.values() if one.context == GPT3_CONTEXT]
    curve = sorted((num_parameters(one), one.width) for one in of_table)
    below = max((point for point in curve if point[0] <= wanted), default=None)
    above = min((point for point in curve if point[0] > wanted), default=None)
    if below and above:
        share = math.log(wanted / below[0]) / math.log(above[0] / below[0])
        width = below[1] * (above[1] / below[1]) ** share
    else:
        end = below or curve[0]
        width = end[1] * (wanted / end[0]) ** (1 / 3)
    head, heads = (128, 8) if width >= 2048 else (64, 4)
    num_heads = heads * max(1, round(width / (head * heads)))
    model = replace(of_table[0], num_layers=1, width=head * num_heads, num_heads=num_heads)
    a_layer = num_parameters(replace(model, num_layers=2)) - num_parameters(model)
    depth = 1 + max(0, round((wanted - num_parameters(model)) / a_layer))
    return replace(model, num_layers=depth)
