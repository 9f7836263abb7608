"""The boundaries that import-linter cannot state: submodules of others, and files yet to come."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipeline"


def imports(source: str, module: str) -> set[str]:
    """Dotted names that a module imports anywhere, also inside functions and by `import_module`.

    `from a.b import c` gives both `a.b` and `a.b.c`, for c may be a module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            found |= {str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return found


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules(*packages: str) -> Iterator[tuple[str, set[str]]]:
    """Each module of `pipeline.<package>` with what it imports."""
    for package in packages:
        for path in sorted((PIPELINE / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, imports(path.read_text(encoding="utf-8"), name)


def trespasses(package: str, *forbidden: str) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, names in modules(package)
        for name in sorted(names)
        if is_under(name, forbidden)
    ]


def test_models_never_import_torch_distributed() -> None:
    assert not trespasses("models", "torch.distributed", "torch.nn.parallel", "horovod")


def test_training_names_no_strategy() -> None:
    siblings = [path.stem for path in (PIPELINE / "strategies").glob("*.py")]
    named = tuple(f"pipeline.strategies.{stem}" for stem in siblings if stem != "base")
    assert len(named) > 1
    assert not trespasses("training", *named)


def test_strategies_name_no_model_and_no_part_of_the_run() -> None:
    parts = ("models", "training", "records", "corpus", "files")
    others = (*(f"pipeline.{part}" for part in parts), "time", "logging", "transformers")
    assert not trespasses("strategies", *others)


@pytest.mark.parametrize(
    "package",
    [
        "metrics",
        "figures",
        "tables",
        "claims",
        "compare",
        "reference",
        "paper",
        "page",
        "archive",
    ],
)
def test_the_report_needs_no_torch(package: str) -> None:
    # also not through a module of ours that imports it
    graph = dict(modules("."))
    for module, names in modules(package):
        for reached in _reach(names, graph):
            assert not is_under(reached, ("torch",)), f"{module} reaches {reached}"


def _reach(names: set[str], graph: dict[str, set[str]]) -> set[str]:
    reached, todo = set(names), list(names)
    while todo:
        name = todo.pop()
        parents = [name, *(f"{name}.__init__",), *_package_files(name)]
        for module in parents:
            fresh = graph.get(module, set()) - reached
            reached |= fresh
            todo.extend(fresh)
    return reached


def _package_files(name: str) -> list[str]:
    """Importing a.b.c runs a/__init__ and a/b/__init__ too."""
    parts = name.split(".")
    return [".".join([*parts[:depth], "__init__"]) for depth in range(1, len(parts))]


@pytest.mark.parametrize("name", ["study.spec", "errors"])
def test_spec_and_errors_need_only_the_standard_library(name: str) -> None:
    path = PIPELINE / f"{name.replace('.', '/')}.py"
    found = imports(path.read_text(encoding="utf-8"), f"pipeline.{name}")
    strange = {
        item
        for item in found
        if item.split(".")[0] not in sys.stdlib_module_names
        and not is_under(item, ("pipeline.errors",))
    }
    assert not strange


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed import all_reduce",
        "def late():\n    import torch.distributed",
        "importlib.import_module('torch.distributed')",
    ],
)
def test_every_way_to_import_is_seen(source: str) -> None:
    assert any(is_under(name, ("torch.distributed",)) for name in imports(source, "pipeline.a.b"))


def test_relative_imports_are_resolved() -> None:
    found = imports("from . import gpt2\nfrom ..models.bert import Bert", "pipeline.models.x")
    assert {"pipeline.models.gpt2", "pipeline.models.bert"} <= found
