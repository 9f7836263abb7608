"""`python -m pipeline check`: all that can be said of a study before its first job."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.__main__ import main
from pipeline.corpus.build import TokensSpec, build
from pipeline.study.expansion import tokens_spec
from pipeline.study.load import load_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    shipped = load_study(Path("workflow/config/cluster-check/study.yaml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LICENSE").write_text("text")
    return shipped.to_dict()


def check(study: dict[str, Any]) -> int:
    Path("my study.yaml").write_text(yaml.safe_dump(study))
    return main(["check", "--study", "my study.yaml"])


def test_a_good_study_is_told_its_results(study, capsys) -> None:
    assert check(study) == 0
    assert capsys.readouterr().out == "results/cluster-check\n"


def test_a_path_with_a_line_end_is_one_line_too(study, capsys) -> None:
    assert main(["check", "--study", "no\nsuch.yaml"]) == 2
    assert capsys.readouterr().err.startswith("error: study file no such.yaml does not exist")


def test_a_text_that_changed_since_its_tokens_were_made_is_said(study, capsys) -> None:
    words = "\n\n".join(f"a few words of document {n}" for n in range(900))
    for name in ("a.txt", "b.txt", "c.txt"):
        Path(name).write_text(f"{words} {name}")
    text = {"source": "text", "paths": ["a.txt", "b.txt", "c.txt"], "document": "block"}
    study |= {"corpus": text, "tokenizer": {"kind": "char"}}
    assert check(study) == 0 and capsys.readouterr().err == ""
    spec = tokens_spec(load_study(Path("my study.yaml"))) | {"min_tokens": 9}
    build(TokensSpec.from_dict(spec), Path("results/cluster-check/tokens"), 1)
    Path("c.txt").unlink()  # what was read is not needed again
    assert check(study) == 0 and capsys.readouterr().err == ""
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(f"{words} {name[:-4]}.TXT")
        assert check(study) == 0
        assert "the text has changed since the tokens of these runs" in capsys.readouterr().err
    text["paths"] = ["d.txt"]
    assert check(study) == 2 and "d.txt: No such file" in capsys.readouterr().err
