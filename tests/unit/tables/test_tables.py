"""Tables as LaTeX, Markdown and CSV: what they show and what they leave out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.metrics import table as tidy
from pipeline.metrics.bands import FULL
from pipeline.metrics.format import limit, probability, ratio_interval, scientific, with_interval
from pipeline.metrics.profile import profile_rows
from pipeline.metrics.results import records
from pipeline.metrics.runs import load_run
from pipeline.planner.memory import (
    CPU_BASE,
    CPU_LOADED_LATER,
    FORKED_LOADED_LATER,
    MEBIBYTE,
    formula_24,
    predict,
)
from pipeline.records import RunRecord, Step
from pipeline.resolved import resolve
from pipeline.study.expansion import profiled
from pipeline.study.study import Study
from pipeline.tables.declared import TABLES
from pipeline.tables.write import printed_form, write_all
from pipeline.text import NONE, significant
from tests.fake_records import (
    CONDITIONS,
    EMULATED,
    altered,
    edited,
    made,
    make_record,
    make_records,
    make_study,
    make_table,
    pick,
    spec_of,
    table_of,
)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, claims=["bai2022"])


def shown(name: str, table: pd.DataFrame) -> pd.DataFrame:
    return made(name, table)[1]


@pytest.mark.parametrize("name", ["scaling", "step_time", "utilisation"])
def test_every_cell_has_a_row_at_every_node_count(name: str, table: pd.DataFrame) -> None:
    frame = shown(name, table)
    assert len(frame) == 1 + 5 * 3
    assert sum(frame["Cell"].str.startswith("Horovod + Apex")) == 3, "though it never ran"
    assert "apex.amp is not importable" in shown("status", table).iloc[-1]["Reason"]


def test_comparisons_are_a_matrix_with_a_mark_where_they_are_decided(table: pd.DataFrame) -> None:
    frame = shown("comparisons", table)
    assert list(frame) == ["Nodes", "Cell", "sps", "dps", "horovod", "dps-amp"]
    assert list(printed_form(frame, "")[0]["Nodes"]) == ["1", "", "", "", "2", "", "", "4", "", ""]
    assert not [text for text in frame.to_numpy().ravel() if ">" in text or "<" in text]
    ratios = pick(table, "comparison", "rate_ratio").set_index(["cell", "base"])["value"]
    ratio = ratios["dps", "horovod, 4 nodes"]
    pair = {"metric": "speed_verdict", "cell": "dps", "base": "horovod, 4 nodes"}
    for verdict, mark in (("faster", " >"), ("slower", " <"), ("undecided", "")):
        chosen = altered(table, pair, text=verdict)
        assert shown("comparisons", chosen).iloc[8]["horovod"] == f"{ratio:.2f}{mark}"


def test_a_speedup_says_what_the_test_says_of_it(table: pd.DataFrame) -> None:
    pair = {"metric": "speed_verdict", "cell": "dps", "base": "single, 1 node"}
    chosen = altered(table, pair, text="faster")
    frame = shown("scaling", chosen)
    cell = made("scaling", chosen)[0]["cell"]
    # On one node the two are a pair of the table of comparisons.
    few = "too few repeats to decide"
    assert list(frame.loc[cell == "dps", "Against it"]) == [few, "faster", "faster"]
    assert set(frame.loc[cell == "sps", "Against it"]) == {few}


def test_the_summary_is_the_largest_world_by_throughput(table: pd.DataFrame) -> None:
    frame = shown("summary", table)
    assert set(frame["Nodes"]) == {"4"} and len(frame) == 4
    rates = [float(text.split(" ")[0].replace(",", "")) for text in frame["Tokens/s"]]
    assert rates == sorted(rates, reverse=True)
    assert set(frame["Exposed [%]"]) == {"\N{EN DASH}"}
    linked = shown("summary", make_table(repeats=2, cluster=EMULATED, profile={"steps": 4}))
    assert set(linked["Link"]) == {"1 Gbit/s"}
    assert all(text.isdigit() for text in linked["Exposed [%]"])
    # A cell that trained otherwise says so where it could be read as the fastest.
    apart = altered(table, {"metric": "parity_verdict", "cell": "dps"}, text="NOT EQUAL")
    frame, cell = shown("summary", apart), made("summary", apart)[0]["cell"]
    assert dict(zip(cell, frame["Same training"], strict=True))["dps"] == "NO"
    assert "NO" not in set(shown("summary", table)["Same training"])


def test_constant_and_empty_columns_are_said_and_not_shown(tmp_path: Path) -> None:
    dash = "\N{EN DASH}"
    frame = pd.DataFrame({"Cell": ["a", "b"], "Ranks": "8", "Base [s]": dash, "Verdict": "equal"})
    kept, caption = printed_form(frame, "What it is. Base: of it. Verdict: on it.")
    assert list(kept) == ["Cell", "Verdict"]
    assert caption == "What it is. Verdict: on it. In every row: Ranks 8."
    assert list(printed_form(frame.head(1), "")[0]) == list(frame)
    write_all(frame, frame, "What it is.", tmp_path, "x")
    told = "What it is. In every row: Ranks 8."
    assert (tmp_path / "x.md").read_text().endswith(f"\n\n: {told}\n")
    assert told in (tmp_path / "x.tex").read_text()


def test_a_row_names_its_cell_again_in_another_block() -> None:
    rows = [("slow", "4", "a"), ("slow", "4", "b"), ("fast", "4", "b"), ("fast", "8", "b")]
    kept, _ = printed_form(pd.DataFrame(rows, columns=["Link", "Nodes", "Cell"]), "")
    assert kept.to_numpy().tolist() == [
        ["slow", "4", "a"], ["", "", "b"], ["fast", "4", "b"], ["", "8", "b"],
    ]  # fmt: skip


def test_drift_is_counted_and_named(table: pd.DataFrame) -> None:
    assert "Single device" not in set(shown("status", table)["Cell"])
    assert shown("status", table).iloc[-1]["Drift"] == "\N{EN DASH}"
    run = {"metric": "drift", "run_id": "fake/single/n1/r1"}
    drifting = altered(table, run, text="drift", value=-0.081)
    assert shown("status", drifting).iloc[0]["Drift"] == "1 of 2 (r1 -8.1 %)"


def test_parity_is_a_row_a_cell_and_not_equal_is_written_large(table: pd.DataFrame) -> None:
    broken = altered(table, {"metric": "parity_verdict", "cell": "dps"}, text="NOT EQUAL")
    frame = shown("parity", broken)
    assert not frame.duplicated(["Cell", "Reference"]).any()
    rows = frame["Cell"] == "Distributed Parameter Server (DDP)"
    assert set(frame.loc[rows, "Verdict"]) == {"NOT EQUAL in 3 of 3"}
    assert set(frame.loc[~rows, "Verdict"]) == {"equal in 2 of 2", "equal in 3 of 3"}
    assert set(frame["Ranks bit-equal"]) == {"yes"}
    tolerance = f"{limit(FULL.first_step)}, {limit(FULL.first_steps)}"
    assert list(printed_form(frame, "")[0]["Tolerance"])[:2] == [tolerance, ""]
    rows = (table["level"] == "cell") & (table["metric"] == "parity_loss_early")
    worst = table.loc[rows & (table["cell"] == "horovod"), "value"].max()
    assert frame.loc[frame["Cell"] == "Horovod", "Loss, early"].iloc[0] == scientific(worst)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (significant(0.0123456), "0.0123"),
        (with_interval(9.876, 9.5, 10.25), "9.88 [9.50, 10.25]"),
        (ratio_interval(0.70371, 0.69, 0.766), "0.70 [0.69, 0.77]"),
        (ratio_interval(float("nan"), 0, 0), "\N{EN DASH}"),
        (scientific(3.14e-7), "3.1e-7"),
        (limit(1e-5), "1e-5"),
        (probability(5.2e-5), "5.2e-5"),
        (probability(float("nan")), "\N{EN DASH}"),
    ],
)
def test_numbers_have_enough_digits_and_no_more(text: str, expected: str) -> None:
    assert text == expected


def test_rank_0_has_a_row_and_the_largest_other_where_it_differs(table) -> None:
    frame = made("memory", table)[0]
    star = frame[(frame["cell"] == "sps") & (frame["nodes"] == 4)]
    peaks = table[(table["metric"] == "peak_memory_bytes") & (table["level"] == "rank")]
    own = peaks[(peaks["cell"] == "sps") & (peaks["nodes"] == 4)]
    others = own[own["rank"] > 0].groupby("rank")["value"].median()
    assert list(star["rank"]) == [0, others.idxmax()]
    # Same predictions, and peaks within a twentieth.
    assert list(frame[(frame["cell"] == "dps") & (frame["nodes"] == 4)]["rank"]) == [0]
    uneven = table.copy()
    chosen = (uneven["cell"] == "dps") & (uneven["rank"] == 2)
    uneven.loc[chosen & (uneven["metric"] == "peak_memory_bytes"), "value"] *= 1.2
    apart = made("memory", uneven)[0]
    assert list(apart[(apart["cell"] == "dps") & (apart["nodes"] == 4)]["rank"]) == [0, 2]
    assert list(frame[frame["cell"] == "single"]["rank"]) == [0]


def test_both_predictions_are_those_of_the_spec(table) -> None:
    row = made("memory", table)[0].iloc[0]
    spec = spec_of("single", nodes=1)
    assert row["predicted_memory_bytes"] == predict(resolve(spec)).model_peak
    assert row["formula_memory_bytes"] == formula_24(resolve(spec))
    above = row["peak_memory_bytes"] - CPU_BASE - CPU_LOADED_LATER
    assert row["predicted_ratio"] == pytest.approx(row["predicted_memory_bytes"] / above)
    assert row["formula_ratio"] == pytest.approx(row["formula_memory_bytes"] / above)


def test_formula_24_stands_where_the_study_tests_its_publication(table) -> None:
    assert "Formula 24" in printed_form(shown("memory", table), TABLES["memory"].caption)[0]
    frame, caption = printed_form(shown("memory", make_table(repeats=2)), TABLES["memory"].caption)
    assert not {"Formula 24", "Its ratio"} & {*frame} and "ormula 24" not in caption


@pytest.mark.parametrize(
    ("changes", "rank", "later"),
    [
        ({"cluster": EMULATED}, {}, FORKED_LOADED_LATER),
        # On a loopback earlier records do not say it.
        ({}, {}, FORKED_LOADED_LATER),
        ({}, {"forked": True}, FORKED_LOADED_LATER),
        ({}, {"forked": False}, CPU_LOADED_LATER + 85 * MEBIBYTE),
    ],
)
def test_the_base_of_a_forked_rank_has_the_library_of_its_model(
    monkeypatch, changes: dict[str, Any], rank: dict[str, Any], later: int
) -> None:
    monkeypatch.setattr("pipeline.models.gpt2.arithmetic.loaded_bytes", lambda: 85 * MEBIBYTE)
    study = make_study(repeats=1, **changes)

    def measured(run: dict[str, Any]) -> None:
        for one in run["ranks"]:
            one.update(rank, base_memory_bytes=287 * MEBIBYTE)

    table = table_of(study, [edited(one, measured) for one in make_records(study)])
    base = made("memory", table)[0]["base_memory_bytes"]
    assert list(base.dropna().unique()) == [287 * MEBIBYTE + later]


def cell(frame: pd.DataFrame, name: str, nodes: int) -> dict[str, float]:
    return records(frame[(frame["cell"] == name) & (frame["nodes"] == nodes)])[0]


def test_a_known_device_has_its_datasheet_beside_the_measured_peak(table) -> None:
    two = "Tesla V100-SXM2-16GB, Tesla V100-SXM2-16GB"
    chosen = altered(table.assign(device="cuda"), {"metric": "gpus"}, text=two)
    frame = made("utilisation", chosen)[0]
    row = cell(frame, "dps", 2)
    assert frame["datasheet_device"].iloc[0] == "Tesla V100 SXM2"
    assert row["datasheet_flops_per_second"] == pytest.approx(15.7e12)
    assert row["share_of_datasheet"] == pytest.approx(row["model_flops_per_second"] / 31.4e12)
    mixed = frame[frame["label"].str.contains("bfloat16|bf16")]
    assert mixed["datasheet_flops_per_second"].isna().all() and not mixed.empty
    assert made("utilisation", chosen)[1].iloc[0]["Datasheet [GFLOP/s]"] == "15,700"
    mixture = altered(chosen, {"metric": "gpus"}, text="Tesla V100-SXM2-16GB, NVIDIA H200")
    assert made("utilisation", mixture)[0]["datasheet_device"].isna().all()


def test_a_row_is_a_cell_under_a_condition() -> None:
    raw, shown = made("what_if", make_table(**CONDITIONS))
    assert len(raw) == len(shown) == 4 * 3
    assert shown["Condition"].tolist()[:4] == ["straggler"] * 3 + ["jitter"]
    assert shown["Link"][0] == "1 Gbit/s, one node at 0.5 speed"
    assert set(shown["Cell"]) == {cell["label"] for cell in CONDITIONS["cells"][1:]}
    first, line = raw.iloc[0], shown.iloc[0]
    ratio = f"{first['ratio']:.2f} [{first['ratio_low']:.2f}, {first['ratio_high']:.2f}]"
    assert (line["Ratio"], line["p"], line["Verdict"]) == (ratio, "0.0065", "slower")
    assert line["Without [ms]"].startswith(f"{1000 * first['plain_seconds']:.0f} [")
    assert line["Under it [ms]"].startswith(f"{1000 * first['seconds']:.0f} [")
    assert set(shown["Verdict"]) == {"slower", "undecided"}


def metrics() -> pd.DataFrame:
    """Of the profiled runs of DDP alone, whose ranks have counted."""
    runs = [s for s in profiled(Study.of(make_study(profile={"steps": 4}))) if s.cell == "dps"]
    label = {"cell": "dps", "label": "DDP", "arm": "dps", "arm_label": "DDP", "cell_order": 0,
             "precision_ran": "torch fp32"}  # fmt: skip
    counted = [load_run(with_sends(make_record(spec)), label) for spec in runs]
    return tidy.assemble(profile_rows(counted, {}))


def with_sends(record: RunRecord) -> RunRecord:
    """Rank r sends 8 + 8 r bytes besides an all-reduce of 1,000."""

    def edit(run: dict[str, Any]) -> None:
        size = len(run["ranks"])
        for rank in run["ranks"]:
            group = {"axis": "data", "ranks": size, "count": 2}
            extra = 8 + 8 * rank["rank"]
            calls = [
                {"kind": "all_reduce", **group, "payload_bytes": 1000, "wire_bytes": 1000,
                 "between_nodes_bytes": 0},
                {"kind": "send", **group, "count": 1, "payload_bytes": extra, "wire_bytes": extra,
                 "between_nodes_bytes": extra},
                {"kind": "receive", **group, "payload_bytes": extra, "wire_bytes": 0,
                 "between_nodes_bytes": 0},
            ]  # fmt: skip
            rank["sent"] = {"steps": 4, "differing_steps": 0,
                            "collectives": calls if size > 1 else []}  # fmt: skip

    return edited(record, edit)


def test_the_rank_that_sends_most_stands_beside_its_formula() -> None:
    frame, shown = made("sends", metrics())
    assert list(frame["nodes"]) == [2, 4]  # one node sends nothing
    assert list(frame["formula"]) == ["2(n-1)/n G"] * 2
    assert list(frame["rank"]) == [1, 3]
    assert list(frame["counted_bytes"]) == [1016, 1032]
    parameters = 1_071_872  # of the fake study's model
    assert list(frame["predicted_bytes"]) == [4 * parameters * 2 * (n - 1) / n for n in (2, 4)]
    assert list(frame["calls"]) == ["2 all-reduces, 1 send"] * 2
    assert frame["ratio"][0] == pytest.approx(1016 / (4 * parameters))
    assert list(shown["Counted"]) == ["1,016", "1,032"]
    assert list(shown["Between nodes"]) == ["16", "32"]


def test_of_ranks_that_send_as_much_the_one_beyond_its_node_stands_there() -> None:
    """In a ring over nodes of several ranks the last one of each node alone sends to another."""
    table = metrics()
    table.loc[table["metric"].astype(str) == "sent_bytes:data", "value"] = 1000.0
    frame, _ = made("sends", table)
    assert list(frame["rank"]) == [1, 3]
    assert list(frame["between_nodes_bytes"]) == [16, 32]


PIPELINE = {"strategy": "pipeline_parallel", "options": {"ranks": 2, "microbatches": 2}}


@pytest.fixture(scope="module")
def piped() -> pd.DataFrame:
    """Of the fake study with a pipeline of two stages in place of DDP, whose passes are known."""
    plain = make_study(profile={"steps": 4})
    cells = [c | (PIPELINE | {"nodes": [4]} if c["name"] == "dps" else {}) for c in plain["cells"]]
    study = plain | {"cells": cells}
    spec = spec_of(nodes=4, profile={"steps": 4}, cells=cells)
    calls = [{"kind": "send", "axis": axis, "ranks": 2, "count": 1,
              "payload_bytes": 3_000_000, "wire_bytes": 3_000_000}
             for axis in ("pipeline", "data")]  # fmt: skip
    sent = {"steps": 4, "differing_steps": 0, "collectives": calls}

    def counted(record: RunRecord) -> RunRecord:
        ranks = [rank | {"sent": sent} for rank in record.run["ranks"]]
        return RunRecord({**record.run, "ranks": ranks}, [*map(with_passes, record.steps)])

    return table_of(study, [
        counted(one) if one.spec == spec else one for one in make_records(study)
    ])  # fmt: skip


def with_passes(step: Step) -> Step:
    """Ranks 0 and 1 hold the first stage, 2 and 3 the last: GPipe of two equal micro-batches."""
    stage, seconds = step.rank // 2, step.seconds / 100
    order = [("forward", 0, 1), ("forward", 1, 1), ("backward", 0, 2), ("backward", 1, 2)]
    return replace(step, passes=[[kind, stage, m, n * seconds] for kind, m, n in order])


def test_each_cost_stands_beside_its_formula(piped: pd.DataFrame) -> None:
    frame, shown = made("layouts", piped)
    [single, pipeline] = (
        next(row for row in records(frame) if (row["cell"], row["nodes"]) == place)
        for place in (("single", 1), ("dps", 4))
    )
    accumulation = make_study()["workload"]["accumulation_steps"]
    assert pipeline["phase_bubble_formula"] == pytest.approx(1 / (2 * accumulation))
    # two micro-batches of two stages; the durations of the ranks differ by their noise
    assert pipeline["phase_bubble"] == pytest.approx(1 / 2, rel=0.1)
    assert pipeline["phase_bubble_schedule"] == pytest.approx(1 / 2)
    # What the run itself says is what claims on bubbles are tested by.
    [own] = pick(piped, "profile", "phase_bubble")["value"]
    assert own == pipeline["phase_bubble"]
    assert pipeline["sent_bytes"] == 6_000_000
    assert pipeline["predicted_sent_bytes"] > 0
    ideal = single["step_seconds"] / 4 * (1 + pipeline["phase_bubble_formula"])
    assert pipeline["ideal_seconds"] == pytest.approx(ideal)
    assert pipeline["predicted_memory_bytes"] > 0
    assert shown.loc[list(frame["cell"]).index("dps"), "Sent [MB]"] == "6.00"
    assert set(shown.loc[frame["cell"] == "horovod", "Bubble [%]"]) == {NONE}


def test_memory_of_a_layout_is_that_of_the_summary_above_the_base(table) -> None:
    uneven = table.copy()
    own = (uneven["metric"] == "peak_memory_bytes") & (uneven["cell"] == "dps")
    # Of each run another rank needs most.
    for repeat, rank in ((0, 1), (1, 2)):
        place = (uneven["repeat"] == repeat) & ((uneven["rank"] == rank) | uneven["rank"].isna())
        uneven.loc[own & place & (uneven["level"].isin(["rank", "run"])), "value"] = 5e8 + repeat
    uneven.loc[own & (uneven["level"] == "cell"), "value"] = 5e8 + 0.5
    layout, peak = (cell(made(name, uneven)[0], "dps", 4) for name in ("layouts", "summary"))
    assert layout["memory_bytes"] == peak["peak_memory_bytes"] - CPU_BASE - CPU_LOADED_LATER
    small = altered(table, {"metric": "peak_memory_bytes"}, value=float(CPU_BASE))
    assert made("layouts", small)[0]["memory_bytes"].isna().all()
