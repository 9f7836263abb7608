from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.corpus import python_docs
from pipeline.errors import CorpusError


@pytest.fixture
def library(tmp_path: Path) -> Path:
    files = {
        "pydoc_data/topics.py": "topics = {'zeta': 'Last topic.', 'alpha': 'First topic.'}\n",
        "json/__init__.py": (
            '"""Module."""\n'
            'class A:\n    """Class."""\n    def f(self):\n        """Method."""\n'
            'async def g():\n    """Coroutine."""\n'
            "raise SystemExit('imported')\n"
        ),
        "abc.py": '"""Before json."""\n',
        "json/tests/test_a.py": '"""Test."""\n',
        "sitecustomize.py": '"""Local file."""\n',
        "site-packages/os.py": '"""Somebody else."""\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_topics_come_by_key_then_docstrings_by_module_without_importing(library: Path) -> None:
    """Without tests, packages of others and local files."""
    units = python_docs.units(library)
    assert units == ["pydoc_data/topics.py", "abc.py", "json/__init__.py"]
    topics, _, of_json = (list(python_docs.documents(library, unit)) for unit in units)
    assert topics == ["First topic.", "Last topic."]
    assert of_json == ["Module.\n\nClass.\n\nMethod.\n\nCoroutine."]


def test_missing_topics_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"topics\.py does not exist"):
        python_docs.units(tmp_path)


def test_this_interpreter_has_real_prose() -> None:
    root = python_docs.standard_library()
    units = python_docs.units(root)
    known = {"argparse.py", "json/__init__.py", "pathlib.py"}
    assert known <= set(units) or sys.version_info >= (3, 13)
    topics = list(python_docs.documents(root, python_docs.TOPICS))
    assert sum(map(len, topics)) > 300_000
    assert any("context manager" in topic for topic in topics)
