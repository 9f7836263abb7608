"""From records to the table: values, refusals, order of execution, drift and pooled runs."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ComparisonError, RecordError
from pipeline.metrics import headline
from pipeline.metrics import table as tidy
from pipeline.metrics.build import build
from pipeline.metrics.facts import circumstances, mixed
from pipeline.metrics.headline import end_of_training, warnings
from pipeline.metrics.results import Results
from pipeline.metrics.runs import load_run
from pipeline.records import RunRecord, Step, read_record
from pipeline.schemas import validator
from pipeline.study.equal_work import FIELDS
from pipeline.study.study import Study
from tests.fake_records import (
    EMULATED,
    a_cell,
    altered,
    edit_record,
    edit_steps,
    edited,
    edited_table,
    make_record,
    make_records,
    make_study,
    make_table,
    pick,
    rank_environment,
    row_of,
    spec_of,
    table_of,
    write_records,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("runs"), make_study())


@pytest.fixture(scope="module")
def table(runs: Path) -> pd.DataFrame:
    return build(Study.of(make_study()), runs)


def test_the_table_of_records_that_were_not_written_is_that_of_files(table: pd.DataFrame) -> None:
    """Most tests make theirs so; what is read has passed the schemas and all rules of records."""
    pd.testing.assert_frame_equal(make_table(), table)


def test_node_hours_to_a_loss_are_steps_of_the_run_to_the_end_at_the_time_of_each_cell() -> None:
    """The fake losses fall along one curve, so 60 steps reach what 55 do not."""
    whole = {"steps": 8, "whole": ["single/n1"]}
    work = make_study()["workload"] | {"steps": 60}
    # Compressed gradients make another step, so how many of them reach a loss is not known.
    narrow = a_cell("narrow", nodes=[4], options={"compression": "bf16"})
    study: dict[str, Any] = {"repeats": 2, "workload": work, "compares": ["schedule"]}
    study["cells"] = [*make_study()["cells"], narrow]
    table = make_table(**study, beginnings=whole)
    assert pick(table, "cell", "node_hours", "steps_to_loss").empty
    losses = pick(table, "step", "loss").query("cell == 'single'").sort_values(["run_id", "step"])
    [longest] = [g["value"] for _, g in losses.groupby("run_id") if len(g) == 60]
    target = float(longest.iloc[5:55].mean()) + 1e-9
    table = make_table(**study, beginnings=whole | {"target_loss": target})
    row, seconds = (row_of(table, name, "dps", 4) for name in ("node_hours", "step_seconds"))
    assert row_of(table, "steps_to_loss", "dps", 4)["value"] == 55
    for end in ("value", "low", "high"):
        assert row[end] == pytest.approx(seconds[end] * 55 * 4 / 3600, nan_ok=True)
    assert row["base"] == "single, 1 node"
    assert "narrow" not in set(pick(table, "cell", "node_hours")["cell"])
    told = end_of_training(Results(table))
    assert f"mean loss of 50 steps fell to {target:g} nats after 55 steps" in told


def test_a_speedup_has_a_base_and_the_cell_itself_at_its_fewest_nodes(table: pd.DataFrame) -> None:
    row = row_of(table, "speedup", "dps", 4)
    base, own = row_of(table, "step_seconds", "single", 1), row_of(table, "step_seconds", "dps", 4)
    assert row["value"] == pytest.approx(base["value"] / own["value"])
    assert row["base"] == "single, 1 node"
    # Three repeats have no interval, and no place shows one.
    assert math.isnan(row["low"]) and math.isnan(row["high"])
    efficiency = row_of(table, "efficiency", "dps", 4)["value"]
    assert efficiency == pytest.approx(row["value"] / 4)
    few, many = (row_of(table, "tokens_per_second", "dps", nodes)["value"] for nodes in (1, 4))
    found = row_of(table, "own_speedup", "dps", 4)
    assert found["value"] == pytest.approx(many / few) and found["base"] == "dps, 1 node"


def test_the_time_of_a_run_is_the_median_of_its_timed_steps_by_the_slowest_rank(
    table: pd.DataFrame, runs: Path
) -> None:
    slowest: dict[int, float] = {}
    for step in read_record(runs / "dps/n4/r0").steps:
        slowest[step.step] = max(step.seconds, slowest.get(step.step, 0.0))
    steps = pick(table, "step", "step_seconds")
    steps = steps[steps["run_id"] == "fake/dps/n4/r0"]
    assert dict(zip(steps["step"], steps["value"], strict=True)) == slowest
    found = pick(table, "run", "step_seconds").set_index("run_id").loc["fake/dps/n4/r0"]
    assert (found["value"], found["n"]) == (steps.loc[steps["step"] >= 5, "value"].median(), 25)


def test_tails_and_means_stand_besides_the_median(table: pd.DataFrame, runs: Path) -> None:
    largest, mean = (row_of(table, f"{of}_step_seconds", "dps", 2) for of in ("largest", "mean"))
    assert row_of(table, "step_seconds", "dps", 2)["value"] < mean["value"] < largest["value"]
    assert largest["interval"] == "no interval: under 6 runs"
    # A run of 25 timed steps has no 95th percentile.
    assert pick(table, "cell", "p95_step_seconds").empty
    record = read_record(runs / "dps" / "n2" / "r0")
    stall = [replace(step, step=step.step + 30 * n) for n in range(5) for step in record.steps]
    ranks = [rank | {"free_running": {"step_seconds": 0.1}} for rank in record.run["ranks"]]
    tails = load_run(RunRecord({**record.run, "ranks": ranks}, stall), {}).quantities
    assert "p95_step_seconds" in tails
    assert tails["free_step_seconds"] == 0.1


def test_throughput_is_by_steps_that_ran_freely_where_every_run_has_them(table) -> None:
    """Times of single steps stay as they are; one record of before, and all have their clock."""

    def freely(run: dict[str, Any]) -> None:
        for rank in run["ranks"]:
            rank["free_running"] = {"steps": 25, "step_seconds": 0.01 * (1 + rank["rank"])}

    study = make_study()
    records = [edited(record, freely) for record in make_records(study)]
    both = table_of(study, records)
    tokens = row_of(table, "tokens_per_second", "dps", 2)["value"]
    tokens *= row_of(table, "step_seconds", "dps", 2)["value"]
    found = row_of(both, "tokens_per_second", "dps", 2)
    assert found["value"] == pytest.approx(tokens / 0.02)
    assert row_of(both, "speedup", "dps", 2)["value"] == pytest.approx(1 / 2)
    for level in ("run", "cell"):
        times = [pick(one, level, "step_seconds")["value"].tolist() for one in (table, both)]
        assert times[0] == times[1]
    assert [one["metric"].eq("throughput_clock").any() for one in (table, both)] == [False, True]
    place = next(place for place, record in enumerate(records) if record.status == "ok")
    records[place] = edited(records[place], lambda run: run["ranks"][0].pop("free_running"))
    mixed = pick(table_of(study, records), "cell", "tokens_per_second")
    assert mixed["value"].tolist() == pick(table, "cell", "tokens_per_second")["value"].tolist()


def test_a_table_that_states_too_much_is_not_unpacked(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "m.parquet"
    pq.write_table(pa.table({"study": ["x"] * 16}), path)
    monkeypatch.setattr(tidy, "MAX_ROWS", 15)
    with pytest.raises(RecordError, match="states 16 rows of"):
        tidy.read(path)


def test_runs_that_failed_are_rows_and_no_averages(table: pd.DataFrame) -> None:
    assert row_of(table, "num_ok", "sps", 4)["value"] == 2
    assert row_of(table, "step_seconds", "sps", 4)["n"] == 2
    apex = table[table["cell"] == "horovod-apex"]
    assert set(apex["status"].dropna()) == {"unsupported"}
    assert apex[apex["metric"] == "step_seconds"].empty


def changed(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(run: Any) -> None:
        for part in path[:-1]:
            run = run[part]
        run[path[-1]] = value

    return change


def test_a_lost_loss_is_warned_of(tmp_path: Path) -> None:
    def edit(runs: Path) -> None:
        edit_steps(runs / "dps/n2/r0", lambda step: replace(step, loss=None))

    found = edited_table(tmp_path, edit, repeats=1)
    [warning] = [one for one in warnings(Results(found)) if one.startswith("diverged")]
    assert warning.startswith("diverged: Distributed Parameter Server (DDP) at 2 nodes")


def test_ranks_with_other_weights_and_runs_of_another_version_are_seen(tmp_path: Path) -> None:
    def edit(runs: Path) -> None:
        other = changed("ranks", 1, "weights_sha256", value="f" * 64)
        edit_record(runs / "horovod/n2/r0", other)
        edit_record(runs / "dps/n2/r1", changed("versions", "torch", value="2.12.0"))

    found = edited_table(tmp_path, edit, repeats=2)
    for nodes, equal in ((2, 0.0), (4, 1.0)):
        assert row_of(found, "weights_bit_equal", "horovod", nodes)["value"] == equal
    marked = pick(found, "cell", "mixed").query("value == 1")
    assert marked[["cell", "nodes"]].to_numpy().tolist() == [["dps", 2]]
    [note] = headline.mixed(Results(found))
    assert note.endswith("at 2 nodes: the runs differ in torch 2.12.0 and 2.13.0")


def cells(*names: str) -> list[dict[str, Any]]:
    return [cell for cell in make_study()["cells"] if cell["name"] in names]


def test_parity_has_no_reference_of_other_work_or_without_a_single_device() -> None:
    work = make_study()["workload"] | {"scaling": "weak", "global_batch": 4}
    found = make_table(repeats=1, workload=work, cells=cells("single", "dps"))
    assert "not the same global batch" in row_of(found, "parity_verdict", "dps", 4)["text"]
    assert row_of(found, "parity_verdict", "dps", 1)["text"] == "equal"
    Results(found).require_equal_work({"precision"})
    cluster = make_study()["cluster"] | {"nodes": [2, 4]}
    found = make_table(repeats=1, cluster=cluster, cells=cells("dps", "horovod"))
    assert "no single-device run" in row_of(found, "parity_verdict", "dps", 4)["text"]
    assert row_of(found, "speedup", "dps", 4)["base"] == "dps, 2 nodes"
    assert row_of(found, "ideal_speedup", "dps", 4)["value"] == 2.0


def test_invalid_records_are_named_and_never_averaged(tmp_path: Path) -> None:
    study = make_study(repeats=1)
    write_records(tmp_path, study)
    for cell in ("dps", "horovod"):
        path = tmp_path / cell / "n1" / "r0" / "run.json"
        run = json.loads(path.read_text())
        run["hardware"]["num_cores"] = 0
        path.write_text(json.dumps(run))
    with pytest.raises(RecordError) as caught:
        build(Study.of(study), tmp_path)
    text = str(caught.value)
    assert text.startswith("2 of 16 records cannot be used")
    assert "dps/n1/r0/run.json at $.hardware.num_cores: 0 breaks minimum: 1" in text
    assert "horovod/n1/r0" in text


def test_a_table_that_was_changed_since_is_refused(tmp_path: Path, table: pd.DataFrame) -> None:
    path = tmp_path / "m.parquet"
    tidy.write(table, path)
    with pytest.raises(RecordError, match="is of study 'fake', not of 'smoke'"):
        tidy.read(path, "smoke")
    stored = pq.read_table(path)
    values = pa.array([1.5 * (value or 0) for value in stored["value"].to_pylist()])
    place = stored.column_names.index("value")
    changes = {
        "a value": stored.set_column(place, "value", values),
        "rows twice": pa.concat_tables([stored, stored]),
        "no hash": stored.replace_schema_metadata(None),
        "no rows": stored.slice(0, 0),
    }
    for kind, changed in changes.items():
        pq.write_table(changed, path)
        with pytest.raises(RecordError, match="is not as `metrics` of this version wrote it"):
            tidy.read(path)
            pytest.fail(kind)


@pytest.mark.parametrize("field", FIELDS)
def test_unequal_work_is_refused_by_name_unless_declared(table, field) -> None:
    value = 32 if field in ("global_batch", "updates_per_step") else "another"
    fp32 = table[(table["precision"] == "fp32") | (table["level"] == "study")].copy()
    Results(fp32).require_equal_work(set())
    fp32 = altered(fp32, {"cell": "sps"}, **{field: value})
    with pytest.raises(ComparisonError, match=f"refuses: {field} is .* in cell 'single'"):
        Results(fp32).require_equal_work(set())
    Results(fp32).require_equal_work({field})
    Results(altered(fp32, {"metric": "compares"}, text=field)).require_equal_work(set())


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("unit", "furlongs", "furlongs"),
        ("run_id", "no run", "no run"),
        ("run_id", None, "'run_id' is a required property"),
    ],
)
def test_one_bad_row_among_many_is_found_and_nothing_written(
    table, column, value, said, tmp_path
) -> None:
    bad = table.copy()
    place = bad.index[bad["level"] == "step"][-1]
    bad.loc[place, column] = value
    tidy.check(table, "here")
    with pytest.raises(RecordError, match=said):
        tidy.write(bad, tmp_path / "m.parquet")
    assert list(tmp_path.iterdir()) == []


CELLS = [a_cell(name, nodes=[1, 2]) for name in ("a", "b")]


def about(table: pd.DataFrame, metric: str) -> pd.Series:
    return table[(table["level"] == "study") & (table["metric"] == metric)].iloc[0]


def slowed(runs: Path, place: str, factor: Callable[[Step], float]) -> None:
    edit_steps(runs / place, lambda step: replace(step, seconds=step.seconds * factor(step)))


def later(runs: Path) -> None:
    times = {"started_at": "2026-01-03T00:00:00+00:00", "ended_at": "2026-01-03T00:00:30+00:00"}
    edit_record(runs / "a/n1/r0", lambda run: run.update(times))


def each_repeat_slower(runs: Path) -> None:
    for cell, nodes, repeat in product("ab", (1, 2), range(4)):
        slowed(runs, f"{cell}/n{nodes}/r{repeat}", lambda _, r=repeat: 1 + 0.1 * r)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("edit", "kept", "drifted"),
    [
        (lambda runs: None, 16, []),
        (later, 15, []),
        (lambda runs: slowed(runs, "b/n2/r1", lambda s: 1 + 0.01 * s.step), 16, ["fake/b/n2/r1"]),
        (each_repeat_slower, 16, ["the runs in their order"]),
    ],
    ids=["as planned", "a run that was repeated later", "within a run", "over the order"],
)
def test_order_and_drift_are_told(tmp_path: Path, edit: Any, kept: int, drifted: Any) -> None:
    found = edited_table(tmp_path, edit, cells=CELLS, repeats=4)
    order = about(found, "order_kept")
    assert (order["value"], order["n"]) == (kept, 16)
    assert order["text"].endswith(f"{kept} of 16 runs were executed in this order")
    said = [one for one in warnings(Results(found)) if "drifted" in one]
    assert [one.partition(": step times drifted by +")[0] for one in said] == drifted
    assert (about(found, "order_drift")["text"] == "drift") == (edit is each_repeat_slower)


def run_on(cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    """The content of run.json of a run on two nodes."""
    spec = spec_of("dps-slow", cluster=cluster) if cluster else spec_of()
    run: dict[str, Any] = json.loads(json.dumps(make_record(spec).run))
    return run


def on(**facts: Any) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        run["ranks"][1]["environment"] = rank_environment() | facts

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("execution", "network", value="loopback"), "network emulated and loopback"),
        (changed("execution", "emulation", "mtu", value=1500), "MTU 1500 and 9000"),
        (on(cpu_model="Other"), "processor Other and Synthetic CPU"),
        (changed("provenance", "git_dirty", value=True), f"{'0' * 12} and {'0' * 12} with changes"),
    ],
)
def test_what_differs_is_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    run, other = run_on(EMULATED), run_on(EMULATED)
    assert mixed([run, other]) == ""
    change(other)
    assert said in mixed([run, run, other])


def test_what_an_older_record_does_not_tell_makes_no_difference() -> None:
    run, other = run_on(), run_on()
    on(kernel="Linux 7")(other)
    assert "kernel" in circumstances(other) and mixed([run, other]) == ""


def test_what_must_be_there_depends_on_the_level_alone() -> None:
    """Else a pattern of columns at a level would not stand for all rows that have it."""
    schema: Any = validator("metrics").schema
    conditions = [rule["if"]["properties"] for rule in schema["allOf"]]
    assert {name for condition in conditions for name in condition} == {"level"}


def test_what_is_not_looked_at_row_by_row_has_a_type_alone() -> None:
    """Else a row that breaks another rule of theirs would pass."""
    schema: Any = validator("metrics").schema
    rules = [rule.get(branch, {}) for rule in schema["allOf"] for branch in ("then", "else")]
    required = {name for rule in [schema, *rules] for name in rule.get("required", [])}
    assert not required & set(tidy._PER_ROW)
    for name in tidy._PER_ROW:
        assert set(schema["properties"].get(name, {})) <= {"type", "description"}, name
