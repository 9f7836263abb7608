"""The reader of YAML and JSON that anyone may have written: one line, no hang, no flood."""

import json
from pathlib import Path

import pytest

from pipeline.documents import MAX_BYTES, read_document, read_lines
from pipeline.errors import RecordError, StudyError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {k: 1}\n" + "".join(
    f"m{n}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for n, (before, name) in enumerate(zip("abcdefgh", "bcdefghi", strict=True))
)


def refusal(path: Path) -> str:
    with pytest.raises(StudyError) as caught:
        read_document(path, "study file", StudyError)
    message = str(caught.value)
    assert message.startswith(f"study file {path}") and "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bomb.yaml", BOMB, "aliases"),
        ("bomb.yaml", MERGE_BOMB, "aliases"),
        ("loop.yaml", "a: &a [*a]", "holds itself"),
        ("twice.yaml", "a: {'x': 1, x: 2}", "'x' stands twice"),
        ("twice.json", '{"a": {"b": 1, "b": 2}}', "'b' stands twice"),
        ("deep.yaml", "[" * 65_000, "nested"),
        ("deep.json", "[" * 50 + "]" * 50, "nested"),
        ("nan.yaml", "a: {b: [1, .nan]}", r"at $.a.b[1]: nan"),
        ("inf.json", '{"a": 1e999}', "at $.a: inf"),
        ("long.yaml", "a: 0x" + "f" * 5000, "at $.a: an integer of 20000 bits"),
        ("date.yaml", "a: 2026-11-22", "at $.a: a date"),
        ("date.yaml", "a: 2026-99-99", "is not YAML"),
        ("key.yaml", "a: {1: 2}", "at $.a: the key 1"),
        ("half.yaml", r'a: "\ud800"', "is not YAML"),
        ("tag.yaml", "a: !!python/object/apply:os.system [true]", "is not YAML"),
        ("tab.yaml", "a:\n\tb: 1", "a tab in line 2, column 1; indent with blanks"),
        ("colon.yaml", "a: one: two", "in line 1, column 7; quote a text that holds a colon"),
        ("empty.yaml", "# nothing\n", "is empty; write into it what it is for"),
        ("tag.yaml", "a: !!int ''", "'' is no int, in line 1"),
        ("tag.yaml", "b: 1\na: !!timestamp x", "'x' is no timestamp, in line 2"),
        ("base.yaml", f"a: {':'.join(['59'] * 400)}.5", "is no float"),
        ("bell.json", '{"a": {"b": "x\\u0007"}}', "at $.a.b: 'x\\x07' holds '\\x07'"),
        ("zero.json", '{"a\\u0000": 1}', "which cannot be printed"),
    ],
)
def test_bad_content_is_one_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    assert words in refusal(tmp_path / name)


def test_what_studies_use_is_read(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    lines = "base: &base {steps: 1, x: 1.5e-4}\nb: {<<: *base, steps: 2}\nc: [*base, ü, null, no]"
    path.write_text(lines, encoding="utf-8-sig")
    base = {"steps": 1, "x": 1.5e-4}
    assert read_document(path, "study file", StudyError) == {
        "base": base,
        "b": {"steps": 2, "x": 1.5e-4},
        "c": [base, "ü", None, False],
    }


def test_a_study_that_passes_as_yaml_passes_as_the_json_that_is_made_of_it(tmp_path: Path) -> None:
    """A name of three bytes a character has six in JSON's ASCII."""
    paths = [f"{'漢字' * 12}-{number}.txt" for number in range(1500)]
    written, made = tmp_path / "study.yaml", tmp_path / "study.json"
    written.write_text("\n".join(f"- {path}" for path in paths), encoding="utf-8")
    made.write_text(json.dumps(paths, indent=1))
    assert written.stat().st_size < MAX_BYTES < made.stat().st_size
    for path in (written, made):
        assert read_document(path, "study file", StudyError) == paths


def test_a_line_as_long_as_a_stage_may_write_it_is_read(tmp_path: Path) -> None:
    """A profiled step of a pipeline has a part for each micro-batch."""
    passes = [["forward", 0, number, 0.000123456] for number in range(4000)]
    (tmp_path / "steps.jsonl").write_text(json.dumps({"passes": passes}) + "\n")
    [(_, line)] = read_lines(tmp_path / "steps.jsonl", RecordError)
    assert line["passes"] == passes
