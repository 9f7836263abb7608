"""Damage that nobody thought of: studies, records, archives and titles, always the same ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.entries import DOCUMENTS, Laid
from tests.hostile.entry import refusal, settled

pytestmark = pytest.mark.slow
FEW = settings(
    derandomize=True,
    database=None,
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=8), st.integers(0, 40)), min_size=1)


def edited(content: bytes, edits: list[tuple[float, bytes, int]]) -> bytes:
    """The bytes with some put in the place of others, anywhere."""
    for share, put, dropped in edits:
        at = int(share * len(content))
        content = content[:at] + put + content[at + dropped :]
    return content


@FEW
@given(EDITS)
def test_a_study_of_changed_bytes(laid: Laid, tmp_path: Path, edits) -> None:
    text = yaml.safe_dump(DOCUMENTS["study"].document(laid)).encode()
    path = tmp_path / "study.yaml"
    path.write_bytes(edited(text, edits))
    settled(tmp_path, "check", "--study", path)


@FEW
@given(EDITS)
def test_a_spec_of_changed_bytes(laid: Laid, tmp_path: Path, edits) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(edited(laid.record("spec.json").read_bytes(), edits))
    refusal(tmp_path, "train", "--spec", path, "--tokens", "none", "--out", tmp_path / "out")


@FEW
@given(st.text(max_size=60), st.text(max_size=60))
def test_titles_and_labels_of_any_text(laid: Laid, tmp_path: Path, title, label) -> None:
    study = json.loads(laid.study.read_text())
    study["title"], study["cells"][0]["label"] = title, label
    path = tmp_path / "study.json"
    path.write_text(json.dumps(study))
    settled(tmp_path, "check", "--study", path)


def test_an_archive_of_changed_bytes(laid: Laid, tmp_path: Path) -> None:
    from pipeline.archive.contents import contents
    from pipeline.archive.pack import write_zip

    write_zip(contents(laid.results, partial=False), tmp_path / "good.zip")
    whole = (tmp_path / "good.zip").read_bytes()
    choice = random.Random(0)
    path = tmp_path / "bad.zip"
    for _ in range(60):
        share, put = choice.random(), choice.randbytes(choice.randint(1, 6))
        path.write_bytes(edited(whole, [(share, put, choice.randint(0, 9))]))
        if settled(tmp_path, "unpack", "--archive", path, "--into", tmp_path / "out"):
            continue
