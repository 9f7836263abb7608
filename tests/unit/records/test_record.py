"""Records: valid when written, valid when read, whole or absent."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import RecordError
from pipeline.records import RunRecord, read_record, spec_to_write, texts, write_record
from pipeline.study.spec import RunSpec
from tests.fake_records import make_record, spec_of

EXAMPLES = Path("tests/examples/records")
WORK = spec_of().to_dict()["workload"]


@pytest.fixture
def record() -> RunRecord:
    return make_record(spec_of())


def test_a_record_survives_the_disk(tmp_path, record) -> None:
    write_record(tmp_path, record)
    again = read_record(tmp_path)
    assert again.steps == list(record.steps)
    bytes_of_steps = (tmp_path / "steps.jsonl").read_bytes()
    bound = {"steps_sha256": hashlib.sha256(bytes_of_steps).hexdigest()}
    assert again.run == {**record.run, **bound}


def edit(folder: Path, **changes: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def longer(record) -> RunSpec:
    """The record's run with a time limit that was raised."""
    return replace(record.spec, timeout_seconds=2 * record.spec.timeout_seconds)


def test_a_run_that_stands_keeps_its_spec_whatever_operates_it_now(
    tmp_path, record, longer
) -> None:
    assert spec_to_write(longer, tmp_path) == longer
    write_record(tmp_path, record)
    assert spec_to_write(longer, tmp_path) == record.spec
    often = replace(longer, workload=replace(longer.workload, checkpoint_every=3))
    assert spec_to_write(often, tmp_path) == record.spec
    other = replace(longer, seed=1)
    assert spec_to_write(other, tmp_path) == other


def test_a_record_that_cannot_be_read_stands_for_nothing(tmp_path, longer) -> None:
    for text in ("", "[]", "{}", '{"spec": {}, "status": "ok"}'):
        (tmp_path / "run.json").write_text(text)
        assert spec_to_write(longer, tmp_path) == longer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "fine"}, r'at \$\.status: "fine" breaks enum: \["ok", [^(]*"\]; run the'),
        ({"throughput": 123.0}, "unknown keys 'throughput'"),
        ({"spec": spec_of().to_dict() | {"workload": WORK | {"per_rank_batch": 4}}}, "per_rank_ba"),
    ],
)
def test_an_invalid_record_is_neither_written_nor_read(tmp_path, record, change, message) -> None:
    with pytest.raises(RecordError, match=message):
        write_record(tmp_path / "run", RunRecord({**record.run, **change}, record.steps))
    assert not (tmp_path / "run").exists()
    write_record(tmp_path, record)
    edit(tmp_path, **change)
    with pytest.raises(RecordError, match=message):
        read_record(tmp_path)


@pytest.mark.parametrize("folder", sorted(EXAMPLES.iterdir()), ids=lambda p: p.name)
def test_records_of_an_earlier_version_are_read(folder: Path) -> None:
    assert read_record(folder).run["run_id"]


def test_a_timed_step_is_written_as_before_there_were_profiled_runs(record) -> None:
    first = json.loads(texts(record)["steps.jsonl"].splitlines()[0])
    assert list(first) == [
        "step", "rank", "seconds", "tokens", "loss", "grad_norm", "learning_rate", "timed",
    ]  # fmt: skip
