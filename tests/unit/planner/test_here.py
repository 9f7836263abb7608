"""Operators of a step, and steps predicted from them and from messages."""

from dataclasses import replace

import pytest

from pipeline.cost.traffic import ALL_REDUCE, SEND
from pipeline.errors import StudyError
from pipeline.launch.calibrate.collectives import KINDS
from pipeline.models import flops_per_token, num_parameters
from pipeline.planner import here
from pipeline.planner.here import SHIFT, Calibration, errors, predict, predict_study, shown
from pipeline.planner.operators import Operator, of_study, work_of
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.load import find_study, load_study
from pipeline.study.spec import RunSpec


@pytest.fixture(scope="module")
def runs() -> list[RunSpec]:
    """Cells of two studies on four nodes, with the single device of the first, and two hybrids."""
    first, more = (expand(load_study(find_study(name))) for name in ("alpa2022", "ptdp2021"))
    on_four = [run for run in more if run.world.nodes == 4]
    stages = next(run for run in on_four if run.cell == "pipe-4")
    knobs = {"pipeline": 2, "tensor": 2, "microbatches": 4}
    hybrid = replace(stages, cell="hybrid", strategy="hybrid", options=knobs)
    cut = replace(hybrid, cell="hybrid-sequence", options={**knobs, "sequence": True})
    return [*first, *on_four, hybrid, cut]


@pytest.fixture(scope="module")
def calibration(runs) -> Calibration:
    """A machine on which an operator takes as long as it has work, and 1 MB one ms."""
    single = work_of(resolve(next(run for run in runs if run.cell == "single")))
    kinds = {(one.kind, one.dtype): one for one in single.operators}
    more = [("unit", 2), ("reduction", 1), ("reduction", 2)]
    kept = [*kinds.values(), *(Operator(kind, "float32", (1, 1, way)) for kind, way in more)]
    times = {one: 1e-9 * one.work for one in kept}
    line = [(1000, 2e-6), (1_000_000, 1e-3)]
    return Calibration(times, {("1gbit", 4, kind): line for kind in KINDS}, 1e9)


def of(runs, calibration, cell, **changes):
    spec = next(run for run in runs if run.cell == cell)
    return predict(resolve(replace(spec, **changes)), calibration)


def test_a_step_on_four_ranks_has_a_quarter_of_the_computation(runs, calibration) -> None:
    whole = runs[0].workload
    one, four = (of(runs, calibration, cell, workload=whole) for cell in ("single", "ddp"))
    assert four.computation == pytest.approx(one.computation / 4)
    assert one.communication == 0 < four.communication
    assert one.optimiser == four.optimiser > 0


def test_what_is_recomputed_is_a_third_of_its_operators(runs, calibration) -> None:
    found = []
    for what in (False, "attention", True):
        work = replace(runs[0].workload, recompute=what)
        found.append(of(runs, calibration, "single", workload=work).computation)
    kept, alone, blocks = found
    assert blocks == pytest.approx(kept * 4 / 3)
    (stage,) = work_of(resolve(runs[0])).stages
    attention = sum(n * one.work * 1e-9 for one, n in stage.items() if one.kind == "attention")
    pieces = runs[0].workload.accumulation_steps
    assert alone - kept == pytest.approx(attention * pieces / 3)


def test_a_tensor_axis_cuts_products_and_not_norms(runs, calibration) -> None:
    one, cut = (of(runs, calibration, cell).computation for cell in ("single", "tensor"))
    assert one / 4 < cut < one / 3


def test_a_pipeline_waits_for_its_bubble(runs, calibration) -> None:
    work = next(run.workload for run in runs if run.cell == "pipe-16")
    cells = ("pipe-4", "pipe-16", "interleaved-4")
    few, many, chunks = (of(runs, calibration, cell, workload=work).bubble for cell in cells)
    assert few > 3 * many > 0
    assert chunks < 0.7 * few


def test_a_pipeline_fills_and_drains_through_what_its_stages_exchange(runs, calibration) -> None:
    """Also the all-reduces of a tensor axis, on each stage in turn; not those of the data axis."""
    slow = {key: [(s, 10 * each) for s, each in t] for key, t in calibration.collectives.items()}
    machines = [calibration, replace(calibration, collectives=slow)]
    one, ten = (of(runs, machine, "hybrid") for machine in machines)
    hybrid = resolve(next(run for run in runs if run.cell == "hybrid"))
    within = one.communication - here._after_passes(hybrid, calibration)
    assert ten.bubble - one.bubble == pytest.approx(9 / 4 * within)  # 4 micro-batches
    assert len({of(runs, machine, "ddp").bubble for machine in machines}) == 1


def test_both_of_two_stages_send_messages_and_add_up_the_tied_embedding(runs, calibration) -> None:
    run = resolve(next(run for run in runs if run.cell == "hybrid"))
    spec, model = run.spec, run.spec.model
    (stages,) = (one for one in here._traffic(run) if one.axis == "pipeline")
    assert stages.bytes == 4 * spec.global_batch_tokens * model.width
    tied = 4 * model.vocab_size * model.width / 2  # half of it on each tensor rank
    assert here._tied(run) == tied
    each = (calibration.collective("1gbit", 2, ALL_REDUCE, size) for size in (0, 0, tied))
    assert here._after_passes(run, calibration) == pytest.approx(sum(each))


def test_a_stage_adds_up_the_gradients_that_it_holds(runs, calibration) -> None:
    """Three micro-batches after the first, each read twice and written once, on four stages."""
    model = next(run.model for run in runs if run.cell == "pipe-4")
    fast = replace(calibration, memory_rate=1e15)
    parts = [of(runs, one, "pipe-4").computation for one in (calibration, fast)]
    assert parts[0] - parts[1] == pytest.approx(3 * 12.0 * num_parameters(model) / 4 / 1e9, rel=0.1)


def test_zero_sends_weights_and_updates_a_share(runs, calibration) -> None:
    whole, cut = (of(runs, calibration, cell) for cell in ("ddp", "zero1"))
    assert cut.optimiser == pytest.approx(whole.optimiser / 4, rel=0.01)
    gathers = {key: times for key, times in calibration.collectives.items() if "all_gather" in key}
    slow = {key: [(size, 3 * each) for size, each in times] for key, times in gathers.items()}
    slower = replace(calibration, collectives={**calibration.collectives, **slow})
    both = [of(runs, one, "zero1").communication for one in (calibration, slower)]
    norm = calibration.collective("1gbit", 4, ALL_REDUCE, 0)
    # One half of it takes three times as long.
    assert both[1] - norm == pytest.approx(2 * (both[0] - norm))
    assert of(runs, slower, "ddp").communication == whole.communication


def test_ranks_that_share_a_node_are_not_priced_as_if_a_link_lay_between(runs, calibration) -> None:
    world = next(run.world for run in runs if run.cell == "hybrid")
    two = replace(world, nodes=2, ranks_per_node=2)
    with pytest.raises(StudyError, match=r"2 ranks share a node, .* set ranks_per_node to 1"):
        of(runs, calibration, "hybrid", world=two)


def test_a_node_in_dilated_time_computes_slower_after_each_wait(runs, calibration) -> None:
    """One device waits after each pass and the update, a rank around each collective too."""
    for cell, waits in (("single", 2), ("tensor", None), ("ddp", None)):
        world = next(run.world for run in runs if run.cell == cell)
        key = (world.dilated_for or world.nodes, world.nodes)
        cold = replace(calibration, waits={key: [(1e-12, 1.0)]})
        before, after = (of(runs, one, cell) for one in (calibration, cold))
        assert after.optimiser == pytest.approx(before.optimiser + 1)
        more = after.computation - before.computation
        pieces = work(runs, cell).pieces
        assert more == pytest.approx(waits * pieces) if waits else more > 2.1 * pieces
        other = replace(calibration, waits={(16, 16): [(1e-12, 1.0)]})
        assert of(runs, other, cell) == before


def test_what_a_stretch_takes_more_lies_between_those_measured(runs, calibration) -> None:
    world = replace(runs[0].world, nodes=4, dilated_for=None)
    cold = replace(calibration, waits={(4, 1): [(1.0, 9.0)], (4, 4): [(1.0, 0.5), (3.0, 0.7)]})
    found = [cold.resumed(world, seconds) for seconds in (0.5, 1.0, 2.0, 10.0)]
    assert found == pytest.approx([0.25, 0.5, 0.6, 0.7])
    assert cold.resumed(replace(world, nodes=1, dilated_for=4), 1.0) == 9.0


def test_a_pipeline_waits_for_the_ranks_with_two_neighbours(runs, calibration) -> None:
    """Two messages for each micro-batch, once the tied embedding's gradients, and their norm."""
    spec = next(run for run in runs if run.cell == "pipe-4")
    message = 4 * spec.global_batch_tokens * spec.model.width / 4
    tied = 4 * spec.model.vocab_size * spec.model.width
    seconds = 2 * 4 * calibration.collective("1gbit", 4, SHIFT, message)
    seconds += calibration.collective("1gbit", 2, ALL_REDUCE, tied)
    seconds += calibration.collective("1gbit", 4, ALL_REDUCE, 0)
    assert of(runs, calibration, "pipe-4").communication == pytest.approx(seconds)


def test_messages_of_interleaved_stages_travel_beside_passes(runs, calibration) -> None:
    """With several stages a rank waits for one only where no other pass is ready.

    But each takes the core of a node that has one as long as an empty message lasts.
    """
    spec = next(run for run in runs if run.cell == "interleaved-4")
    blocking = replace(spec, options={**spec.options, "schedule": "1f1b", "chunks": 1})
    found = [of(runs, calibration, spec.cell, options=one.options) for one in (spec, blocking)]
    messages = [
        sum(one.messages for one in here._traffic(resolve(run)) if one.axis == "pipeline")
        for run in (spec, blocking)
    ]
    assert messages[0] == 2 * messages[1]
    after = here._after_passes(resolve(spec), calibration)
    assert after < found[0].communication < found[1].communication
    two_cores = replace(spec.world, cores_per_node=2)
    spared = of(runs, calibration, spec.cell, world=two_cores)
    busy = messages[0] * calibration.collective("1gbit", 4, SHIFT, 0.0)
    assert busy / 2 < found[0].seconds - spared.seconds < 2 * busy


def test_a_backward_pass_in_two_halves_costs_the_host_time(runs, calibration) -> None:
    spec = next(run for run in runs if run.cell == "pipe-4")
    options = {**spec.options, "schedule": "zero_bubble"}
    halves = work_of(resolve(replace(spec, options=options))).halves
    (split, whole) = sorted(halves, key=lambda one: -halves[one])
    assert (halves[split], halves[whole]) == (1, -1)
    assert split.sizes == (whole.sizes[0], 2) and whole.sizes[1] == 1
    seconds = [replace(calibration, operators={**calibration.operators, split: 2e-3, whole: each})
               for each in (2e-3, 1e-3)]  # fmt: skip
    free, dear = (of(runs, one, "pipe-4", options=options).computation for one in seconds)
    assert dear - free == pytest.approx(4 * 1e-3)  # micro-batches
    # Of another number of groups that of as many parts, to scale.
    halved = replace(calibration, operators={split: 2e-3, whole: 1e-3})
    fewer = [replace(one, sizes=(1, one.sizes[1])) for one in (split, whole)]
    groups = split.sizes[0]
    assert [halved.seconds(one) * groups for one in fewer] == pytest.approx([2e-3, 1e-3])


def test_late_messages_travel_under_the_passes_of_a_node_with_a_core_to_spare(
    runs, calibration
) -> None:
    """With a staleness of 1 the pull, half of what waits, does not; with 2 both ways may."""
    one_core = next(run.world for run in runs if run.cell == "ddp")

    def waits(staleness: int, cores: int) -> float:
        world, options = replace(one_core, cores_per_node=cores), {"staleness": staleness}
        changes = {"strategy": "parameter_server", "options": options, "world": world}
        return of(runs, calibration, "ddp", **changes).communication

    prompt = waits(0, 1)
    # The root sends to three others; of their answers the last alone comes after that.
    assert [waits(n, 1) for n in (1, 2)] == pytest.approx([prompt, prompt * 3 / 4])
    assert waits(0, 2) == prompt
    late, later = waits(1, 2), waits(2, 2)
    assert prompt * 3 / 4 <= late < prompt
    assert later < prompt * 3 / 4


def test_the_cable_alone_works_beside_a_node_without_a_core_to_spare(runs, calibration) -> None:
    """Of a reduction in two buckets of equal size: half of what the bytes take on the cable."""
    ddp = next(run for run in runs if run.cell == "ddp")
    sends = here._traffic(resolve(ddp))[0]
    wire = ddp.world.link.seconds(sends.bytes)
    line = [(1000, 1e-3), (1_000_000, 0.1)]
    slow = replace(calibration, collectives={("1gbit", 4, ALL_REDUCE): line})

    def waits(cores: int, messages: int) -> float:
        run = resolve(replace(ddp, world=replace(ddp.world, cores_per_node=cores)))
        split = replace(sends, messages=messages, last=0.0)
        return here._seconds(split, run, slow, 10.0)

    whole = waits(1, 1)
    assert whole > wire
    assert whole - waits(1, 2) == pytest.approx(wire / 2)
    assert waits(2, 2) == pytest.approx(whole / 2)


def test_a_rank_alone_pays_for_what_it_would_reduce_with(runs, calibration) -> None:
    timed = {one: 1e-3 * one.sizes[2] for one in calibration.operators if one.kind == "reduction"}
    dear = replace(calibration, operators={**calibration.operators, **timed})
    alone = next(run.world for run in runs if run.cell == "single")
    ddp = of(runs, dear, "ddp", world=alone)
    model = next(run.model for run in runs if run.cell == "ddp")
    assert ddp.communication == pytest.approx(1e-3 * num_parameters(model))
    assert of(runs, dear, "single").communication == 0


def test_sizes_between_and_beyond_those_measured(calibration) -> None:
    times = [calibration.collective("1gbit", 4, SEND, size) for size in (500, 500_500, 2_000_000)]
    assert times[0] == pytest.approx(2e-6)
    assert times[1] == pytest.approx(5.01e-4)
    assert times[2] == pytest.approx(2e-3, rel=0.01)
    product = Operator("product", "float32", (64, 64, 64))
    assert calibration.seconds(product) == pytest.approx(1e-9 * 64**3)


def test_what_was_not_measured_is_refused(runs, calibration) -> None:
    with pytest.raises(StudyError, match="the calibration has no product in bfloat16"):
        of(runs, calibration, "single", precision="bf16")
    other = replace(calibration, collectives={})
    with pytest.raises(StudyError, match="no all_reduce over link 1gbit; run"):
        of(runs, other, "ddp")
    with pytest.raises(StudyError, match="compiled blocks"):
        of(runs, calibration, "single", compile=True)


def test_a_study_stands_beside_what_was_measured(runs, calibration) -> None:
    right = of(runs, calibration, "single").seconds
    wrong = of(runs, calibration, "ddp").seconds / 2
    measured = {("single", 1): right, ("ddp", 4): wrong}
    firsts = [resolve(run) for run in runs if run.repeat == 0]
    rows = {row["cell"]: row for row in predict_study(firsts, calibration, measured)}
    assert len(rows) == len(firsts)
    assert (rows["single"]["error"], rows["ddp"]["error"]) == ("+0.000", "+1.000")
    assert rows["zero1"]["error"] == ""
    lines = shown(list(rows.values()))
    assert lines[-1].startswith("2 cells and node counts: median error 50 %".replace(" %", "%"))
    assert "1 in the band, Kendall's tau" in lines[-1]
    assert errors([rows["zero1"]]).startswith("Predicted from single operators")


def work(runs, cell):
    return work_of(resolve(next(run for run in runs if run.cell == cell)))


def products(stage):
    """FLOPs of both passes, attention as the family counts it."""
    factors = {"product": 6, "attention": 12}
    return sum(n * factors[o.kind] * o.work for o, n in stage.items() if o.kind in factors)


@pytest.mark.parametrize("cell", ["single", "ddp-1", "ddp", "tensor", "pipe-4", "hybrid"])
def test_all_ranks_together_do_what_the_model_has(runs, cell) -> None:
    found = work(runs, cell)
    run = next(run for run in runs if run.cell == cell)
    ranks = run.world.size / len(found.stages)
    flops = sum(products(stage) for stage in found.stages) * found.pieces * ranks
    assert flops == pytest.approx(flops_per_token(run.model) * run.global_batch_tokens)


def test_stated_stages_and_cut_sequences_have_their_own_operators(runs) -> None:
    spec = next(run for run in runs if run.cell == "pipe-4")
    stated = replace(spec, options={**spec.options, "layers": [12, 12, 4, 4]})
    attention = [
        sum(n for one, n in stage.items() if one.kind == "attention")
        for stage in work_of(resolve(stated)).stages
    ]
    assert attention == [12, 12, 4, 4]
    tokens = [
        {one.sizes[0] for stage in work(runs, cell).stages for one in stage if one.kind == "add"}
        for cell in ("hybrid", "hybrid-sequence")
    ]
    assert tokens[0] == {2 * each for each in tokens[1]}


def test_a_study_asks_for_each_operator_once(runs) -> None:
    found = of_study(map(resolve, runs))
    assert found == sorted(set(found))
    assert {one.kind for one in found} == {
        "product", "attention", "layer_norm", "gelu", "add", "cross_entropy", "embedding", "update",
        "reduction", "unit",
    }  # fmt: skip


def test_pieces_of_sequences_are_refused(runs) -> None:
    run = next(run for run in runs if run.world.size % 2 == 0)
    with pytest.raises(StudyError, match="steps over pieces of sequences are not predicted"):
        work_of(resolve(replace(run, strategy="context", options={})))


def test_a_family_without_operators_is_refused(runs) -> None:
    model = replace(runs[0].model, family="transformers", architecture="LlamaForCausalLM")
    with pytest.raises(StudyError, match="operators of LlamaForCausalLM are not known"):
        work_of(resolve(replace(runs[0], model=model)))
