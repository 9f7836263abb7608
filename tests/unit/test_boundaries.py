"""The boundaries that import-linter cannot state: submodules of others, and files yet to come."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipeline"


def imports(source: str) -> set[str]:
    """Dotted names that a module imports anywhere, also inside functions and by `import_module`.

    `from a.b import c` gives both `a.b` and `a.b.c`, for c may be a module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""  # relative ones are refused by the linter
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            found |= {str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return found


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
            yield name, imports(path.read_text(encoding="utf-8"))


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
    assert any(is_under(name, ("torch.distributed",)) for name in imports(source))


# Who opens files without `pipeline.documents`, and what they open.
READERS = {
    "pipeline.__main__": "the null device, to write to it",
    "pipeline.corpus.manifest": "what it is about to write, and shards, to write them",
    "pipeline.schemas": "the schemas of this package",
    "pipeline.catalogue": "the modules of this package",
    "pipeline.page.index": "a file of this package",
    "pipeline.page.page": "figures, as bytes, and files of this package",
    "pipeline.paper.export": "what it has just written",
    "pipeline.paper.manuscript": "the manuscript",
    "pipeline.reference.devices": "a file of this package",
    "pipeline.corpus.python_docs": "the standard library of Python",
    "pipeline.corpus.texts": "a string of an array, behind open_regular",
    "pipeline.records.run_rules": "what it has just made JSON of",
    "pipeline.archive.pack": "results and the files of an archive, as bytes",
    "pipeline.archive.unpack": "a zip file, behind open_regular",
    "pipeline.files": "it is below the door",
    "pipeline.strategies.horovod.plan": "packages that are installed",
    "pipeline.strategies.horovod.step": "the log that Horovod has written",
    "pipeline.emulation.nodes": "the kernel's files",
    "pipeline.emulation.pacing": "the kernel's files",
    "pipeline.emulation.tcp": "the kernel's files, and what a tool prints",
    "pipeline.machine.control_groups": "the kernel's files",
    "pipeline.machine.facts": "the kernel's files",
    "pipeline.machine.image": "a file of the image",
    "pipeline.claims.write": "the file between whose marks it writes",
    "pipeline.machine.limits": "the kernel's files",
    "pipeline.machine.nccl": "the log that NCCL has written",
    "pipeline.models.transformers.arithmetic": "what its own process counted; else counted again",
    "pipeline.models.transformers.facts": "the model that its parent has given it",
    "pipeline.machine.lock": "the lock",
    "pipeline.machine.session": "what forks of this process keep",
    "pipeline.machine.processes": "the kernel's files, and a log to write it",
    "pipeline.launch.fork_server": "what its own process sends",
    "pipeline.launch.log": "the log of this launch",
    "pipeline.launch.outcome": "what ranks of this launch left",
    "pipeline.launch.preloaded": "models of specs that its own process sends",
    "pipeline.launch.run": "the log, to write it, and what ranks of this launch write",
    "pipeline.parallel.counted": "what torch's recorder holds of this process",
    "pipeline.planner.sizes": "a file of the package",
    "pipeline.watch": "the log of the workflow that it started, and damaged records",
    "pipeline.training.checkpoint": "checkpoints of this run",
    "pipeline.training.fence": "the token of this launch",
    "pipeline.training.shard_files": "pieces of checkpoints of this run",
    "pipeline.training.step_files": "what ranks of this run write and left",
    "pipeline.training.worker": "a spec that the launcher has read",
}


def opened(source: str) -> bool:
    """Whether a module opens or parses files by itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function, name = node.func, _called(node)
            owner = function.value if isinstance(function, ast.Attribute) else None
            parser = owner.id if isinstance(owner, ast.Name) else ""
            if name in ("load", "loads", "safe_load") and parser in ("json", "yaml", "pickle"):
                return True
            # Called by itself, `read_text` is that of the door.
            if name in ("open", "read_bytes") or (name == "read_text" and owner is not None):
                return True
    return False


def test_only_the_door_opens_what_a_person_gives() -> None:
    """A file goes through `pipeline.documents`, which says in one line what is wrong with it."""
    found = set()
    for path in sorted(PIPELINE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if opened(path.read_text(encoding="utf-8")):
            found.add(name)
    assert found - {"pipeline.documents"} == set(READERS)


@pytest.mark.parametrize(
    ("source", "is_seen"),
    [
        ("path.read_text()", True),
        ("open(path)", True),
        ("json.loads(text)", True),
        ("yaml.safe_load(text)", True),
        ("read_text(path, 'record', RecordError)", False),
        ("checkpoint.load(folder)", False),
    ],
)
def test_every_way_to_open_is_seen(source: str, is_seen: bool) -> None:
    assert opened(source) == is_seen


def test_the_repository_holds_no_link() -> None:
    """A link in place of a folder is not ignored by `/name/`, and would be committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line for line in listed if line.startswith("120000")] == []
