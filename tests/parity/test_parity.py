"""Every strategy takes the same step as `single`: loss, unclipped gradient norm, final weights.

Tolerances, relative unless said otherwise, with their reasons. In brackets what was measured on an
x86-64 with AVX2; the rest is room for processors that sum in another order.

- FIRST_STEP 1e-5 (2e-7): before any update the runs differ only in the order of fp32 sums.
- ALL_STEPS 2e-5 (2e-7): AdamW divides by the square root of its second moment, so a parameter
  whose gradient is near zero turns a rounding difference of the first step into a larger one.
- WEIGHTS 1e-4 absolute (3e-6), for the same reason; one update at the full learning rate is 2e-3.
- MIXED_FIRST 3e-3 (6e-4) and MIXED 1e-2 (2e-3) against the single-device run of the same precision:
  gradients are rounded to 8 (bf16) or 11 (fp16) bits before they are summed.
- MASTERED 4e-3 (3.3e-4) in bf16_masters, where no axis adds up activations in bfloat16, nor sends
  tokens to experts: of the first step FIRST_STEP (1e-7), since fp32 sums alone are reordered; later
  weights may round to another bfloat16. FSDP2 adds both gradients of a tied embedding in bfloat16
  (4e-5): MIXED holds.
- BAND_LOSS 1e-2 (2e-4) and BAND_NORM 3e-2 (4e-3) of a mixed single-device run against fp32:
  products are rounded too, and the two trainings drift apart on the same curve.
- NARROWED 5e-3 (7e-4) where gradients travel as float16 or bfloat16 on four ranks: narrow sums of
  four numbers depend on their order. On two ranks they have the bits of the one process.
- EACH 12: the gradient norm of each parameter, in twelve times the band of all (ALL_STEPS or MIXED:
  2.4e-4 and 0.12; 3e-7 and 3.4e-2), of its own size and FLOOR 1e-4 of the whole: what is zero but
  for rounding, as of keys' biases, which shift all scores alike, has no digits to compare.
- SENT 1e-2 (4e-3): bytes; rows that ranks do not divide are padded, norms are added up.
- RESUMED 2e-5: one and two ranks resume bit for bit. With more, the sum of four numbers depends on
  their order, and DDP lays out its buckets anew after its first step, also after a resume. Horovod
  adds in the order of its fused buffers, which differs from run to run.

The bands of the paper (pipeline/metrics/parity.py) are wider: its runs may take thousands of steps.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

from pipeline import models, strategies
from pipeline.corpus.batches import Batches
from pipeline.cost.traffic import ALL_TO_ALL
from pipeline.errors import UnsupportedError
from pipeline.parallel.counted import wire_bytes
from pipeline.parallel.mesh import DATA, PIPELINE, REPLICA
from pipeline.parallel.state import read_whole
from pipeline.parallel.types import SavedState
from pipeline.planner.memory import predict, predict_sent, sent_between_nodes
from pipeline.resolved import resolve
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, OPTIMISER, REST
from tests.parity import ask, cases
from tests.parity.cases import MASTERS, REFERENCE, WIDE, Case, launches, plain_case, variants_of
from tests.parity.launch import LaunchFailed, Runs, launch
from tests.unit.models.test_stored import save_models

FIRST_STEP, ALL_STEPS, RESUMED = 1e-5, 2e-5, 2e-5
MASTERED = 4e-3
MIXED_FIRST, MIXED = 3e-3, 1e-2
NARROWED = 5e-3
BAND_LOSS, BAND_NORM = 1e-2, 3e-2
WEIGHTS = 1e-4
SENT = 1e-2
EACH, FLOOR = 12, 1e-4


@pytest.fixture(scope="session")
def launched(request, tmp_path_factory, small_tokens) -> Any:
    """Start a strategy's ranks once a session, and hand out what they left, or why they failed.

    The single device trains what the strategies need of which there is a test in this session.
    """
    ask.start()
    tests = [item.name for item in request.session.items]
    chosen = [s for s in strategies.names() if any(f"[{s}-" in name for name in tests)]

    @cache
    def outcome(strategy: str, world: int) -> Runs | str:
        try:
            if strategy != cases.ALONE:
                strategies.load(strategy, {}).check()
                if why := cases.unwritten(strategy):
                    pytest.skip(why)
        except UnsupportedError as error:
            pytest.skip(str(error))
        try:
            out = tmp_path_factory.mktemp(f"{strategy}-{world}")
            return launch(strategy, world, small_tokens, out, chosen)
        except LaunchFailed as failure:
            return str(failure)

    def runs(strategy: str, world: int) -> Runs:
        found = outcome(strategy, world)
        if isinstance(found, str):
            pytest.fail(found, pytrace=False)
        return found

    return runs


def largest_deviation(a: list[dict[str, Any]], b: list[dict[str, Any]], key: str) -> float:
    """Largest relative deviation of `key` over the steps; not finite in one alone: infinite."""
    assert len(a) == len(b)
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x[key] is None or y[key] is None:
            worst = max(worst, 0.0 if x[key] is y[key] else float("inf"))
        else:
            worst = max(worst, abs(x[key] - y[key]) / (abs(y[key]) or 1.0))
    return worst


def assert_same_steps(run: Any, reference: Any, first: float, later: float) -> None:
    """Loss and unclipped gradient norm follow the reference: the first step tight, all within."""
    steps, expected = run["steps"], reference["steps"]
    for key in ("loss", "grad_norm"):
        for what, count, band in (("the first step", 1, first), ("all steps", None, later)):
            off = largest_deviation(steps[:count], expected[:count], key)
            assert off <= band, f"{key} of {what} is off by {off:.1e}, over {band:.0e}; " + (
                first_differing(steps, expected, EACH * later) or "gradients have equal norms"
            )
    assert not (differing := first_differing(steps, expected, EACH * later)), differing


def bands_of(case: Case, world: int) -> tuple[float, float]:
    """Of the first step and of all, by precision; in MASTERS also by axes."""
    if case.change in ("fp16", "bf16") and world > 2:
        return NARROWED, NARROWED
    if case.precision == "fp32":
        return FIRST_STEP, ALL_STEPS
    setting = case.strategy, case.variant
    axes = {*cases.axes_of(case.strategy, world, case.variant)}
    fp32_sums = axes <= {REPLICA, DATA, PIPELINE}
    if case.precision == MASTERS and fp32_sums and setting not in cases.TIED_NARROW:
        return FIRST_STEP, MASTERED
    return MIXED_FIRST, MIXED


def first_differing(steps: Any, expected: Any, band: float) -> str:
    """Of the first step with a gradient that has another norm than the reference's, see EACH.

    A line on the step and some parameters; empty where there is none.
    """
    for step, wanted in zip(steps, expected, strict=True):
        norms, floor = step.get("gradients"), FLOOR * (wanted["grad_norm"] or math.inf)
        if not norms:
            continue  # a step of a skipped update, or of a library that keeps them to itself
        assert norms.keys() == wanted["gradients"].keys()
        names = [
            f"{name} (norm {norms[name]:.6g}, a single device has {norm:.6g})"
            for name, norm in wanted["gradients"].items()
            if not (norm == math.inf or abs(norms[name] - norm) <= band * (norm + floor))
        ]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return f"step {step['step']} has other gradients of {', '.join(names[:3])}{more}"
    return ""


def test_each_gradient_is_compared_in_a_band_by_its_size() -> None:
    norms = {"large": 1.0, "small": 1e-3, "none": 1e-9}
    wanted = {"step": 0, "grad_norm": 1.0, "gradients": norms}
    for name, off, alike in (
        ("large", 1.1, True), ("large", 1.5, False), ("small", 1.1, True), ("small", 1.5, False),
        ("none", 1.5, True), ("none", 1e6, False),
    ):  # fmt: skip
        step = wanted | {"gradients": norms | {name: off * norms[name]}}
        differing = first_differing([step], [wanted], band=EACH * MIXED)
        assert not differing if alike else f"step 0 has other gradients of {name} (" in differing


PLACES = [(s, w, v) for s, w in launches() for v in variants_of(s, w) if s != "single"]
"""Strategy, ranks, and the number of the setting of its knobs."""
NAMES = {(s, w, v): f"{s}-{w}" + (f"-v{v}" if v else "") for s, w, v in PLACES}
LAUNCHES = [pytest.param(*place, id=NAMES[place]) for place in PLACES]


def each(*kinds: Callable[[str, int], list[Case]]) -> pytest.MarkDecorator:
    """A test's strategy, number of ranks and case: all cases of these kinds, of any launch."""
    found = [
        pytest.param(strategy, world, case, id=f"{case.name}-{world}")
        for kind in kinds
        for strategy, world in launches()
        for case in kind(strategy, world)
    ]
    return pytest.mark.parametrize(("strategy", "world", "case"), found)


def longer_cases(strategy: str, world: int) -> list[Case]:
    """Those of the strategies that are held against a single device."""
    return cases.longer_cases(strategy, world) if strategy != REFERENCE else []


def lamb_on_two(strategy: str, world: int) -> list[Case]:
    """Four ranks have theirs in `tests/system/test_parity_matrix.py`."""
    return cases.lamb_models(strategy, world) if world == 2 else []


@each(longer_cases, cases.varied_cases, lamb_on_two)
def test_a_strategy_takes_the_steps_of_a_single_device(launched, strategy, world, case) -> None:
    """In the same formats; embeddings stay tied. LAMB is there the one that is written out.

    The single device has no rows that pad its vocabulary.
    """
    runs, single = launched(strategy, world), launched("single", 1)
    assert_same_training(runs, single, case)
    assert runs.rank(case)["precision"] == single.rank(case.reference(world))["precision"]
    assert all(rank["tied"] for rank in runs.ranks(case))


@each(cases.model_cases)
def test_a_model_of_transformers_takes_the_same_steps(launched, strategy, world, case) -> None:
    """Where layers are cut, what is sent is counted too, and a checkpoint has no layout."""
    runs, single = launched(strategy, world), launched("single", 1)
    assert_same_training(runs, single, case)
    if case.profiled and strategy in cases.CUT:
        assert_sends_what_it_says(runs, case, world)
    if case.resume:
        reference = replace(case.reference(world), resume=True)
        assert_same_tensors(runs.checkpoint(case), single.checkpoint(reference))


def expected_of(single: Runs, case: Case, world: int) -> dict[str, Any]:
    """The reference's first rank, with as many of its steps as the case takes."""
    reference = single.rank(case.reference(world))
    return reference | {"steps": reference["steps"][: case.steps]}


def assert_same_training(runs: Runs, single: Runs, case: Case) -> None:
    """Steps and, where they are kept, final weights of a single device; the same on all ranks."""
    reference = expected_of(single, case, runs.world)
    assert_same_steps(runs.rank(case), reference, *bands_of(case, runs.world))
    assert_ranks_agree(runs, case)
    if case.weights_wanted:
        expected = single.weights(case.reference(runs.world))
        for name, weight in runs.weights(case).items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=WEIGHTS)


def assert_ranks_agree(runs: Runs, case: Case) -> None:
    """All ranks end with the same bits."""
    hashes = [rank["weights_sha256"] for rank in runs.ranks(case)]
    other = [rank for rank, digest in enumerate(hashes) if digest != hashes[0]]
    assert not other, (
        f"ranks {other} end with other weights than rank 0; all must update by the same gradients"
    )


@each(cases.own_brief_cases)
def test_a_setting_in_micro_batches_sends_what_it_says(launched, strategy, world, case) -> None:
    """And takes the same steps: the cells of the matrix that no longer case has.

    Others of four ranks, and those of eight, are in `tests/system/test_parity_matrix.py`.
    """
    assert_matrix_cell(launched(strategy, world), launched("single", 1), case)


def assert_matrix_cell(runs: Runs, single: Runs, case: Case) -> None:
    """All ranks end with the same bits; steps and what is sent are such as they should be."""
    reference = expected_of(single, case, runs.world)
    assert_same_steps(runs.rank(case), reference, *bands_of(case, runs.world))
    assert_ranks_agree(runs, case)
    if case.profiled and not strategies.load(case.strategy, case.options).sends_unstated:
        assert_sends_what_it_says(runs, case, runs.world)


def test_no_cell_of_the_matrix_is_left_out() -> None:
    """Every setting that fits 2, 4 and 8 ranks; with several axes, each two of them alone too."""
    for strategy in {s for s, _ in launches()} - {"single"}:
        for world in (*cases.worlds_of(strategy), WIDE):
            run = {*cases.longer_cases(strategy, world), *cases.brief_cases(strategy, world)}
            if cases.runs_here(strategy):
                own = cases.cases_of(strategy, world) if world in cases.WORLDS else []
                wanted = {case for case in run if world < WIDE or cases.on_eight(case)}
                assert wanted <= {*own, *cases.cases_of(cases.TOGETHER, world)}
            for variant in variants_of(strategy, world):
                found = {(c.precision, c.accumulation) for c in run if c.variant == variant}
                wanted_cells = cases.matrix(strategy, world)
                able = {c for c in wanted_cells if cases.trains_in(strategy, variant, c[0])}
                assert able <= found, (strategy, world, variant)
    for world in (4, WIDE):
        several = {cases.axes_of(s, world, v) for s, _ in launches() for v in variants_of(s, world)}
        assert {("data", "tensor"), ("pipeline", "data"), ("pipeline", "tensor")} <= several


@pytest.mark.parametrize("precision", [p for p in cases.PRECISIONS if p != "fp32"])
def test_mixed_precision_stays_in_its_band_around_fp32(launched, precision) -> None:
    single = launched("single", 1)
    run, fp32 = (single.rank(Case("single", name, 2)) for name in (precision, "fp32"))
    assert run["precision"]["compute_dtype"] != "float32"
    assert largest_deviation(run["steps"], fp32["steps"], "loss") <= BAND_LOSS
    assert largest_deviation(run["steps"], fp32["steps"], "grad_norm") <= BAND_NORM
    losses = [[step["loss"] for step in r["steps"]] for r in (run, fp32)]
    assert losses[0] != losses[1], "low precision gave fp32's very bits: it did not run"


@each(cases.resumed_cases)
def test_resuming_half_way_changes_nothing(launched, strategy, world, case) -> None:
    """Nor does it on four ranks, where such runs are held against a single device's."""
    runs = launched(strategy, world)
    whole, halves = runs.rank(replace(case, resume=False)), runs.rank(case)
    assert [s["step"] for s in halves["steps"]] == list(range(case.steps))
    for key in ("loss", "grad_norm", "learning_rate"):
        assert [s[key] for s in halves["steps"]] == [s[key] for s in whole["steps"]], key
    assert halves["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(("strategy", "world", "variant"), LAUNCHES)
def test_a_checkpoint_is_that_of_a_single_device(launched, strategy, world, variant) -> None:
    """So it may be resumed under any other layout: it names pieces of whole tensors."""
    case = plain_case(strategy, world, variant, resume=True)
    kept = launched(strategy, world).checkpoint(case)
    single = launched("single", 1).checkpoint(replace(case.reference(world), resume=True))
    assert_same_tensors(kept, single)


def assert_same_tensors(kept: SavedState, single: SavedState) -> None:
    """Names, shapes, types and, within WEIGHTS, values of weights and optimiser."""
    assert kept.wholes == single.wholes
    for name in kept.wholes:
        found, expected = read_whole(kept, name), read_whole(single, name)
        torch.testing.assert_close(found, expected, rtol=0, atol=WEIGHTS, msg=name)


@pytest.mark.parametrize(("strategy", "world", "variant"), LAUNCHES)
def test_the_pieces_of_all_ranks_cover_each_tensor_once(launched, strategy, world, variant) -> None:
    case = plain_case(strategy, world, variant, resume=True)
    runs = launched(strategy, world)
    state: Any = runs.checkpoint(case)
    for name, whole in state.wholes.items():
        times = torch.zeros(whole.shape, dtype=torch.int64)
        for _, starts, lengths in state.pieces[name]:
            ends = zip(starts, lengths, strict=True)
            times[tuple(slice(start, start + n) for start, n in ends)] += 1
        assert times.eq(1).all(), name
    kept = [sum(rank["kept"]) for rank in runs.ranks(case)]
    assert sum(kept) == sum(math.prod(whole.shape) for whole in state.wholes.values())


RECOMPUTED = {(s, w): cases.recomputed_cases(s, w) for s, w in launches()}


@pytest.mark.parametrize(("strategy", "world"), [p for p, cases in RECOMPUTED.items() if cases])
def test_recomputed_activations_change_no_bit(launched, strategy, world) -> None:
    """Nor what is sent, but for what the formula says; a rank keeps less."""
    runs = launched(strategy, world)
    for case in RECOMPUTED[strategy, world]:
        kept = replace(case, recompute=False)
        for rank, (run, same) in enumerate(zip(runs.ranks(case), runs.ranks(kept), strict=True)):
            assert run["weights_sha256"] == same["weights_sha256"], case.name
            for key in ("loss", "grad_norm"):
                assert [s[key] for s in run["steps"]] == [s[key] for s in same["steps"]], case.name
            less, more = (predict(resolve(one.spec(world)), rank) for one in (case, kept))
            assert less.activations < more.activations
        if case.profiled and not strategies.load(strategy, case.options).sends_unstated:
            assert_sends_what_it_says(runs, case, world)


def assert_sends_what_it_says(runs: Runs, case: Case, world: int) -> None:
    """Counted in every step, against the formula: SENT is for paddings and single numbers."""
    resolved = resolve(case.spec(world))
    routed = {one.axis for one in predict_sent(resolved) if one.kind == ALL_TO_ALL}
    says, hint = f"`sends` of {case.strategy} says", ""
    if case.precision != "fp32":
        hint = f"; in {case.precision} gradients travel as `parts.precision.reduced`, if it is set"
    ranks = range(resolved.layout.num_processes)
    sends_nothing = not any(one.bytes for rank in ranks for one in predict_sent(resolved, rank))
    if resolved.layout.data_parallel > 1 and not case.changed:
        assert not sends_nothing, f"{says} 0 bytes, and one mean gradient needs some; state them"
    for rank, run in enumerate(runs.ranks(case)):
        predicted = {one.axis: one.bytes for one in predict_sent(resolved, rank)}
        counted = dict.fromkeys(predicted, 0)
        for one in run["sent"]["collectives"]:
            each = one["wire_bytes"] / run["sent"].get("period", 1)
            counted[one["axis"]] = counted.get(one["axis"], 0) + each
        # A weight, over all ranks at once, is little.
        others = {axis: round(sent) for axis, sent in counted.items() if axis not in predicted}
        little = sum(others.values()) <= SENT * sum(predicted.values())
        assert little, f"rank {rank} sent {others} bytes along axes of which {says} nothing"
        stated: dict[str, float] = {axis: counted[axis] for axis in predicted}
        stated |= {axis: evenly(runs, case, axis) for axis in routed}
        assert stated.keys() == predicted.keys()
        for axis, expected in predicted.items():
            assert stated[axis] == pytest.approx(expected, rel=SENT), (
                f"rank {rank} sent {stated[axis]:,.0f} bytes along {axis}; {says} "
                f"{expected:,.0f}{hint}"
            )
        for one in predict_sent(resolved, rank):
            leaving = sent_between_nodes(resolved.layout, rank, one)
            if leaving is not None and one.axis not in routed:
                own = [each for each in run["sent"]["collectives"] if each["axis"] == one.axis]
                total = sum(each["between_nodes_bytes"] for each in own)
                total /= run["sent"].get("period", 1)
                assert total == pytest.approx(leaving, rel=SENT), (
                    f"rank {rank} sent {total:,.0f} bytes along {one.axis} to other nodes; {says} "
                    f"{leaving:,.0f}"
                )
        assert routed or run["sent"]["differing_steps"] == 0
        timed = [step for step in run["steps"] if step["timed"]]
        assert run["sent"]["steps"] == len(timed)
        assert not predicted or any(step["phases"]["communication"] > 0 for step in timed)


@pytest.mark.parametrize(
    ("share", "line"),
    [
        pytest.param(0, "`sends` of ddp says 0 bytes, and one mean", id="ddp-none"),
        pytest.param(0.5, "rank 0 sent 142,592 bytes along data; `sends` of ddp says 71,296",
                     id="ddp-half"),
    ],
)  # fmt: skip
def test_a_wrong_formula_is_told_with_both_sizes(launched, monkeypatch, share, line) -> None:
    def wrong(*given: Any, right: Any = predict_sent) -> list[Any]:
        return [replace(one, bytes=share * one.bytes) for one in right(*given)]

    runs, case = launched("ddp", 2), cases.own_brief_cases("ddp", 2)[0]
    monkeypatch.setitem(globals(), "predict_sent", wrong)
    with pytest.raises(AssertionError, match=line):
        assert_sends_what_it_says(runs, case, 2)


def evenly(runs: Runs, case: Case, axis: str) -> float:
    """Bytes along an axis on the mean of the ranks, if all pieces of an exchange were equal.

    No rank may have kept all or sent all: then nothing was routed.
    """
    total = 0.0
    for run in runs.ranks(case):
        for one in (each for each in run["sent"]["collectives"] if each["axis"] == axis):
            even = wire_bytes(one["kind"], one["payload_bytes"], one["ranks"])
            total += one["wire_bytes"] if even is None else even  # a send's are known
            if one["kind"] == ALL_TO_ALL:
                assert 0 < one["wire_bytes"] < one["payload_bytes"]
    return total / runs.world


PASSES = [FORWARD, BACKWARD] * 4
PHASES = {
    "ddp": [REST, *PASSES, COMMUNICATION, OPTIMISER, REST],
    "horovod": [REST, *PASSES, COMMUNICATION, BACKWARD, OPTIMISER, REST],
    # Pull and push; the loss scale would follow, where there is one.
    "parameter_server": [
        *(REST, COMMUNICATION, REST, *PASSES, COMMUNICATION, BACKWARD),
        OPTIMISER,
        REST,
    ],
}


@pytest.mark.parametrize("strategy", PHASES)
def test_a_step_goes_through_its_phases_in_this_order(launched, strategy) -> None:
    """The last one of four micro-batches, on the root of two ranks."""
    marks = launched(strategy, 2).rank(Case(strategy, accumulation=4, brief=True))["phases"]
    # The same phase twice in a row is one.
    assert [marks[0], *(b for a, b in pairwise(marks) if a != b)] == PHASES[strategy]


@each(cases.overflow_cases)
def test_an_overflow_on_one_rank_makes_all_skip_the_step(launched, strategy, world, case) -> None:
    """Also where another stage, another shard or part of a layer holds the infinite gradient."""
    assert_step_is_skipped(launched(strategy, world), launched("single", 1), case)


def assert_step_is_skipped(runs: Runs, single: Runs, case: Case) -> None:
    """On all ranks that one step, and they end with the same bits."""
    ranks, reference = runs.ranks(case), single.rank(case.reference(runs.world))
    assert_ranks_agree(runs, case)
    for run in ranks:
        assert [s["step"] for s in run["steps"] if s["grad_norm"] is None] == [cases.OVERFLOW_STEP]
        assert_same_steps(run, reference, first=MIXED_FIRST, later=MIXED)


@each(cases.changed_cases)
def test_a_changed_step_is_that_of_its_algorithm(launched, strategy, world, case) -> None:
    """On all ranks alike; what is sent is as the strategy says, and it resumes where it can."""
    runs, reference = launched(strategy, world), launched("single", 1).rank(case.reference(world))
    assert_same_steps(runs.rank(case), reference, *bands_of(case, world))
    assert_ranks_agree(runs, case)
    if case.resume:
        whole = runs.rank(replace(case, resume=False))
        assert runs.rank(case)["weights_sha256"] == whole["weights_sha256"]
    elif case.profiled:
        assert_sends_what_it_says(runs, case, world)


def test_a_padded_vocabulary_takes_the_steps_of_one_without(launched) -> None:
    """On a single device the loss of equal weights has equal bits; gradients differ in the last."""
    single, case = launched("single", 1), Case("single", padded=True)
    run, plain = single.rank(case), expected_of(single, case, 1)
    assert_same_steps(run, plain, first=FIRST_STEP, later=ALL_STEPS)
    assert run["steps"][0]["loss"] == plain["steps"][0]["loss"]


LONELY = [case for strategy in strategies.names() for case in cases.alone_cases(strategy)]


@pytest.mark.parametrize("case", LONELY, ids=lambda case: f"{case.name}-1")
def test_one_rank_takes_the_steps_of_a_single_device(launched, case) -> None:
    assert_same_training(launched(cases.ALONE, 1), launched("single", 1), case)


@each(cases.phased_cases)
def test_phases_take_the_steps_of_a_single_device(launched, strategy, world, case) -> None:
    """Also where the run goes on in the first phase under another layout; tokens tell them."""
    runs = launched(strategy, world)
    assert_same_training(runs, launched("single", 1), case)
    tokens = [step["tokens"] for step in runs.rank(case)["steps"]]
    assert tokens == [16 * 8] * 4 + [8 * 16] * 2


def test_the_first_loss_is_that_of_transformers_in_every_layout(
    launched, small_tokens, tmp_path
) -> None:
    """Of trainings that begin with weights of files, on one rank and on two."""
    folders = [str(folder) for folder in save_models(tmp_path / "saved").values()]
    theirs = cache(loss_of_transformers)
    for world in (1, 2):
        runs = launch(cases.BEGUN, world, small_tokens, tmp_path, folders)
        for case in cases.begun_cases(world, folders):
            first, *_, last = [step["loss"] for step in runs.rank(case)["steps"]]
            expected = theirs(replace(case, strategy=REFERENCE), small_tokens)
            assert first == pytest.approx(expected, rel=1e-6), case.name
            assert first != last


def loss_of_transformers(case: Case, tokens: Path) -> float:
    """Loss of the first batch by transformers' own model, loaded by its own from_pretrained."""
    spec = case.spec(1)
    batches = Batches(tokens, 16, spec.workload.global_batch, spec.seed, spec.objective)
    arrays: Any = batches.slice(0, 0, spec.workload.global_batch)
    inputs, targets = (torch.from_numpy(part) for part in arrays[:2])
    model = getattr(transformers, str(case.architecture)).from_pretrained(case.folder).eval()
    with torch.no_grad():
        losses = F.cross_entropy(
            model(input_ids=inputs).logits.flatten(0, 1), targets.flatten(), reduction="none"
        )
    if arrays.weights is None:
        return losses.mean().item()
    weights = torch.from_numpy(arrays.weights[:, 0]).flatten()
    return (losses @ weights / weights.sum()).item()


MUTANTS = [case for strategy in strategies.names() for case in cases.mutants(strategy)]


@pytest.mark.parametrize("case", MUTANTS, ids=lambda case: case.name)
def test_the_comparison_notices_a_broken_step(launched, case) -> None:
    world = cases.least_world(case)
    reference = expected_of(launched("single", 1), case, world)
    run = launched(case.strategy, world).rank(case)
    assert len(run["steps"]) == len(reference["steps"]), "no mistake of the comparison itself"
    with pytest.raises(AssertionError):
        assert_same_steps(run, reference, *bands_of(case, world))


@pytest.mark.parametrize("strategy", strategies.names())
def test_what_changes_the_step_is_written_out(strategy: str) -> None:
    if why := cases.unwritten(strategy):
        pytest.fail(why, pytrace=False)


def test_a_change_that_is_not_written_out_names_the_file_to_edit(monkeypatch) -> None:
    """And the strategy takes no other one down: its cases are left out."""
    for attribute, value, file in (
        ("algorithm", "another", "written_out.py"), ("changes_the_step", ("ranks",), "cases.py"),
    ):  # fmt: skip
        cases.unwritten.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(type(strategies.load("tensor", {})), attribute, value)
            assert f"tests/parity/{file}" in cases.unwritten("tensor")
            assert not cases.runs_here("tensor") and cases.runs_here("ddp")
    cases.unwritten.cache_clear()


def test_the_examples_of_every_family_are_trained() -> None:
    first, *others = models.examples()
    trained = [case.architecture for case in cases.model_cases("ddp", 2)]
    assert {first, *trained} == {first, *others} and first not in trained


def test_every_strategy_file_is_in_the_suite() -> None:
    files = {p.stem for p in Path("pipeline/strategies").iterdir()}
    expected = {stem for stem in files if stem != "base" and not stem.startswith("_")}
    assert {strategy for strategy, _ in launches()} == expected
    assert all(cases.worlds_of(s)[-1] == 4 for s in expected - {"single"})
    wide = {case.strategy for case in cases.wide_cases()}
    assert wide == {s for s in expected - {"single"} if cases.runs_here(s)}, "on eight ranks too"
