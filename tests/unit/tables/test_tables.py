from pathlib import Path

import pandas as pd
import pytest

from pipeline.__main__ import main
from pipeline.metrics.bands import FULL
from pipeline.metrics.format import (
    limit,
    probability,
    ratio_interval,
    scientific,
    significant,
    with_interval,
)
from pipeline.tables.texts import once
from pipeline.tables.write import to_latex, to_markdown, trimmed, write_all
from tests.fake_records import EMULATED, made, make_table, write_table

NAMES = ["comparisons", "environment", "memory", "parity", "scaling", "status", "step_time",
         "summary", "utilisation"]  # fmt: skip


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


def shown(name: str, table: pd.DataFrame) -> pd.DataFrame:
    return made(name, table)[1]


@pytest.fixture(scope="module")
def out(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    metrics = write_table(table, folder)
    assert main(["table", *NAMES, "--metrics", str(metrics), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_all_formats(name: str, table: pd.DataFrame, out: Path) -> None:
    num_rows = len(shown(name, table))
    latex, markdown = ((out / f"{name}.{kind}").read_text() for kind in ("tex", "md"))
    assert latex.count(r"\\") == num_rows + 1 and r"\toprule" in latex
    *lines, blank, caption = markdown.splitlines()
    assert len(lines) == num_rows + 2
    assert (blank, caption[:2]) == ("", ": ") and (out / f"{name}.csv").is_file()


@pytest.mark.parametrize("name", ["scaling", "step_time", "utilisation"])
def test_every_cell_has_a_row_at_every_node_count(name: str, table: pd.DataFrame) -> None:
    frame = shown(name, table)
    assert len(frame) == 1 + 5 * 3
    assert sum(frame["Cell"].str.startswith("Horovod + Apex")) == 3, "though it never ran"
    assert "apex.amp is not importable" in shown("status", table).iloc[-1]["Reason"]


def test_comparisons_are_a_matrix_with_a_mark_where_they_are_decided(table: pd.DataFrame) -> None:
    frame = shown("comparisons", table)
    assert list(frame) == ["Nodes", "Cell", "sps", "dps", "horovod", "dps-amp"]
    assert list(frame["Nodes"]) == ["1", "", "", "", "2", "", "", "4", "", ""]
    assert not [text for text in frame.to_numpy().ravel() if ">" in text or "<" in text]
    chosen = table.copy()
    pair = (chosen["level"] == "comparison") & (chosen["base"] == "horovod, 4 nodes")
    pair &= chosen["cell"] == "dps"
    ratio = chosen.loc[pair & (chosen["metric"] == "rate_ratio"), "value"].iloc[0]
    for verdict, mark in (("faster", " >"), ("slower", " <"), ("undecided", "")):
        chosen.loc[pair & (chosen["metric"] == "speed_verdict"), "text"] = verdict
        assert shown("comparisons", chosen).iloc[8]["horovod"] == f"{ratio:.2f}{mark}"


def test_a_speedup_says_what_the_test_says_of_it(table: pd.DataFrame) -> None:
    chosen = table.copy()
    against = (chosen["level"] == "comparison") & (chosen["base"] == "single, 1 node")
    rows = against & (chosen["cell"] == "dps") & (chosen["metric"] == "speed_verdict")
    chosen.loc[rows, "text"] = "faster"
    frame = shown("scaling", chosen)
    cell = made("scaling", chosen)[0]["cell"]
    assert list(frame.loc[cell == "dps", "Against it"]) == ["\N{EN DASH}", "faster", "faster"]
    assert set(frame.loc[cell == "sps", "Against it"][1:]) == {"too few repeats to decide"}


def test_the_summary_is_the_largest_world_by_throughput(table: pd.DataFrame) -> None:
    frame = shown("summary", table)
    assert set(frame["Nodes"]) == {"4"} and len(frame) == 4
    rates = [float(text.split(" ")[0].replace(",", "")) for text in frame["Tokens/s"]]
    assert rates == sorted(rates, reverse=True)
    assert set(frame["Exposed [%]"]) == {"\N{EN DASH}"}
    linked = shown("summary", make_table(repeats=2, cluster=EMULATED, profile={"steps": 4}))
    assert set(linked["Link"]) == {"1 Gbit/s"}
    assert all(text.isdigit() for text in linked["Exposed [%]"])


def test_constant_and_empty_columns_are_said_and_not_shown(tmp_path: Path) -> None:
    dash = "\N{EN DASH}"
    frame = pd.DataFrame({"Cell": ["a", "b"], "Ranks": "8", "Base": dash, "Verdict": "equal"})
    kept, said = trimmed(frame)
    assert list(kept) == ["Cell", "Verdict"]
    assert said == "In every row: Ranks 8. Left out, as no row has a value: Base."
    assert list(trimmed(frame.head(1))[0]) == list(frame)
    write_all(frame, frame, "What it is.", tmp_path, "x")
    assert (tmp_path / "x.md").read_text().endswith(f"\n\n: What it is. {said}\n")
    assert f"What it is. {said}" in (tmp_path / "x.tex").read_text()


def test_a_repeated_link_stands_again_below_a_new_cell() -> None:
    frame = pd.DataFrame({"Cell": ["a", "a", "b"], "Link": ["x", "x", "x"]})
    assert once(frame, "Cell", "Link").to_numpy().tolist() == [["a", "x"], ["", ""], ["b", "x"]]


def test_drift_is_counted_and_named(table: pd.DataFrame) -> None:
    assert "Single device" not in set(shown("status", table)["Cell"])
    assert shown("status", table).iloc[-1]["Drift"] == "\N{EN DASH}"
    drifting = table.copy()
    row = (drifting["metric"] == "drift") & (drifting["run_id"] == "fake/single/n1/r1")
    drifting.loc[row, "text"], drifting.loc[row, "value"] = "drift", -0.081
    assert shown("status", drifting).iloc[0]["Drift"] == "1 of 2 (r1 -8.1 %)"


def test_parity_is_a_row_a_cell_and_not_equal_is_written_large(table: pd.DataFrame) -> None:
    broken = table.copy()
    verdict = (broken["metric"] == "parity_verdict") & (broken["cell"] == "dps")
    broken.loc[verdict, "text"] = "NOT EQUAL"
    frame = shown("parity", broken)
    assert not frame.duplicated(["Cell", "Reference"]).any()
    rows = frame["Cell"] == "Distributed Parameter Server (DDP)"
    assert set(frame.loc[rows, "Verdict"]) == {"NOT EQUAL in 3 of 3"}
    assert set(frame.loc[~rows, "Verdict"]) == {"equal in 2 of 2", "equal in 3 of 3"}
    assert set(frame["Ranks bit-equal"]) == {"yes"}
    tolerance = f"{limit(FULL.first_step)}, {limit(FULL.first_steps)}"
    assert list(frame["Tolerance"])[:2] == [tolerance, ""]
    rows = (table["level"] == "cell") & (table["metric"] == "parity_loss_early")
    worst = table.loc[rows & (table["cell"] == "horovod"), "value"].max()
    assert frame.loc[frame["Cell"] == "Horovod", "Loss, early"].iloc[0] == scientific(worst)


def test_the_environment_lists_versions_hardware_and_commit(table: pd.DataFrame) -> None:
    found = dict(shown("environment", table).to_numpy())
    assert found["torch"] == "2.13.0"
    assert found["Processor"] == "Synthetic CPU"
    assert found["Git commit"] == "0" * 12
    assert found["Order of runs"].endswith("32 of 32 runs were executed in this order")
    assert found["Runs that drifted"] == "0 of 25 tested"
    assert found["Drift over that order"].startswith("none (")
    assert found["Timer overhead"].startswith("at most 0.40 microseconds, 0.000")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (significant(12345.6), "12,346"),
        (significant(0.0123456), "0.0123"),
        (significant(0.0), "0"),
        (with_interval(9.876, 9.5, 10.25), "9.88 [9.50, 10.25]"),
        (ratio_interval(0.70371, 0.69, 0.766), "0.70 [0.69, 0.77]"),
        (ratio_interval(float("nan"), 0, 0), "\N{EN DASH}"),
        (scientific(3.14e-7), "3.1e-7"),
        (scientific(float("inf")), "infinite"),
        (limit(1e-5), "1e-5"),
        (probability(0.0324), "0.032"),
        (probability(5.2e-5), "5.2e-5"),
        (probability(float("nan")), "\N{EN DASH}"),
    ],
)
def test_numbers_have_enough_digits_and_no_more(text: str, expected: str) -> None:
    assert text == expected


def test_columns_of_sentences_wrap_and_those_of_numbers_are_set_right() -> None:
    frame = pd.DataFrame({"A": ["a" * 200], "B": ["b" * 40], "C": ["c"]})
    rule = to_markdown(frame).splitlines()[1].split("|")[1:4]
    assert [len(part) for part in rule] == [58, 30, 3]
    assert r"\begin{tabular}{p{0.36\linewidth}ll}" in to_latex(frame, "caption", "label")
    frame = pd.DataFrame({"A": ["3 ok"], "B": ["1.2 [1, 3]"], "C": ["1e-5, 0.001"], "D": ["x"]})
    assert r"\begin{tabular}{lrrl}" in to_latex(frame, "c", "l")
