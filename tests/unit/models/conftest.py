"""How the tests of models count sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.models.transformers import arithmetic
from pipeline.study.spec import ModelSpec

in_another_process = arithmetic._count


def here(model: str) -> dict[str, Any]:
    """Facts of a model, counted in this process, which has torch and the library loaded."""
    from pipeline.models.transformers import facts

    counted: dict[str, Any] = json.loads(json.dumps(facts.facts(ModelSpec(**json.loads(model)))))
    return counted


@pytest.fixture(scope="module", autouse=True)
def counted_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sizes are counted anew for each module: starting a process takes longer than counting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(arithmetic, "_count", here)
        yield
