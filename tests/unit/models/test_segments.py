"""Documents that share a sequence, in GPT-2 and every class that may keep them apart."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.models.build import build_model
from pipeline.models.segments import causal_mask, places
from pipeline.models.transformers.arithmetic import APART
from tests.parity.cases import Case

SEGMENTS = torch.tensor([[1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4], [1] * 16])


def test_places_and_masks_are_those_of_each_document() -> None:
    segments = torch.tensor([[1, 2, 2, 2, 3], [4, 4, 4, 4, 4]])
    assert places(segments).tolist() == [[0, 0, 1, 2, 0], [0, 1, 2, 3, 4]]
    assert causal_mask(segments)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("architecture", [None, *APART])
def test_a_document_has_the_logits_that_it_has_alone(architecture: str | None) -> None:
    model: Any = build_model(replace(Case("single", architecture=architecture)).model, 0)
    ids = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        packed = model.logits(ids, SEGMENTS)
        for row, line in enumerate(SEGMENTS):
            for number in line.unique():
                own = line == number
                alone = model.logits(ids[row : row + 1, own])[0]
                torch.testing.assert_close(packed[row, own], alone, rtol=1e-5, atol=1e-5)
