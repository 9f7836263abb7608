"""The image's check of itself, the last thing that its build does.

    python -m envs.image.check VERSIONS

Imports what a run imports, trains two steps of every strategy (envs/image/strategies.py), prints
the versions to stderr (and `Apex: absent` where it is), and writes them and which strategies there
are to the JSON file VERSIONS. A package that does not import, a torch that cannot talk to
NumPy or a requirement of the lock that the image does not meet ends the build; a requirement that
only the base's own torch or NumPy fails is listed as `unmet`. Prints the source files that were
imported to stdout, a path a line.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from envs.image.lock import read_lock

IMPORTS = (
    "torch",
    "torch.distributed.run",
    "numpy",
    "horovod.torch",
    "transformers.models.gpt2.modeling_gpt2",
    "pipeline.__main__",
    "pipeline.training.worker",
)
LOCKS = (Path("envs/requirements.lock"), Path("envs/deepspeed.lock"))
MAY_BE_OF_THE_BASE = ("torch", "numpy")


def unmet(names: Iterable[str]) -> list[tuple[str, str]]:
    """Requirements of the packages `names` that this environment fails: what is wanted, and how."""
    problems = []
    for name in names:
        for text in importlib.metadata.requires(name) or ():
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            try:
                there = importlib.metadata.version(wanted.name)
            except importlib.metadata.PackageNotFoundError:
                problems.append((wanted.name, f"{name} needs {wanted}, which is not installed"))
                continue
            if not wanted.specifier.contains(there, prereleases=True):
                problems.append((wanted.name, f"{name} needs {wanted}; the image holds {there}"))
    return problems


def of_the_base() -> set[str]:
    """Packages that lie outside this environment, in the base image."""
    packages = (importlib.metadata.distribution(name) for name in MAY_BE_OF_THE_BASE)
    places = {package.name.lower(): Path(str(package.locate_file(""))) for package in packages}
    return {name for name, place in places.items() if not place.is_relative_to(sys.prefix)}


def imported_versions() -> dict[str, str | None]:
    """Import everything and return the versions; Apex alone may be absent (None)."""
    for name in IMPORTS:
        importlib.import_module(name)
    import horovod.torch as hvd
    import numpy
    import torch

    # a torch that was compiled against another NumPy imports well, and fails here
    assert torch.from_numpy(numpy.arange(3)).sum().item() == 3
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": numpy.__version__,
        "horovod": importlib.metadata.version("horovod"),
        "horovod_operations": "nccl" if hvd.nccl_built() else "gloo",
        "apex": apex_version(),
        "samestep": importlib.metadata.version("samestep"),
    }


def stated_strategies() -> dict[str, str | None]:
    """Reason why each strategy cannot run here, None for those whose steps were right.

    In processes of their own, so that what they import is not said to be what every rank imports.
    Raises CalledProcessError where a strategy that can run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "strategies.json")
        # By this address: inside a build the name of the host may lead nowhere.
        meeting = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=4"]
        launcher = [sys.executable, "-m", "torch.distributed.run", *meeting]
        words = [*launcher, "-m", "envs.image.strategies", str(target)]
        # torchrun leaves a folder of a random name, which would be in the image.
        kept = {"HOME": folder, "TMPDIR": folder}
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **kept}
        done = subprocess.run(words, env={**os.environ, **variables}, stdout=sys.stderr)
        done.check_returncode()
        reasons: dict[str, str | None] = json.loads(target.read_text(encoding="utf-8"))
    return reasons


def is_there(name: str) -> bool:
    """Import the module `name`; False where it is absent, while a broken one raises its error."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
    return True


def apex_version() -> str | None:
    """Apex's version, `unknown` where it states none, None where there is no Apex.

    Says whether `apex.amp`, which newer ones lack and the study's cells need, is in it.
    """
    if not is_there("apex"):
        return None
    print(f"Apex's amp: {'present' if is_there('apex.amp') else 'absent'}", file=sys.stderr)
    try:
        return importlib.metadata.version("apex")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def imported_sources() -> list[str]:
    """Source files of all modules that are imported now, sorted."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted(
        {file for file in files if file and file.endswith(".py") and Path(file).is_file()}
    )


def main(arguments: list[str]) -> int:
    """Check, write VERSIONS, and print what a build log should hold."""
    (target,) = arguments
    pinned = [name for lock in LOCKS for name in read_lock(lock.read_text(encoding="utf-8"))]
    base = of_the_base()
    problems = unmet(name for name in pinned if name not in base)
    fatal = [how for wanted, how in problems if wanted not in base]
    if fatal:
        print("error: the image is not whole: " + "; ".join(fatal), file=sys.stderr)
        return 1
    for _, how in problems:
        print(f"warning: {how}, which the base brought", file=sys.stderr)
    versions = imported_versions()
    for name, version in versions.items():
        label = name.replace("_", " ").capitalize()
        print(f"{label}: {version or 'absent'}", file=sys.stderr)
    strategies = stated_strategies()
    for name, reason in strategies.items():
        print(f"Strategy {name}: {reason or 'right'}", file=sys.stderr)
    temporary = Path(f"{target}.new")
    facts = {**versions, "unmet": [how for _, how in problems], "strategies": strategies}
    temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, target)
    here = str(Path.cwd())
    print("\n".join(path for path in imported_sources() if not path.startswith(here)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
