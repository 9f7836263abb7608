import subprocess
from pathlib import Path

import pytest

from tests.programs import ran, stand_in

SCRIPT = Path(__file__).parents[3] / "envs" / "preflight.sh"
GOOD_PYTHON = "#!/bin/sh\nexit 0\n"
OLD_PYTHON = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1 && exit 0\nexit 1\n'
NO_VENV_PYTHON = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexit 0\n'


def preflight(
    folder: Path, tools: dict[str, str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run with a PATH that holds `tools` (name to script) alone."""
    for name, script in tools.items():
        stand_in(folder / name, script)
    return ran(["/bin/sh", str(SCRIPT)], env={"PATH": str(folder), **environment})


def tools(*names: str, python: str = GOOD_PYTHON) -> dict[str, str]:
    return {name: GOOD_PYTHON for name in names} | {"python3": python}


@pytest.mark.parametrize(
    ("present", "python", "taken"),
    [(("flock",), GOOD_PYTHON, "python3"), (("flock", "python3.12"), OLD_PYTHON, "python3.12")],
)
def test_the_first_python_that_is_new_enough_is_taken(tmp_path, present, python, taken) -> None:
    result = preflight(tmp_path, tools(*present, python=python))
    assert (result.returncode, result.stdout.strip()) == (0, str(tmp_path / taken))


@pytest.mark.parametrize(
    ("present", "python", "named", "package"),
    [
        ((), GOOD_PYTHON, "flock", "Debian package: util-linux"),
        (("flock",), NO_VENV_PYTHON, "venv module", "Debian package: python3-venv"),
        (("flock",), OLD_PYTHON, "(Python 3.9.1)", "Debian package: python3"),
    ],
)
def test_one_missing_tool_is_the_only_one_named(tmp_path, present, python, named, package) -> None:
    result = preflight(tmp_path, tools(*present, python=python))
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "Debian package:" in line]
    assert len(lines) == 1
    assert named in lines[0]
    assert package in lines[0]


def test_a_chosen_python_that_is_too_old_is_not_replaced(tmp_path: Path) -> None:
    given = tools("flock", "python3.12") | {"mine": OLD_PYTHON}
    result = preflight(tmp_path, given, PYTHON="mine")
    assert result.returncode == 1
    assert "as mine (Python 3.9.1)" in result.stderr
