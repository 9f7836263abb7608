import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.image import check, strategies
from pipeline.errors import UnsupportedError

REQUIRES = {
    "meets": ["good>=1", 'other>=9; python_version < "3"', 'extra-one; extra == "more"'],
    "newer": ["good>=3"],
    "absent": ["gone>=1"],
    "numerical": ["numpy>=3"],
}
STATED = {"ddp": None, "sharded": "torch 2.7 has no ReduceScatter"}
INSTALLED = {"good": "2.0", "numpy": "2.4.6"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in INSTALLED:
            raise importlib.metadata.PackageNotFoundError(name)
        return INSTALLED[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES[name])
    monkeypatch.setattr(importlib.metadata, "version", version)


def whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], base: set[str]
) -> tuple[int, Path]:
    """Check an environment of `names` over a base that brings `base`."""
    (folder / "lock").write_text("".join(f"{name}==1\n" for name in names))
    monkeypatch.setattr(check, "LOCKS", (folder / "lock",))
    monkeypatch.setattr(check, "of_the_base", lambda: base)
    monkeypatch.setattr(check, "imported_versions", lambda: {"torch": "2.13.0", "apex": None})
    monkeypatch.setattr(check, "stated_strategies", lambda: STATED)
    return check.main([str(folder / "versions.json")]), folder / "versions.json"


def test_requirements_are_met_missing_or_of_another_version() -> None:
    assert check.unmet(["meets"]) == []
    assert check.unmet(["newer", "absent"]) == [
        ("good", "newer needs good>=3; the image holds 2.0"),
        ("gone", "absent needs gone>=1, which is not installed"),
    ]


def test_absent_apex_is_said_in_words(tmp_path, monkeypatch, capsys) -> None:
    status, versions = whole(tmp_path, monkeypatch, ["meets"], set())
    assert status == 0
    expected: dict[str, Any] = {"torch": "2.13.0", "apex": None, "unmet": []}
    assert json.loads(versions.read_text()) == expected | {"strategies": STATED}
    shown = capsys.readouterr()
    assert "Strategy ddp: right" in shown.err and "Strategy sharded: torch 2.7 has" in shown.err
    assert "Apex: absent" in shown.err
    assert json.__file__ in shown.out.splitlines()


def test_an_image_that_is_not_whole_ends_the_build(tmp_path, monkeypatch, capsys) -> None:
    status, versions = whole(tmp_path, monkeypatch, ["newer", "numerical"], {"numpy"})
    assert (status, versions.exists()) == (1, False)
    assert capsys.readouterr().err.startswith("error: the image is not whole: newer needs good>=3")


def test_the_steps_of_every_strategy_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with other losses ends the build; one that cannot run is stated with its reason."""
    found = {"single": [2.0, 1.9], "ddp": [2.0, 1.9 + 1e-6]}

    def losses(name: str, ranks: int, model: object = None) -> list[float]:
        if name not in found:
            raise UnsupportedError("no such package")
        return found[name]

    monkeypatch.setattr(strategies, "losses", losses)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    stated = strategies.stated()
    assert stated["single"] is stated["ddp"] is None
    assert stated["sharded"] == "no such package"
    found["ddp"] = [2.0, 1.8]
    with pytest.raises(RuntimeError, match=r"strategy ddp has the losses \[2.0, 1.8\], expected"):
        strategies.stated()


def test_packages_outside_the_environment_are_the_base_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check.of_the_base() == set(), "this environment brings its own torch"
    monkeypatch.setattr(sys, "prefix", "/opt/another")
    assert check.of_the_base() == {"torch", "numpy"}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for an `apex`, first on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "apex"]:
        del sys.modules[name]


def apex(folder: Path, **files: str) -> None:
    (folder / "apex").mkdir()
    for name, text in ({"__init__": ""} | files).items():
        (folder / "apex" / f"{name}.py").write_text(text)


BROKEN = "import a_missing_dependency"


@pytest.mark.parametrize("file", ["__init__", "amp"])
def test_an_apex_that_is_broken_is_not_absent(modules, file) -> None:
    apex(modules, **{file: BROKEN})
    with pytest.raises(ModuleNotFoundError, match="a_missing_dependency"):
        check.apex_version()
