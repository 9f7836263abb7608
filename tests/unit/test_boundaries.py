"""The boundaries that import-linter cannot state: submodules of others, and files yet to come."""

from __future__ import annotations

import ast
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
