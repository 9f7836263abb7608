"""Run specs: expansion, ids, arithmetic that is refused at the door."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.accept import accept
from pipeline.errors import StudyError
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
from pipeline.study.load import check_study, font_warning, load_study, shipped_studies
from pipeline.study.profiling import profiled
from pipeline.study.spec import ObjectiveSpec, RunSpec, WorldSpec
from pipeline.study.study import Study


@pytest.fixture
def study() -> dict[str, Any]:
    return load_study(Path("workflow/config/smoke/study.yaml")).to_dict()


@pytest.mark.parametrize(("name", "path"), shipped_studies().items())
def test_every_shipped_study_is_valid(name: str, path: Path) -> None:
    shipped = load_study(path)
    assert shipped.name == name
    check_equal_work(shipped)
    assert font_warning(shipped) is None
    for run in expand(shipped):
        validate(run.to_dict(), "spec", path)


def test_what_if_compares_four_conditions_with_a_plain_link() -> None:
    shipped = load_study(Path("workflow/config/what-if/study.yaml"))
    runs = expand(shipped)
    assert len(runs) == 6 * (1 + 3 * 5) and compares_conditions(shipped)
    assert {run.world.nodes for run in runs if run.strategy != "single"} == {4}
    conditions = {run.cell: run.world.link.conditions for run in runs if run.world.link}
    assert conditions["single"] == conditions["dps-plain"] == {}
    assert [conditions[f"dps-{name}"] for name in ("straggler", "jitter")] == [
        {"straggler": 0.5}, {"jitter": 0.3},
    ]  # fmt: skip
    assert conditions["horovod-asymmetric"] == {"receive_mbits": 250}
    assert conditions["sps-oversubscribed"] == {"uplink_mbits": 1000}
    assert len({run.seed for run in runs}) == 6, "jitter is drawn anew in every repeat"


def test_a_spec_survives_json_and_its_hash_tells_any_change(study) -> None:
    run = expand(Study.of(study))[0]
    again = RunSpec.from_dict(json.loads(run.to_json()))
    assert again == run and again.sha256() == run.sha256()
    changed = json.loads(run.to_json()) | {"seed": run.seed + 1}
    assert RunSpec.from_dict(changed).sha256() != run.sha256()


def test_a_time_limit_and_checkpoints_are_no_part_of_what_is_trained(study) -> None:
    run = expand(Study.of(study))[0]
    work = replace(run.workload, checkpoint_every=7)
    operated = replace(run, timeout_seconds=run.timeout_seconds + 1, workload=work)
    assert operated.identity() == run.identity()
    assert operated.sha256() != run.sha256(), "a record says what it was made with"
    assert replace(run, seed=run.seed + 1).identity() != run.identity()


def test_an_objective_is_part_of_a_spec_only_where_it_is_not_causal(study) -> None:
    usual = expand(Study.of(study))
    causal = expand(Study.of(study | {"objective": {"kind": "causal"}}))
    assert [run.sha256() for run in causal] == [run.sha256() for run in usual]
    assert "objective" not in usual[0].to_json()
    apart = {"kind": "causal", "reset_positions": True}
    run = expand(Study.of(study | {"objective": apart}))[0]
    assert run.to_dict()["objective"] == apart
    validate(run.to_dict(), "spec", Path())
    assert RunSpec.from_dict(json.loads(run.to_json())) == run
    opt = replace(run.model, family="transformers", architecture="OPTForCausalLM")
    with pytest.raises(StudyError, match="it is not known that OPTForCausalLM keeps documents"):
        replace(run, model=opt).check()
    masked = {"kind": "masked", "mask_token": study["model"]["vocab_size"] - 1}
    bert = {"family": "transformers", "architecture": "BertForMaskedLM"}
    run = expand(Study.of(study | {"objective": masked, "model": study["model"] | bert}))[0]
    validate(run.to_dict(), "spec", Path())
    assert RunSpec.from_dict(json.loads(run.to_json())) == run
    for change in ({"objective": masked}, {"model": study["model"] | bert}):
        with pytest.raises(StudyError, match="masked is for classes named"):
            expand(Study.of(study | change))
    with pytest.raises(StudyError, match=r"is not below model\.vocab_size"):
        objective = ObjectiveSpec("masked", run.model.vocab_size)
        replace(run, objective=objective).check()
    pairs = ObjectiveSpec("masked_next_sentence", 1, 0.15, 2, 3, 4)
    model = replace(run.model, architecture="BertForPreTraining")
    pairs = replace(pairs, whole_words=True)
    both = replace(run, objective=pairs, model=model)
    both.check()
    validate(both.to_dict(), "spec", Path())
    assert RunSpec.from_dict(json.loads(both.to_json())) == both
    for change, reason in (
        ({"objective": replace(pairs, pad_token=2)}, "not all different"),
        ({"model": replace(model, context=4)}, "set it to 5 or more"),
        ({"objective": objective}, "objective masked does not train BertForPreTraining"),
    ):
        with pytest.raises(StudyError, match=reason):
            replace(both, **change).check()


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


def test_recomputation_is_part_of_a_spec_only_where_it_is_on(study) -> None:
    usual = expand(Study.of(study))
    for spelt in (False, "none"):
        study["workload"]["recompute"] = spelt
        assert [run.sha256() for run in expand(Study.of(study))] == [run.sha256() for run in usual]
    assert "recompute" not in usual[0].to_json()
    study["cells"][0]["workload"] = {"recompute": True}
    check_study(study, "study.yaml")
    runs = expand(Study.of(study))
    again = RunSpec.from_dict(json.loads(runs[0].to_json()))
    validate(runs[0].to_dict(), "spec", Path("spec.json"))
    assert again.workload.recompute and again.identity() != usual[0].identity()
    assert [run.workload.recompute for run in runs].count(True) == sum(
        run.cell == runs[0].cell for run in runs
    )


def test_what_is_recomputed_has_one_spelling_in_a_spec(study) -> None:
    found = {}
    for spelt in (True, "full", "attention"):
        study["workload"]["recompute"] = spelt
        run = expand(check_study(study, "study.yaml"))[0]
        validate(run.to_dict(), "spec", Path("spec.json"))
        assert RunSpec.from_dict(json.loads(run.to_json())) == run
        found[spelt] = run.to_dict()["workload"]["recompute"]
    assert found == {True: True, "full": True, "attention": "attention"}
    study["workload"]["recompute"] = "half"
    with pytest.raises(StudyError, match=r"workload.recompute.*'none', 'full', 'attention'"):
        check_study(study, "study.yaml")


def test_variables_are_part_of_a_spec_only_where_a_study_states_some(study) -> None:
    usual = expand(Study.of(study))[0]
    assert "environment" not in usual.to_dict()
    study["environment"] = {"ATEN_CPU_CAPABILITY": "avx2"}
    run = expand(check_study(study, "study.yaml"))[0]
    validate(run.to_dict(), "spec", Path("spec.json"))
    assert RunSpec.from_dict(json.loads(run.to_json())) == run
    assert run.identity() != usual.identity()
    study["environment"] = {"GOMP_SPINCOUNT": 7}
    with pytest.raises(StudyError, match=r"at \$.environment.GOMP_SPINCOUNT: 7 breaks type"):
        check_study(study, "study.yaml")
    study["environment"] = {"OMP_NUM_THREADS": "7"}
    with pytest.raises(StudyError, match="has OMP_NUM_THREADS, which is set elsewhere"):
        accept(check_study(study, "study.yaml"))


def test_run_ids_are_unique_and_name_cell_nodes_and_repeat(study) -> None:
    ids = [run.run_id for run in expand(Study.of(study))]
    assert len(set(ids)) == len(ids)
    assert "smoke/single/n1/r0" in ids


def test_weak_scaling_multiplies_the_global_batch(study) -> None:
    study["workload"] |= {"scaling": "weak", "global_batch": 2}
    assert {r.workload.global_batch for r in expand(Study.of(study)) if r.world.nodes == 4} == {8}


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


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("workload", "untimed_steps", 999, "leaves none of"),
        ("model", "num_heads", 7, "not a multiple of model.num_heads 7"),
        ("tokenizer", "vocab_size", 4096, "over model.vocab_size"),
        ("model", "widht", 128, "widht"),
        ("cluster", "device", "tpu", "tpu"),
        ("cluster", "device", "cuda", "backend gloo does not serve device cuda"),
        ("workload", "steps", 0, r"\$\.workload\.steps: 0 breaks minimum: 1"),
        ("workload", "steps", 10.0, r"\$\.workload\.steps: 10.0 breaks type: \"integer\""),
        ("workload", "global_batch", 10**9, "global_batch: 1000000000 breaks maximum"),
        ("cluster", "nodes", [10**9], "1000000000 breaks maximum"),
        ("cluster", "nodes", [256], "at most 254, the addresses of one /24 network"),
    ],
)
def test_impossible_studies_are_refused_in_one_line(study, section, key, value, message) -> None:
    broken = copy.deepcopy(study)
    broken[section][key] = value
    with pytest.raises(StudyError, match=message) as caught:
        check_study(broken, "study.yaml")
    assert "\n" not in str(caught.value)


def test_too_many_runs_are_refused_before_they_are_listed(study) -> None:
    cells = [
        study["cells"][0] | {"name": f"c{n}", "label": f"C{n}", "nodes": [1]} for n in range(200)
    ]
    with pytest.raises(StudyError, match="40000 runs, over 10000"):
        check_study(study | {"cells": cells, "repeats": 200}, "study.yaml")


@pytest.mark.parametrize("name", ["smoke\n", "a" * 65, "-a", "..", ""])
def test_a_name_is_a_folder_s(study, name) -> None:
    with pytest.raises(StudyError, match=r"\$\.study"):
        check_study(study | {"study": name}, "study.yaml")


def test_two_cells_of_one_name_are_refused(study) -> None:
    study["cells"].append(study["cells"][0])
    with pytest.raises(StudyError, match="'single' stands 2 times"):
        expand(Study.of(study))


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


def emulated() -> dict[str, Any]:
    cluster = {
        "device": "cpu",
        "ranks_per_node": 1,
        "nodes": [1, 2],
        "backend": "gloo",
        "network": "emulated",
        "links": [
            {"name": "slow", "rate_mbits": 100},
            {"name": "fast", "rate_mbits": 2500, "delay_us": 50},
        ],
        "cores_per_node": 1,
    }
    return load_study(Path("workflow/config/smoke/study.yaml")).to_dict() | {"cluster": cluster}


def test_over_several_links_one_node_is_a_cell_and_each_link_is_one() -> None:
    cells = cells_of(Study.of(emulated()))
    assert [c.name for c in cells[:4]] == ["single", "sps", "sps-slow", "sps-fast"]
    assert [c.arm for c in cells[:4]] == ["single", "sps", "sps", "sps"]
    runs = {run.cell: run for run in expand(Study.of(emulated()))}
    link = runs["sps-fast"].world.link
    assert link == LinkSpec("fast", 2500, 50)
    assert link.text == "2.5 Gbit/s, 50 µs"
    assert RunSpec.from_dict(runs["sps-fast"].to_dict()) == runs["sps-fast"]


def test_one_node_uses_no_link_and_is_run_once(study) -> None:
    runs = [run for run in expand(Study.of(study)) if run.repeat == 0]
    assert len(runs) == 12
    links = [{"name": "200mbit", "rate_mbits": 200}, {"name": "1gbit", "rate_mbits": 1000}]
    study["cluster"]["links"] = links
    runs = [run for run in expand(Study.of(study)) if run.repeat == 0]
    for run in runs:
        assert run.cell.endswith(("-200mbit", "-1gbit")) == (run.world.nodes > 1)
    assert "smoke/dps/n1/r0" in [run.run_id for run in runs]
    study["profile"] = {"steps": 2}
    assert len(profiled(Study.of(study))) == len(runs) == 20


def test_a_cell_without_one_node_has_a_cell_for_each_link_alone() -> None:
    study = emulated()
    study["cells"] = [study["cells"][1] | {"nodes": [2]}]
    assert [cell.name for cell in cells_of(Study.of(study))] == ["sps-slow", "sps-fast"]


@pytest.mark.parametrize(
    ("part", "name", "taken"), [("links", "loopback", "link"), ("cells", "sps-loopback", "cell")]
)
def test_the_name_of_what_ran_on_the_loopback_is_kept_free(part, name, taken) -> None:
    study = emulated()
    {"links": study["cluster"]["links"], "cells": study["cells"]}[part][0]["name"] = name
    with pytest.raises(StudyError, match=f"{taken} name '{name}'"):
        expand(Study.of(study))


def test_one_link_changes_no_name() -> None:
    study = emulated()
    study["cluster"]["links"] = study["cluster"]["links"][:1]
    assert "sps" in [cell.name for cell in cells_of(Study.of(study))]
    assert {run.world.nodes for run in expand(Study.of(study)) if run.cell == "sps"} == {1, 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "loopback"}, "cluster.network loopback has no cluster.links"),
        ({"device": "cuda", "backend": "nccl"}, "emulated nodes have no GPUs"),
    ],
)
def test_links_and_networks_fit_together(change, message) -> None:
    study = emulated()
    study["cluster"] |= change
    with pytest.raises(StudyError, match=message):
        expand(Study.of(study))
    del (incomplete := emulated())["cluster"]["links"]
    with pytest.raises(StudyError, match="add it"):
        expand(Study.of(incomplete))


CONDITIONS = {
    "receive_mbits": (250, "receives 250 Mbit/s"),
    "uplink_mbits": (1000, "uplink 1 Gbit/s"),
    "straggler": (0.5, "one node at 0.5 speed"),
    "jitter": (0.3, "jitter 0.3"),
}


@pytest.mark.parametrize("key", CONDITIONS)
def test_a_condition_of_a_link_is_in_the_spec_and_in_its_text(key) -> None:
    study, (value, words) = emulated(), CONDITIONS[key]
    study["cluster"]["links"] = [{"name": "odd", "rate_mbits": 1000, key: value}]
    check_study(study, "study.yaml")
    one, several = (
        next(r for r in expand(Study.of(study)) if r.cell == "sps" and r.world.nodes == n)
        for n in (1, 2)
    )
    link = several.world.link
    assert link is not None and link.text == f"1 Gbit/s, {words}" and link.conditions
    validate(several.to_dict(), "spec", "spec.json")
    assert RunSpec.from_dict(several.to_dict()) == several
    assert one.world.link == LinkSpec("odd", 1000), "no condition holds on one node"


def test_a_link_without_conditions_has_the_keys_that_it_had() -> None:
    link = LinkSpec("fast", 2500, 50)
    assert link.to_dict() == {"name": "fast", "rate_mbits": 2500, "delay_us": 50}
    assert not link.conditions
    runs = {run.cell: run for run in expand(Study.of(emulated()))}
    assert runs["sps-fast"].to_dict()["world"]["link"] == link.to_dict()


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"receive_mbits": 0}, "receive_mbits: 0 breaks minimum"),
        ({"receive_mbits": 100}, "link 'slow' receives at its rate_mbits 100; leave receive_mbits"),
        ({"straggler": 1}, "straggler: 1 breaks exclusiveMaximum"),
        ({"straggler": 0}, "straggler: 0 breaks minimum"),
        ({"jitter": -0.1}, "jitter: -0.1 breaks minimum"),
    ],
)
def test_impossible_conditions_are_refused_in_one_line(condition, message) -> None:
    study = emulated()
    study["cluster"]["links"][0] |= condition
    with pytest.raises(StudyError, match=message) as caught:
        check_study(study, "study.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", CONDITIONS)
def test_a_condition_that_no_cell_can_meet_is_refused(key) -> None:
    study = emulated()
    study["cluster"]["nodes"] = [1]
    study["cells"] = study["cells"][:2]
    study["cluster"]["links"][0][key] = CONDITIONS[key][0]
    with pytest.raises(StudyError, match=f"link 'slow': {key} needs a cell on 2 nodes or more"):
        check_study(study, "study.yaml")
