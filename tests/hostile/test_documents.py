"""Every key of every document x every class of wrong value, through the stage that reads it."""

import os
from pathlib import Path

import pytest

from tests.hostile.entries import DOCUMENTS, Laid
from tests.hostile.entry import call, refusal
from tests.hostile.mutants import BAD_BYTES, LARGE, NO_FILES


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_with_every_wrong_value(laid: Laid, here: Path, name: str) -> None:
    entry = DOCUMENTS[name]
    wrong = []
    for mutant in entry.mutants(laid):
        path = entry.write(mutant.content, here)
        status, said = call(here, *entry.arguments(laid, path, here))
        taken = status != 2 or not entry.is_about_it(said)
        if (taken and mutant.must_fail) or status not in (0, 1, 2):
            wrong.append(f"{mutant.name} -> {status}: {said}")
        entry.clear(here)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_bytes_that_are_no_such_document(laid: Laid, here: Path, name: str) -> None:
    entry = DOCUMENTS[name]
    for kind, content in BAD_BYTES.items():
        path = entry.write({}, here)
        path.write_bytes(content)
        if kind == "large":
            os.truncate(path, LARGE)
        said = refusal(here, *entry.arguments(laid, path, here))
        assert path.name in said or entry.is_about_it(said), (kind, said)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_no_regular_file(laid: Laid, here: Path, name: str) -> None:
    entry = DOCUMENTS[name]
    path = entry.write({}, here)
    for make in NO_FILES.values():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        make(path)
        refusal(here, *entry.arguments(laid, path, here))


def test_the_good_files_are_taken(laid: Laid, here: Path) -> None:
    """Else the tests above could pass for another reason."""
    for name, entry in DOCUMENTS.items():
        path = entry.write(entry.document(laid), here)
        status, said = call(here, *entry.arguments(laid, path, here))
        assert status != 2 or not entry.is_about_it(said), (name, said)
        entry.clear(here)
