"""The command line: stages, errors in one line, no torch where none is needed."""

import subprocess
import sys

import pytest

from pipeline.__main__ import STAGES, main


def test_help_lists_every_stage(capsys) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(stage in shown for stage in STAGES)


def test_an_unknown_stage_names_the_known_ones(capsys) -> None:
    assert main(["trian"]) == 2
    assert "'trian'" in capsys.readouterr().err


def test_an_expected_error_is_one_line_and_status_2(capsys, tmp_path) -> None:
    arguments = ["--spec", str(tmp_path / "none"), "--tokens", "t", "--out", str(tmp_path)]
    assert main(["train", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: run spec") and shown.count("\n") == 1


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_no_stage_imports_torch_to_show_its_help(stage) -> None:
    code = (
        "import sys; from pipeline.__main__ import main\n"
        f"try: main(['{stage}', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
