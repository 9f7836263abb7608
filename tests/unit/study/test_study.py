"""The typed study, and that its shape and a spec's are the same in types and schemas."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.corpus.objectives import KINDS
from pipeline.study.link import LinkSpec
from pipeline.study.load import CONFIG, SCHEMA_FILE, load_study
from pipeline.study.spec import (
    ModelSpec,
    ObjectiveSpec,
    OptimiserSpec,
    RunSpec,
    WorkloadSpec,
    WorldSpec,
)
from pipeline.study.study import ClusterSpec, Study
from tests.fake_records import make_study

SPEC: dict[str, Any] = json.loads(Path("pipeline/schemas/spec.schema.json").read_text())
STUDY: dict[str, Any] = yaml.safe_load(SCHEMA_FILE.read_text())["properties"]
CLUSTER = STUDY["cluster"]["properties"]


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        # The schema of a spec takes what it does not state from that of studies.
        (STUDY["model"]["properties"], ModelSpec),
        (STUDY["optimiser"]["properties"], OptimiserSpec),
        (STUDY["workload"]["properties"], WorkloadSpec),
        (SPEC["properties"]["workload"]["properties"], WorkloadSpec),
        (SPEC["properties"], RunSpec),
        (SPEC["properties"]["world"]["properties"], WorldSpec),
        (CLUSTER, ClusterSpec),
        (CLUSTER["links"]["items"]["properties"], LinkSpec),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_types_and_schemas_have_the_same_keys(keys: dict[str, Any], kind: Any) -> None:
    assert {*keys} == {field.name for field in fields(kind)}


def test_each_objective_of_the_schema_says_what_a_model_learns_by_it() -> None:
    assert list(KINDS) == STUDY["objective"]["properties"]["kind"]["enum"]
    said = {kind: one.learns(ObjectiveSpec(kind, share=0.1)) for kind, one in KINDS.items()}
    assert len({*said.values()}) == len(said)


def test_a_cell_has_from_the_study_what_it_does_not_state() -> None:
    cells = [
        {"name": "plain", "label": "Plain", "strategy": "ddp", "precision": "fp32"},
        {"name": "own", "label": "Own", "strategy": "ddp", "precision": "fp32", "nodes": [2],
         "ranks_per_node": 3, "repeats": 2, "workload": {"global_batch": 48},
         "optimiser": {"learning_rate": 0.5}, "options": {"bucket_cap_mb": 1}},
    ]  # fmt: skip
    study = Study.of(make_study(cells=cells))
    plain, own = study.arms
    assert (plain.workload, plain.optimiser) == (study.workload, study.optimiser)
    assert (plain.nodes, plain.ranks_per_node, plain.options) == ((1, 2, 4), 1, {})
    assert (own.workload.global_batch, own.optimiser.learning_rate) == (48, 0.5)
    assert own.workload.steps == study.workload.steps
    assert (own.nodes, own.ranks_per_node, own.options) == ((2,), 3, {"bucket_cap_mb": 1})
    assert (plain.repeats, own.repeats) == (3, 2)
    # At most so many: a shorter study that extends this one has fewer of all.
    assert [arm.repeats for arm in study.but(repeats=1).arms] == [1, 1]


def test_a_study_goes_back_to_its_file_and_shares_nothing_with_it() -> None:
    content = make_study()
    study = Study.of(content)
    content["model"]["width"] = 7
    study.to_dict()["model"]["width"] = 8
    assert study.to_dict() == make_study() and study.model.width == make_study()["model"]["width"]
    other = study.but(repeats=9)
    assert (other.repeats, study.repeats) == (9, 3)
    shipped = load_study(CONFIG / "smoke/study.yaml")
    assert shipped.but(profile=None).profile_steps is None and shipped.profile_steps == 4
