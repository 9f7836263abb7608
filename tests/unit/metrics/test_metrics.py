import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.__main__ import main
from pipeline.errors import ComparisonError, RecordError
from pipeline.metrics import table as tidy
from pipeline.metrics.build import build
from pipeline.metrics.comparison import FIELDS, require_equal_work
from pipeline.metrics.runs import load_run
from pipeline.metrics.select import missing_notes, pick
from pipeline.records import RunRecord, read_record
from pipeline.study.study import Study
from tests.fake_records import (
    edit_record,
    edit_steps,
    make_study,
    make_table,
    row_of,
    write_records,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_records(tmp_path_factory.mktemp("runs"), make_study())


@pytest.fixture(scope="module")
def table(runs: Path) -> pd.DataFrame:
    return build(Study.of(make_study()), runs)


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
    ranks = [
        {**rank, "free_running": {"steps": 50, "step_seconds": 0.01 * (1 + rank["rank"])}}
        for rank in record.run["ranks"]
    ]
    tails = load_run(RunRecord({**record.run, "ranks": ranks}, stall), {}).tails
    assert "p95_step_seconds" in tails
    # A freely running step is that of the slowest rank.
    assert tails["free_step_seconds"] == pytest.approx(0.01 * len(ranks))


def test_throughput_is_by_steps_that_ran_freely_where_every_run_has_them(
    table: pd.DataFrame, tmp_path: Path
) -> None:
    """Times of single steps stay as they are; one record of before, and all have their clock."""
    runs, free = write_records(tmp_path, make_study()), {"steps": 25, "step_seconds": 0.01}
    for place in runs.glob("*/n*/r*"):
        edit_record(
            place,
            lambda run: [
                rank.update(free_running=free | {"step_seconds": 0.01 * (1 + rank["rank"])})
                for rank in run["ranks"]
            ],
        )
    both = build(Study.of(make_study()), runs)
    tokens = row_of(table, "tokens_per_second", "dps", 2)["value"]
    tokens *= row_of(table, "step_seconds", "dps", 2)["value"]
    found = row_of(both, "tokens_per_second", "dps", 2)
    assert found["value"] == pytest.approx(tokens / 0.02)
    assert row_of(both, "speedup", "dps", 2)["value"] == pytest.approx(1 / 2)
    each = pick(both, "run", "tokens_per_second")
    assert set(each.loc[each["nodes"] == 2, "value"]) == {found["value"]}
    for level in ("run", "cell"):
        times = [pick(one, level, "step_seconds")["value"].tolist() for one in (table, both)]
        assert times[0] == times[1]
    clocks = [one["metric"].eq("throughput_clock").any() for one in (table, both)]
    assert clocks == [False, True]
    edit_record(runs / "dps/n2/r0", lambda run: run["ranks"][0].pop("free_running"))
    mixed = pick(build(Study.of(make_study()), runs), "cell", "tokens_per_second")
    assert mixed["value"].tolist() == pick(table, "cell", "tokens_per_second")["value"].tolist()


def test_a_study_says_how_exact_its_speedups_are(table: pd.DataFrame) -> None:
    about = table[table["level"] == "study"].set_index("metric")
    exact = about.loc["exact_speedups"]
    assert 0 <= exact["value"] <= exact["n"] and exact["n"] > 5
    assert about.loc[["spread_of_runs"], "value"].between(0, 0.2).all()
    assert "spread_of_runs" not in set(make_table(repeats=1)["metric"])


def test_runs_that_failed_are_rows_and_no_averages(table: pd.DataFrame) -> None:
    assert row_of(table, "num_ok", "sps", 4)["value"] == 2
    assert row_of(table, "step_seconds", "sps", 4)["n"] == 2
    apex = table[table["cell"] == "horovod-apex"]
    assert set(apex["status"].dropna()) == {"unsupported"}
    assert apex[apex["metric"] == "step_seconds"].empty
    notes = " ".join(missing_notes(table))
    assert "oom in 1 of 3 runs at 4 nodes" in notes
    assert "unsupported in 9 of 9 runs at 1, 2 and 4 nodes" in notes


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda step: replace(step, grad_norm=2 * step.grad_norm), "NOT EQUAL"),
        (lambda step: replace(step, loss=None), "diverged"),
    ],
)
def test_a_wrong_gradient_or_a_lost_loss_is_not_equal(tmp_path, edit, said, capsys) -> None:
    study = make_study(repeats=1)
    write_records(tmp_path / "runs", study)
    edit_steps(tmp_path / "runs" / "dps" / "n2" / "r0", edit)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    args = ["metrics", "--study", str(tmp_path / "study.yaml"), "--runs", str(tmp_path / "runs")]
    args += ["--out", str(tmp_path / "m.parquet")]
    assert main(args) == 0
    assert f"{said}: Distributed Parameter Server (DDP) at 2 nodes" in capsys.readouterr().err
    found = tidy.read(tmp_path / "m.parquet")
    verdict = row_of(found, "parity_verdict", "dps", 2)
    assert verdict["text"] == said


def test_ranks_with_different_weights_are_seen(tmp_path: Path) -> None:
    study = make_study(repeats=1)
    write_records(tmp_path, study)

    def edit(run: dict[str, Any]) -> None:
        run["ranks"][1]["weights_sha256"] = "f" * 64

    edit_record(tmp_path / "horovod" / "n2" / "r0", edit)
    found = build(Study.of(study), tmp_path)
    assert row_of(found, "weights_bit_equal", "horovod", 2)["value"] == 0.0
    assert row_of(found, "weights_bit_equal", "horovod", 4)["value"] == 1.0


def cells(*names: str) -> list[dict[str, Any]]:
    return [cell for cell in make_study()["cells"] if cell["name"] in names]


def test_parity_across_other_work_is_refused() -> None:
    work = make_study()["workload"] | {"scaling": "weak", "global_batch": 4}
    found = make_table(repeats=1, workload=work, cells=cells("single", "dps"))
    assert "global_batch differ" in row_of(found, "parity_verdict", "dps", 4)["text"]
    assert row_of(found, "parity_verdict", "dps", 1)["text"] == "equal"
    require_equal_work(found, {"precision"})


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
        "fewer rows": stored.slice(0, 5),
        "rows twice": pa.concat_tables([stored, stored]),
        "no hash": stored.replace_schema_metadata(None),
        "another column": stored.append_column("more", values),
        "no rows": stored.slice(0, 0),
    }
    for kind, changed in changes.items():
        pq.write_table(changed, path)
        with pytest.raises(RecordError, match="is not as `metrics` of this version wrote it"):
            tidy.read(path)
            pytest.fail(kind)


def test_a_table_that_states_too_much_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    pq.write_table(pa.table({"study": pa.array(["x" * 2**20] * 16)}), path, compression="zstd")
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(RecordError, match="states 16 rows of"),
    ):
        patch.setattr(tidy, "MAX_ROWS", 15)
        tidy.read(path)


@pytest.mark.parametrize("field", FIELDS)
def test_unequal_work_is_refused_by_name_unless_declared(table, field) -> None:
    value = 32 if field in ("global_batch", "updates_per_step") else "another"
    fp32 = table[(table["precision"] == "fp32") | (table["level"] == "study")].copy()
    require_equal_work(fp32, set())
    fp32.loc[fp32["cell"] == "sps", field] = value
    with pytest.raises(ComparisonError, match=f"refuses: {field} is .* in cell 'single'"):
        require_equal_work(fp32, set())
    require_equal_work(fp32, {field})
    declared = fp32.copy()
    declared.loc[declared["metric"] == "compares", "text"] = field
    require_equal_work(declared, set())


def test_a_study_without_single_has_no_fp32_reference_but_its_own() -> None:
    cluster = make_study()["cluster"] | {"nodes": [2, 4]}
    found = make_table(repeats=1, cluster=cluster, cells=cells("dps", "horovod"))
    assert "no single-device run" in row_of(found, "parity_verdict", "dps", 4)["text"]
    assert row_of(found, "speedup", "dps", 4)["base"] == "dps, 2 nodes"
    assert row_of(found, "ideal_speedup", "dps", 4)["value"] == 2.0
