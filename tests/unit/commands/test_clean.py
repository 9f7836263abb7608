"""`python -m pipeline clean` removes the results of one study and nothing else."""

from pathlib import Path

import pytest

from pipeline.__main__ import main


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "other"):
        (tmp_path / "results" / name / "runs").mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text("study: mine\n")
    return tmp_path


def clean(study: str, confirm: str = "yes") -> int:
    return main(["clean", f"--study={study}", f"--confirm={confirm}"])


def left(checkout: Path) -> list[str]:
    return sorted(path.name for path in (checkout / "results").iterdir())


def test_one_study_s_results_are_removed(checkout: Path, capsys) -> None:
    """Also of a study that does not fit the schema of today."""
    assert clean("mine.yaml", "") == 2
    assert "add CONFIRM=yes" in capsys.readouterr().err and left(checkout) == ["mine", "other"]
    assert clean("mine.yaml") == 0
    assert left(checkout) == ["other"]
    assert clean("mine.yaml") == 2
    assert capsys.readouterr().err == "error: there is no results/mine, so nothing to remove\n"


@pytest.mark.parametrize(
    "text",
    [f'study: "{name}"' for name in ("", ".", "..", "../results", "a/b", "/", "mine\\n", "~")]
    + ["title: x", "[study]", "study: 7", "study: null"],
)
def test_what_is_no_name_of_a_folder_is_refused(checkout: Path, capsys, text: str) -> None:
    (checkout / "mine.yaml").write_text(text)
    assert clean("mine.yaml") == 2
    assert "no name of a study" in capsys.readouterr().err
    assert left(checkout) == ["mine", "other"]


def test_symlinks_are_not_followed(checkout: Path, capsys) -> None:
    outside = checkout / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (checkout / "results" / "linked").symlink_to(outside)
    (checkout / "results" / "mine" / "linked").symlink_to(outside)
    (checkout / "linked.yaml").write_text("study: linked\n")
    assert clean("linked.yaml") == 2
    assert "results/linked is a symlink" in capsys.readouterr().err
    assert clean("mine.yaml") == 0
    assert (outside / "kept").exists() and left(checkout) == ["linked", "other"]
