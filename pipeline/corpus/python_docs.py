"""The prose that ships with every CPython: help topics and docstrings of the standard library.

Sources are parsed, not imported, so the text depends on the version of CPython and not on the
extension modules that were built. Parts that Linux distributions package separately are left out.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import CorpusError

TOPICS = "pydoc_data/topics.py"
# Tests, vendored wheels and character tables are not prose; the others are absent from some
# installations of the same CPython.
LEFT_OUT = {
    *("__pycache__", "test", "tests", "pydoc_data", "encodings", "ensurepip"),
    *("tkinter", "idlelib", "turtledemo", "turtle.py", "distutils", "lib2to3", "venv"),
    *("site-packages", "dist-packages", "antigravity.py", "this.py"),
}
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def standard_library() -> Path:
    """The folder of the standard library of the running interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def units(root: Path) -> list[str]:
    """Paths below `root`: help topics, then modules by name; CorpusError without the topics."""
    if not (root / TOPICS).is_file():
        raise CorpusError(
            f"{root / TOPICS} does not exist; expected the help topics that CPython ships, "
            "install libpython3-stdlib or use another corpus.source"
        )
    modules = []
    for path in (path.relative_to(root) for path in root.rglob("*.py")):
        known = path.parts[0].removesuffix(".py") in sys.stdlib_module_names
        of_this_build = path.parts[0].startswith("_sysconfigdata")
        if known and not of_this_build and LEFT_OUT.isdisjoint(path.parts):
            modules.append(path.as_posix())
    return [TOPICS, *sorted(modules)]


def documents(root: Path, unit: str) -> Iterator[str]:
    """One document per help topic, or the docstrings of one module as a single document."""
    tree = ast.parse((root / unit).read_bytes())
    if unit != TOPICS:
        yield "\n\n".join(_docstrings(tree))
        return
    [topics] = (ast.literal_eval(one.value) for one in tree.body if isinstance(one, ast.Assign))
    yield from (topics[key] for key in sorted(topics))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The cleaned docstrings of a module, its classes and functions, in the order of the source."""
    if isinstance(node, (ast.Module, *_DEFINITIONS)):
        text = ast.get_docstring(node)
        if text:
            yield text
        for child in node.body:
            if isinstance(child, _DEFINITIONS):
                yield from _docstrings(child)
