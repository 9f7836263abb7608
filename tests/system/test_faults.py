"""Every fault of the table: what it leaves, what the record says, and how the run then ends.

The losses are those of an undisturbed run to the bit, and nothing is left besides the record. With
`--write-faults` the seconds from fault to finished run go to bench/results/faults.json.
"""

import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.records import read_record
from pipeline.study.spec import RunSpec
from pipeline.training.step_files import ROW, path_of
from tests.parity.cases import Case
from tests.system import fault_stage
from tests.system.fault_stage import Stage
from tests.system.fault_table import FAULTS, ITSELF, LATER, NO_RECORD, Fault
from tests.system.litter import adopt_orphans, none_left
from tests.system.stage import losses

STEPS, EVERY = 20, 5
PART = "rank0.safetensors"
FILES = ["log.txt", "run.json", "spec.json", "steps.jsonl"]


def spec() -> RunSpec:
    run = Case("ddp").spec(2)
    work = replace(run.workload, steps=STEPS, checkpoint_every=EVERY)
    return replace(run, world=replace(run.world, threads_per_rank=1), workload=work)


class Started:
    """A stage that was forked."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.temporary.mkdir(exist_ok=True)
        stage.out.mkdir(exist_ok=True)
        (stage.out / "spec.json").write_text(spec().to_json())
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*fault_stage.PRELOADED])
        self.process = context.Process(target=fault_stage.run, args=(stage,))
        self.process.start()

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + 200
        while not path.exists():
            assert self.process.is_alive() and time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """Exit status, negative for a signal, and what it said."""
        self.process.join(200)
        assert self.process.exitcode is not None, self.said()
        return self.process.exitcode, self.said()

    def said(self) -> str:
        log = self.stage.out / "log.txt"
        text = self.stage.said.read_text() if self.stage.said.exists() else ""
        return text + (log.read_text()[-4000:] if log.is_file() else "")


@pytest.fixture(scope="module")
def undisturbed(small_tokens: Path, tmp_path_factory) -> Iterator[list[Any]]:
    """Losses and norms of a run that nothing happens to."""
    adopt_orphans()
    folder = tmp_path_factory.mktemp("undisturbed")
    started = Started(Stage(folder / "out", small_tokens, folder / "tmp"))
    status, said = started.end()
    assert status == 0 and read_record(folder / "out").status == "ok", said
    yield losses(folder / "out")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(name: str, undisturbed, small_tokens, tmp_path, measured) -> None:
    row = FAULTS[name]
    tokens = small_tokens
    if row.fault.startswith("tokens"):
        tokens = tmp_path / "tokens"
        shutil.copytree(small_tokens, tokens)
    stage = Stage(tmp_path / "out", tokens, tmp_path / "tmp", row.fault, row.rank, row.often)
    stage.temporary.mkdir()
    with none_left(stage.temporary):
        first = Started(stage)
        later = None
        if name in LATER:
            first.wait_for(stage.marker)
            later = Started(replace(stage, fault="", temporary=stage.temporary))
        status, said = first.end()
        assert status == row.exit_status, said
        check_first(row, stage, said)
        seconds = time.time() - stage.marker.stat().st_mtime
        if row.again != ITSELF:
            restore(tokens, small_tokens)
            DAMAGES.get(row.damage, lambda out: None)(stage.out)
            begun = time.time()
            status, said = (later or Started(replace(stage, fault=""))).end()
            assert status == 0, said
            seconds = time.time() - begun
        check_finished(row, stage, undisturbed, said)
    measured(name, row.words, row.record, row.again, row.done - row.resumed_from, seconds)


def check_first(row: Fault, stage: Stage, said: str) -> None:
    """What the start in which it happens leaves and says."""
    if row.record == NO_RECORD:
        assert not (stage.out / "run.json").exists()
        assert row.damage or re.search(row.says, said), said
        if row.exit_status == 2:
            lines = stage.said.read_text().splitlines()
            assert len([line for line in lines if line.startswith("error:")]) == 1, lines
        return
    record = read_record(stage.out)
    assert record.status == row.record, said
    told = [str(record.run["reason"]), *record.run["execution"].get("interruptions", [])]
    assert re.search(row.says, "\n".join(told)), told


def check_finished(row: Fault, stage: Stage, expected: list[Any], said: str) -> None:
    record = read_record(stage.out)
    assert record.status == "ok", said
    assert losses(stage.out) == expected
    execution = record.run["execution"]
    assert execution["resumed_from_step"] == row.resumed_from, said
    assert sorted(path.name for path in stage.out.iterdir()) == FILES
    if row.damage and row.says:
        assert re.search(row.says, "\n".join(execution["interruptions"]))


def restore(tokens: Path, good: Path) -> None:
    """Make the tokens again, where a fault removed or changed them."""
    if tokens != good:
        shutil.copytree(good, tokens, dirs_exist_ok=True)


def newest(out: Path) -> Path:
    return max((out / "checkpoints").glob("step-*")) / PART


def turn_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)


def other_shapes(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    kept = {name: tensor.flatten()[:1].clone() for name, tensor in load_file(path).items()}
    save_file(kept, path)


def every_checkpoint(out: Path) -> None:
    for path in (out / "checkpoints").glob(f"step-*/{PART}"):
        turn_a_bit(path)


def a_row(out: Path) -> None:
    path = path_of(out / "ranks", 0)
    rows = bytearray(path.read_bytes())
    rows[7 * ROW.size + 9] ^= 4
    path.write_bytes(rows)


def stale_lock(out: Path) -> None:
    (path,) = out.with_name("tmp").glob("samestep-*/timed.lock")
    assert path.is_file()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda out: os.truncate(newest(out), newest(out).stat().st_size // 2),
    "bit": lambda out: turn_a_bit(newest(out)),
    "empty": lambda out: os.truncate(newest(out), 0),
    "shapes": lambda out: other_shapes(newest(out)),
    "foreign": lambda out: newest(out).write_text("a shopping list\n"),
    "all": every_checkpoint,
    "steps": a_row,
    "lock": stale_lock,
}
