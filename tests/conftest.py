"""Options and fixtures of the whole suite."""

import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from tests.counting import count_here
from tests.system.image import image, singularity

__all__ = ["image", "singularity"]

# How long an example takes says how busy the machine is.
settings.register_profile("any time", deadline=None)
settings.load_profile("any time")
count_here()

LONGEST = (
    "workflow/test_workflow.py",
    "parity/test_parity.py",
    "workflow/",
    "golden/",
    "unit/models/",
    "system/test_image.py",
    "system/test_slurm.py",
    "system/test_slurm_in_image.py",
    "system/test_parity_matrix.py",
    "system/test_debian_kernel.py",
)
"""Beginnings of files that come first: where a worker gets one last, the others wait for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one way to move golden files, and to measure what faults cost."""
    parser.addoption(
        "--write-golden", action="store_true", help="write tests/golden/*.json anew, then compare"
    )
    parser.addoption(
        "--write-faults", action="store_true", help="write bench/results/faults.json anew"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files as LONGEST names them first, in its order; all others keep theirs."""

    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(Path(__file__).parent).as_posix()
        places = (n for n, name in enumerate(LONGEST) if file.startswith(name))
        return next(places, len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of all later garbage collections, which it would slow."""
    gc.collect()
    gc.freeze()


def untracked() -> set[str]:
    """Files of the checkout that git neither tracks nor ignores; none where there is no git."""
    command = ["git", "-C", str(Path(__file__).parents[1]), "ls-files", "--others"]
    done = subprocess.run([*command, "--exclude-standard"], capture_output=True, text=True)
    return set(done.stdout.splitlines())


BEFORE = untracked()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session whose tests left files in the checkout, but for golden values it writes."""
    is_worker = hasattr(session.config, "workerinput")
    if session.config.getoption("--write-golden") or is_worker:
        return
    if left := untracked() - BEFORE:
        print(f"\nerror: tests left files in the checkout: {', '.join(sorted(left)[:5])}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Give each test the variables that the session began with: what a rank sets is its own."""
    before = dict(os.environ)
    yield
    if (now := os.environ) != before:
        for name in now.keys() - before.keys():
            del now[name]
        now.update(before)


@pytest.fixture(scope="module")
def loaded() -> Iterator[None]:
    """The processes that a workflow has, which runs are forks of: a small run is mostly imports."""
    from pipeline.launch import preloaded
    from pipeline.resolved import resolve
    from tests.parity.cases import Case

    two = Case("ddp").spec(2)
    one_core = replace(two, world=replace(two.world, threads_per_rank=1))
    before, ends = set(os.environ), list[Callable[[], None]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atexit.register", ends.append)
        preloaded.start_stages()
        preloaded.start_ranks(map(resolve, [Case("single").spec(1), two, one_core]))
    yield
    for end in ends:
        end()
    for name in set(os.environ) - before:
        del os.environ[name]


@pytest.fixture(scope="session")
def small_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real token shards of a small text that this function writes."""
    from pipeline.corpus.build import build

    folder = tmp_path_factory.mktemp("tokens")
    words = "the quick brown fox jumps over a lazy dog while seven wizards box".split()
    text = "\n\n".join(" ".join(words[i % 13 :] + words[: i % 7]) for i in range(400))
    (folder / "text.txt").write_text(text)
    spec = {
        "corpus": {"source": "text", "paths": [str(folder / "text.txt")], "document": "block"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "context": 16,
        "model_vocab_size": 300,
        "min_tokens": 129,
    }
    build(spec, folder / "tokens", 1)
    return folder / "tokens"
