"""The stage `train` of one run, and what it leaves."""

from pathlib import Path

from pipeline.__main__ import main
from pipeline.records import RunRecord, read_record
from pipeline.study.spec import RunSpec


def words_of(spec: RunSpec, tokens: Path, out: Path) -> list[str]:
    """Words after `python -m pipeline` that train a run into a folder, which gets its spec."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "spec.json").write_text(spec.to_json())
    return ["train", f"--spec={out}/spec.json", f"--tokens={tokens}", f"--out={out}"]


def train_here(spec: RunSpec, tokens: Path, out: Path) -> RunRecord:
    """The record of a run whose stage is this process."""
    assert main(words_of(spec, tokens, out)) == 0
    return read_record(out)


def losses(out: Path) -> list[tuple[int, int, float | None, float | None]]:
    """Step, rank, loss and gradient norm of all steps of a run, by its record."""
    return [(s.step, s.rank, s.loss, s.grad_norm) for s in read_record(out).steps]
