"""The verdict on equal training: the first steps decide, diverged is never equal."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.metrics.bands import BANDS, FIRST_STEPS, FULL, WIRE, band_of
from pipeline.metrics.cells import group_runs
from pipeline.metrics.parity import (
    DIVERGED,
    EQUAL,
    NOT_EQUAL,
    deviation_of,
    parity_rows,
    skipped_steps,
)
from pipeline.metrics.runs import Run, load_run
from pipeline.metrics.table import assemble
from pipeline.records import RunRecord, Step
from tests.fake_records import make_record, spec_of

NAN = float("nan")


def run_of(
    losses: Sequence[float],
    norms: Sequence[float],
    cell: str = "single",
    seed: int = 20220613,
    *,
    scaled: bool = False,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """A run of one rank with these losses and norms."""
    spec = spec_of(cell, nodes=1)
    work = replace(spec.workload, steps=len(losses), untimed_steps=0)
    made = make_record(replace(spec, workload=work, seed=seed, options=options or {}, **changes))
    run: dict[str, Any] = dict(made.run)
    run["precision"] = {**run["precision"], "loss_scaling": scaled}
    steps: list[Step] = [
        replace(step, loss=None if np.isnan(loss) else loss,
                grad_norm=None if np.isnan(norm) else norm)
        for step, loss, norm in zip(made.steps, losses, norms, strict=True)
    ]  # fmt: skip
    label = {"label": cell, "arm": cell, "arm_label": cell, "cell_order": 0}
    return load_run(RunRecord(run, steps), label | {"precision_ran": "torch fp32"})


def verdict(run: Run, *others: Run) -> dict[str, Any]:
    """All rows of parity of a cell against `others`, runs of the single device: metric -> row."""
    rows = assemble(parity_rows(group_runs([*others, run]))).to_dict("records")
    return {row["metric"]: row for row in rows if row["cell"] == run.context["cell"]}


def test_drift_after_the_first_steps_is_reported_and_decides_nothing() -> None:
    steps = FIRST_STEPS + 30
    drifted = [1.0] * FIRST_STEPS + [1.5] * 30
    found = verdict(run_of(drifted, [1.0] * steps, "dps"), run_of([1.0] * steps, [1.0] * steps))
    assert found["parity_verdict"]["text"] == EQUAL
    assert found["parity_loss_all"]["value"] == 0.5 and found["parity_loss_early"]["value"] == 0.0
    assert found["parity_steps"]["value"] == FIRST_STEPS
    early = [1.0] * (FIRST_STEPS - 1) + [1.5] * 31
    found = verdict(run_of(early, [1.0] * steps, "dps"), run_of([1.0] * steps, [1.0] * steps))
    assert found["parity_verdict"]["text"] == NOT_EQUAL


def test_of_two_lengths_the_steps_that_both_have_are_compared() -> None:
    end, begin = run_of([1.0, 1.0, 1.0, 9.0], [1.0] * 4), run_of([1.0, 1.5], [1.0] * 2, "dps")
    found = deviation_of(begin, end)
    assert found is not None and found["loss_all"] == 0.5
    found = deviation_of(end, begin)
    assert found is not None and found["loss_all"] == pytest.approx(1 / 3)
    again = verdict(run_of([1.0, 1.0], [1.0] * 2), end)
    assert again["repeats_bit_equal"]["value"] == 1.0


def test_a_single_device_is_held_against_no_other_number_format() -> None:
    """How far two formats are apart says nothing of a strategy."""
    low = run_of([1.0] * 3, [2.0] * 3, "dps", strategy="single", precision="bf16")
    assert "parity_verdict" not in verdict(low, run_of([1.0] * 3, [1.0] * 3))


@pytest.mark.parametrize(
    ("losses", "norms"), [([1.0, NAN, NAN], [1.0, 1.0, 1.0]), ([1.0, 1.0, 1.0], [1.0, NAN, 1.0])]
)
def test_what_is_not_finite_has_diverged_also_where_the_reference_has(losses, norms) -> None:
    assert verdict(run_of(losses, norms, "dps"), run_of(losses, norms))["parity_verdict"][
        "text"
    ] == DIVERGED  # fmt: skip
    sound = run_of([1.0] * 3, [1.0] * 3)
    assert verdict(run_of(losses, norms, "dps"), sound)["parity_verdict"]["text"] == DIVERGED


def test_steps_that_a_loss_scaler_skips_are_left_out() -> None:
    run = run_of([1.0, 1.0, 1.0], [NAN, 2.0, 3.0], "dps", scaled=True)
    reference = run_of([9.0, 1.0, 1.0], [NAN, 2.0, 3.0], scaled=True)
    assert list(skipped_steps(run)) == [True, False, False]
    assert deviation_of(run, reference) is not None
    assert verdict(run, reference)["parity_verdict"]["text"] == EQUAL
    lost = run_of([1.0] * 2, [NAN] * 2, "dps", scaled=True)
    assert deviation_of(lost, run_of([1.0] * 2, [NAN] * 2, scaled=True)) is None


@pytest.mark.parametrize(("last", "same"), [(1.25, 1.0), (1.2500000000000002, 0.0)])
def test_whether_losses_are_deterministic_on_a_seed_is_measured(last: float, same: float) -> None:
    first = run_of([2.0, 1.25], [1.0, NAN])
    again = run_of([2.0, last], [1.0, NAN])
    other_seed = run_of([3.0, 1.0], [1.0, 1.0], seed=7)
    found = verdict(first, again, other_seed)["repeats_bit_equal"]
    assert (found["value"], found["n"]) == (same, 2)
    assert "repeats_bit_equal" not in verdict(first, other_seed)


MEASURED = json.loads(Path("bench/results/parity_drift.json").read_text())


@pytest.mark.parametrize("band", BANDS, ids=[band.name for band in BANDS])
@pytest.mark.parametrize("part", ["first", "long"])
def test_every_band_leaves_room_around_what_was_measured(band, part) -> None:
    measured = MEASURED[part]
    at = measured["at_steps"].index(FIRST_STEPS)
    for place in band.measured:
        section, precision = place.split("/")
        if (found := measured[section].get(precision)) is None:
            assert part == "long"
            continue
        assert 10 * max(found["loss"][0], found["norm"][0]) <= band.first_step
        assert 10 * max(found["loss"][at], found["norm"][at]) <= band.first_steps


def test_a_band_is_that_of_the_number_format() -> None:
    assert band_of("float32", same=True, wire=False) is FULL
    same = {dtype: band_of(dtype, same=True, wire=False) for dtype in ("bfloat16", "float16")}
    assert same["float16"].first_step < same["bfloat16"].first_step
    assert band_of("tf32", same=False, wire=False).name == "tf32 against fp32"
    assert band_of("float32", same=True, wire=True) is WIRE
    assert band_of("bfloat16", same=True, wire=True) is same["bfloat16"]


def test_a_lossy_wire_has_a_band_of_its_own() -> None:
    steps = [1.0, 1.0, 1.0]
    off = [1.0, 1.0, 1.0 + 2 * FULL.first_steps]
    plain = run_of(steps, steps)
    assert verdict(run_of(steps, off, "horovod"), plain)["parity_verdict"]["text"] == NOT_EQUAL
    narrow = run_of(steps, off, "horovod", options={"compression": "fp16"})
    found = verdict(narrow, plain)
    assert found["parity_verdict"]["text"] == EQUAL
    assert found["parity_band"]["text"] == WIRE.name
    twice = run_of(steps, steps, "horovod", options={"optimiser_steps": 2})
    assert "not the same updates per step" in verdict(twice, plain)["parity_verdict"]["text"]


def test_a_reduced_precision_is_drawn_against_fp32() -> None:
    def one(cell: str, precision: str, loss: float) -> Run:
        return run_of([loss] * 3, [1.0] * 3, cell, precision=precision)

    own = [one("sps", "amp_o2", 1.1), one("dps-amp", "amp_o2", 1.1)]
    rows = parity_rows(group_runs([one("single", "fp32", 1.0), *own]))
    table = assemble(rows).query("cell == 'dps-amp'")
    steps = table[table["metric"] == "loss_deviation"]
    assert list(steps["value"]) == pytest.approx([0.1] * 3)
    assert len(table[table["metric"] == "parity_verdict"]) == 2
