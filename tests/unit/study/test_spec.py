"""Run specs: expansion, ids, arithmetic that is refused at the door."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.fonts import printed
from pipeline.schemas import validate
from pipeline.study.equal_work import check_equal_work
from pipeline.study.expansion import (
    cells_of,
    compares_conditions,
    data_devices,
    expand,
    run_order,
    tokens_spec,
)
from pipeline.study.link import LinkSpec
from pipeline.study.load import check_study, load_study, shipped_studies
from pipeline.study.spec import ObjectiveSpec, RunSpec, WorldSpec
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_study


@pytest.fixture
def study() -> dict[str, Any]:
    return load_study(Path("workflow/config/smoke/study.yaml")).to_dict() | {
        "profile": {"steps": 4}
    }


@pytest.mark.parametrize(("name", "path"), shipped_studies().items())
def test_every_shipped_study_is_valid(name: str, path: Path) -> None:
    shipped = load_study(path)
    assert shipped.name == name
    check_equal_work(shipped)
    texts = "".join([shipped.title, *(arm.label for arm in shipped.arms)])
    assert printed(texts) == texts
    assert compares_conditions(shipped) == (name == "what-if")
    for run in expand(shipped):
        validate(run.to_dict(), "spec", path)


def test_a_time_limit_and_checkpoints_are_no_part_of_what_is_trained(study) -> None:
    run = expand(Study.of(study))[0]
    work = replace(run.workload, checkpoint_every=7)
    operated = replace(run, timeout_seconds=run.timeout_seconds + 1, workload=work)
    assert operated.identity() == run.identity()
    assert operated.sha256() != run.sha256(), "a record says what it was made with"
    assert replace(run, seed=run.seed + 1).identity() != run.identity()


BERT = {"family": "transformers", "architecture": "BertForMaskedLM"}
PAIRED = {"kind": "masked_next_sentence", "mask_token": 1, "share": 0.15, "cls_token": 2,
          "sep_token": 3, "pad_token": 4, "whole_words": True}  # fmt: skip
STATED: dict[str, tuple[str, dict[str, Any]]] = {
    "documents apart": ("objective", {"objective": {"kind": "causal", "reset_positions": True}}),
    "masks": ("objective", {"objective": {"kind": "masked", "mask_token": 5}, "model": BERT}),
    "pairs": (
        "objective", {"objective": PAIRED, "model": BERT | {"architecture": "BertForPreTraining"}}
    ),
    "variables": ("environment", {"environment": {"ATEN_CPU_CAPABILITY": "avx2"}}),
    "decay": ("decay_matrices_only", {"optimiser": {"decay_matrices_only": True}}),
    "recomputation": ("recompute", {"workload": {"recompute": True}}),
}  # fmt: skip
"""Optional parts of a study: the key in its specs, and what differs in the study's parts."""


def stating(study: dict[str, Any], changes: dict[str, Any]) -> RunSpec:
    """The first run of a study with these changes of its parts."""
    parts = {key: study.get(key, {}) | value for key, value in changes.items()}
    return expand(check_study(study | parts, "study.yaml"))[0]


@pytest.mark.parametrize("name", STATED)
def test_what_a_study_states_besides_is_in_its_specs_only_then(study, name) -> None:
    """So the hashes of earlier specs stay."""
    key, changes = STATED[name]
    usual, run = expand(Study.of(study))[0], stating(study, changes)
    assert key not in usual.to_json() and key in run.to_json()
    validate(run.to_dict(), "spec", Path())
    assert RunSpec.from_dict(json.loads(run.to_json())) == run
    assert run.identity() != usual.identity()


def test_an_objective_fits_its_model(study) -> None:
    causal = {"objective": {"kind": "causal"}}
    assert stating(study, causal).sha256() == expand(Study.of(study))[0].sha256()
    for name in ("masks", "pairs"):
        for part, given in STATED[name][1].items():
            with pytest.raises(StudyError, match=r"does not train .* or a model such as"):
                strategies.check([stating(study, {part: given})])
    apart, masked, both = (
        stating(study, STATED[n][1]) for n in ("documents apart", "masks", "pairs")
    )
    opt = replace(apart.model, family="transformers", architecture="OPTForCausalLM")
    beyond, pairs = ObjectiveSpec("masked", masked.model.vocab_size), both.objective
    assert pairs is not None
    for run, reason in (
        (replace(apart, model=opt), "it is not known that OPTForCausalLM keeps documents"),
        (replace(masked, objective=beyond), r"is not below model\.vocab_size"),
        (replace(both, objective=replace(pairs, pad_token=2)), "not all different"),
        (replace(both, model=replace(both.model, context=4)), "set it to 5 or more"),
        (
            replace(both, objective=masked.objective),
            "objective masked does not train BertForPreTraining",
        ),
    ):
        with pytest.raises(StudyError, match=reason):
            run.check()
            strategies.check([run])


def test_phases_come_before_the_steps_that_are_timed(study) -> None:
    usual = expand(Study.of(study))
    assert "phases" not in usual[0].to_json()
    batch, steps, context = 32, study["workload"]["steps"], study["model"]["context"]
    first = {"steps": 4, "global_batch": batch, "context": context // 2, "warmup_steps": 2}
    study["workload"] |= {"steps": steps + 4, "phases": [first]}
    study["optimiser"] |= {"schedule": "linear", "warmup_steps": 1}
    with pytest.raises(StudyError, match="measures passes of one shape"):
        check_study(study, "study.yaml")
    del study["cluster"]["yardstick"]
    check_study(study, "study.yaml")
    run = expand(Study.of(study))[0]
    validate(run.to_dict(), "spec", Path())
    assert RunSpec.from_dict(json.loads(run.to_json())) == run
    assert run.identity() != usual[0].identity()
    shapes = [(start, p.workload.global_batch, p.model.context) for start, p in run.phases()]
    assert shapes == [(0, batch, context // 2), (4, run.workload.global_batch, context)]
    full = run.optimiser.learning_rate
    assert [run.rate(step) / full for step in range(5)] == pytest.approx([0.5, 1, 1, 0.5, 1])
    untimed = run.workload.untimed_steps
    assert [run.workload.first_timed(done) for done in (0, 2, 4, 5)] == [
        4 + untimed, 4 + untimed, 4 + untimed, 5 + untimed,
    ]  # fmt: skip
    assert tokens_spec(Study.of(study))["min_tokens"] > batch * context // 2
    for change, reason in (
        ({"context": 2 * context}, "raise model.context"),
        ({"steps": steps + 4}, "leaves none of"),
    ):
        work = replace(run.workload, phases=(replace(run.workload.phases[0], **change),))
        with pytest.raises(StudyError, match=reason):
            replace(run, workload=work).check()


def test_recomputation_that_is_off_is_in_no_spec_and_one_cell_alone_may_have_it(study) -> None:
    usual = expand(Study.of(study))
    for spelt in (False, "none"):
        study["workload"]["recompute"] = spelt
        assert [run.sha256() for run in expand(Study.of(study))] == [run.sha256() for run in usual]
    study["cells"][0]["workload"] = {"recompute": True}
    runs = expand(check_study(study, "study.yaml"))
    first = runs[0].cell
    assert [run.workload.recompute for run in runs] == [run.cell == first for run in runs]


def test_what_is_recomputed_has_one_spelling_in_a_spec(study) -> None:
    recompute = {}
    for spelt in (True, "full", "attention", [1, 0]):
        study["workload"]["recompute"] = spelt
        run = expand(check_study(study, "study.yaml"))[0]
        validate(run.to_dict(), "spec", Path("spec.json"))
        assert RunSpec.from_dict(json.loads(run.to_json())) == run
        recompute[str(spelt)] = run.to_dict()["workload"]["recompute"]
    assert recompute == {"True": True, "full": True, "attention": "attention", "[1, 0]": [0, 1]}


@pytest.mark.parametrize(
    ("strategy", "options", "devices"),
    [
        ("ddp", {}, 8),
        ("tensor", {"ranks": 2}, 4),
        ("hybrid", {"pipeline": 2, "tensor": 2}, 2),
        ("pipeline_parallel", {}, 1),
    ],
)
def test_weak_scaling_counts_devices_with_sequences_of_their_own(strategy, options, devices):
    """Along an axis that cuts the model ranks share theirs, and the batch does not grow."""
    world = WorldSpec(4, 2, "cpu", "gloo", "loopback")
    assert data_devices(strategy, options, world) == devices


def test_tokens_depend_only_on_text_tokeniser_and_the_largest_batch(study) -> None:
    before = tokens_spec(Study.of(study))
    assert before["min_tokens"] == 1 + max(
        r.workload.global_batch * r.model.context for r in expand(Study.of(study))
    )
    study["title"], study["repeats"] = "other", 9
    assert tokens_spec(Study.of(study)) == before


def test_runs_are_shuffled_within_each_repeat_and_always_the_same_way(study) -> None:
    runs = expand(Study.of(study))
    order = run_order(runs)
    assert order == run_order(expand(Study.of(study)))
    assert sorted(r.run_id for r in order) == sorted(r.run_id for r in runs)
    assert [r.repeat for r in order] == sorted(r.repeat for r in runs)
    first = [r.cell for r in order if r.repeat == 0]
    assert any(
        [r.cell for r in order if r.repeat == k] != first for k in range(1, study["repeats"])
    )


@pytest.mark.parametrize(
    ("links", "nodes", "names"),
    [
        (2, [1, 2, 4], ["sps", "sps-slow", "sps-fast"]),
        (2, [2], ["sps-slow", "sps-fast"]),
        (2, [1], ["sps"]),
        (1, [1, 2], ["sps"]),
    ],
)
def test_over_several_links_one_node_is_a_cell_and_each_link_is_one(links, nodes, names) -> None:
    cluster = EMULATED | {"links": EMULATED["links"][:links]}
    cells = [make_study()["cells"][1] | {"nodes": nodes}]
    study = Study.of(make_study(cluster=cluster, cells=cells))
    assert [(cell.name, cell.arm) for cell in cells_of(study)] == [(name, "sps") for name in names]
    runs = [(run.cell, run.world.nodes) for run in expand(study) if run.repeat == 0]
    assert len(runs) == (1 in nodes) + links * len({*nodes} - {1})
    assert [cell for cell, count in runs if count == 1] == ["sps"] * (1 in nodes)


CONDITIONS = {
    "receive_mbits": (250, "receives 250 Mbit/s"),
    "uplink_mbits": (1000, "uplink 1 Gbit/s"),
    "straggler": (0.5, "one node at 0.5 speed"),
    "jitter": (0.3, "jitter 0.3"),
}


@pytest.mark.parametrize("key", CONDITIONS)
def test_a_condition_of_a_link_is_in_the_spec_and_in_its_text(key) -> None:
    value, words = CONDITIONS[key]
    odd = {"name": "odd", "rate_mbits": 1000, key: value}
    study = check_study(make_study(cluster=EMULATED | {"links": [odd]}), "study.yaml")
    one, several = (
        next(r for r in expand(study) if r.cell == "sps" and r.world.nodes == n) for n in (1, 2)
    )
    link = several.world.link
    assert link is not None and link.text == f"1 Gbit/s, {words}" and link.conditions
    validate(several.to_dict(), "spec", "spec.json")
    assert RunSpec.from_dict(several.to_dict()) == several
    assert one.world.link == LinkSpec("odd", 1000), "no condition holds on one node"
