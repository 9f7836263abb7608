"""The command line: stages, errors in one line, no torch where none is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import ALL, _Parser, main
from pipeline.commands.people import COMMANDS
from pipeline.errors import StudyError
from pipeline.machine import inherited
from tests.programs import ran, stand_in


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_has_an_example_that_is_none_with_a_gap(name, capsys) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert f"\nexample: python -m pipeline {name}" in shown
    (example,) = re.findall(rf"^example: python -m pipeline {name} ?(.*)$", shown, re.MULTILINE)
    parser = _Parser()
    ALL[name].add_arguments(parser)
    assert "FILE" not in example
    words = example.replace("other/results/smoke", "pipeline").replace("results/smoke", "tests")
    parser.parse_args(words.replace("results/from_archive/smoke", "tests").split())


def test_an_unknown_command_names_the_nearest(capsys) -> None:
    assert main(["trian"]) == 2
    assert "unknown command 'trian'; use one of train" in capsys.readouterr().err


def test_the_short_command_runs_the_python_beside_it(tmp_path) -> None:
    for name, text in (("samestep", None), ("python", '#!/bin/sh\necho "$@"\n')):
        text = text or Path("envs/samestep").read_text()
        stand_in(tmp_path / name, text)
    done = ran(
        ["samestep", "plan", "--study", "a b"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
    )
    assert done.stdout == "-m pipeline plan --study a b\n"
    assert 'cp envs/samestep "$venv/bin/samestep"' in Path("envs/setup.sh").read_text()


def fail_with(monkeypatch, error: BaseException) -> int:
    def run(args: object) -> int:
        raise error

    monkeypatch.setattr(ALL["strategies"], "run", run)
    return main(["strategies"])


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(28, "No space left", "a\nb"), 2, "error: a b: No space left; fix the path"),
        (MemoryError(), 2, "error: out of memory"),
        (ImportError("No module named x", name="x"), 2, "error: No module named x: /"),
        (ImportError("no", name="pipeline.x"), 70, "error: ['strategies'] has a bug (Imp"),
        (RecursionError("depth"), 2, "error: nested too deep (depth)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("by signal 15"), 143, "interrupted by signal 15"),
        (StudyError("two\nlines"), 2, "error: two lines"),
        (ZeroDivisionError("oh"), 70, "error: ['strategies'] has a bug (ZeroDivisionError: oh)"),
    ],
)
def test_whatever_goes_wrong_is_one_line(
    monkeypatch, capsys, tmp_path, error: BaseException, status: int, said: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fail_with(monkeypatch, error) == status
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1
    saved = list(tmp_path.glob("samestep-traceback-*.txt"))
    assert len(saved) == ("traceback" in shown)
    for path in saved:
        assert str(path) in shown and type(error).__name__ in path.read_text()


def test_no_stage_imports_torch_to_show_its_help() -> None:
    code = """
import contextlib, sys
from pipeline.__main__ import ALL, main
for stage in ALL:
    with contextlib.suppress(SystemExit):
        main([stage, "--help"])
    assert "torch" not in sys.modules, stage
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_the_project_s_packages_no_command_has_a_bug() -> None:
    """As by the system's Python: the error says which Python has them."""
    code = "from pipeline.__main__ import ALL, main\nfor name in ALL:\n"
    code += " try: main([name, '--help'])\n except SystemExit: pass"
    done = ran([sys.executable, "-S", "-c", code])
    assert "bug" not in done.stderr and "use .venv/bin/python" in done.stderr, done.stderr


def test_a_closed_stdout_is_no_bug(tmp_path: Path) -> None:
    command = f"{sys.executable} -m pipeline strategies --readme none.md >&-"
    # Without the caller's variables, of which a note says that they are not taken over.
    mine = {"PATH": os.environ["PATH"]}
    done = ran(["sh", "-c", command], env=mine)
    assert done.returncode == 2 and "none.md" in done.stderr, done.stderr
    helped = command.partition(" strategies")[0] + " >&-"
    done = ran(["sh", "-c", helped], env=mine)
    assert done.returncode == 0 and done.stderr == ""


def test_what_a_locale_cannot_show_is_no_bug() -> None:
    """A label on a terminal in Latin-1, and a path that is no UTF-8."""
    code = "import sys; from pipeline import __main__ as m; "
    code += r"m.main = lambda _: print('\u5206', '\udcff') or 0; sys.exit(m.program())"
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", **inherited.OWN},
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (0, b"\\u5206 \\udcff\n"), done.stderr


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_no_file_takes_the_place_of_an_output_that_was_closed(tmp_path: Path, closed: str) -> None:
    """A library's output would otherwise go into that file."""
    code = "import os, sys; from pipeline import __main__ as m; f = lambda: open('new', 'w');"
    code += "m.main = lambda _: (print('a'), print('b', file=sys.stderr), f().fileno() > 2)[2] - 1"
    done = ran(
        f'exec "{sys.executable}" -c "{code}; sys.exit(m.program())" {closed}',
        shell=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **inherited.OWN},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if "1" in closed else "a\n")
    assert done.stderr == ("" if "2" in closed else "b\n")
