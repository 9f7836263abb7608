"""What is wrong with a file of the product's own is mended by making it again, never by an edit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.claims.write import read_verdicts
from pipeline.corpus.manifest import Manifest
from pipeline.errors import SamestepError
from pipeline.records import read_record, write_record
from pipeline.schemas import AGAIN, SCHEMA_FOLDER, read
from pipeline.study.expansion import every_run
from pipeline.study.study import Study
from tests.fake_records import a_verdict, make_manifest, make_record, make_study

FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "record": ("run.json", lambda path: read_record(path.parent)),
    "step": ("steps.jsonl", lambda path: read_record(path.parent)),
    "manifest": ("manifest.json", lambda path: Manifest.load(path.parent)),
    "verdicts": ("verdicts.json", read_verdicts),
    "yardstick": ("yardstick.json", lambda path: read(path, "yardstick", "yardstick")),
    "image": ("image.json", lambda path: read(path, "image", "make image")),
}
"""Schema -> name of the file, and what reads it."""

WRONG = {
    "no UTF-8": lambda text: b"\xff" + text,
    "cut": lambda text: text[: len(text) // 2],
    "not finite": lambda text: text.replace(b"1", b"NaN", 1),
    "twice": lambda text: b'{"a": 1, "a": 1}',
    "another type": lambda text: b'{"schema_version": "1"}',
    "too deep": lambda text: b'{"a": ' * 99 + b"1" + b"}" * 99,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_record(folder, make_record(every_run(Study.of(make_study()))[0]))
    for name, content in (("manifest", make_manifest()), ("verdicts", a_verdict())):
        (folder / f"{name}.json").write_text(json.dumps(content))
    for name in ("yardstick", "image"):
        (folder / f"{name}.json").write_text('{"schema_version": 1}')
    return folder


def refusal(path: Path, spoil: Callable[[bytes], bytes], read_it: Callable[[Path], Any]) -> str:
    """The message on a file that was spoilt; it is whole again afterwards."""
    text = path.read_bytes()
    spoilt = spoil(text)
    assert spoilt != text
    path.write_bytes(spoilt)
    try:
        with pytest.raises(SamestepError) as refused:
            read_it(path)
    finally:
        path.write_bytes(text)
    return str(refused.value)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", FILES)
def test_the_fix_is_to_make_it_again(good: Path, kind: str, wrong: str) -> None:
    name, read_it = FILES[kind]
    message = refusal(good / name, WRONG[wrong], read_it)
    assert name in message and (
        " again" in (fix := message.rpartition("; ")[2]) or "run `" in fix
    ), message
    for edit in ("convert", "write one", "correct", "quote", "keep one", "leave it out"):
        assert edit not in message, message


def test_every_schema_of_what_the_product_writes_has_its_fix() -> None:
    known = {path.name.partition(".")[0] for path in SCHEMA_FOLDER.glob("*.json")}
    assert known - AGAIN.keys() == {"reference"}, "a file of this checkout"
