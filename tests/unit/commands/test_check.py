"""`python -m pipeline check`: all that can be said of a study before its first job."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models

from pipeline.__main__ import main
from pipeline.corpus.build import build
from pipeline.study.expansion import tokens_spec
from pipeline.study.load import load_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    shipped = load_study(Path("workflow/config/cluster-check/study.yaml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LICENSE").write_text("a few words\n" * 999)
    return shipped.to_dict()


def check(study: dict[str, Any]) -> int:
    Path("my study.yaml").write_text(yaml.safe_dump(study))
    return main(["check", "--study", "my study.yaml"])


def test_a_text_that_changed_since_its_tokens_were_made_is_said(study, capsys) -> None:
    words = "\n\n".join(f"a few words of document {n}" for n in range(900))
    for name in ("a.txt", "b.txt", "c.txt"):
        Path(name).write_text(f"{words} {name}")
    text = {"source": "text", "paths": ["a.txt", "b.txt", "c.txt"], "document": "block"}
    study |= {"corpus": text, "tokenizer": {"kind": "char"}}
    assert check(study) == 0 and capsys.readouterr().err == ""
    spec = tokens_spec(load_study(Path("my study.yaml"))) | {"min_tokens": 9}
    build(spec, Path("results/cluster-check/tokens"), 1)
    Path("c.txt").unlink()  # what was read is not needed again
    assert check(study) == 0 and capsys.readouterr().err == ""
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(f"{words} {name[:-4]}.TXT")
        assert check(study) == 0
        assert "the text has changed since the tokens of these runs" in capsys.readouterr().err
    text["paths"] = ["d.txt"]
    assert check(study) == 2 and "d.txt: No such file" in capsys.readouterr().err


def _tokeniser(folder: Path) -> None:
    """One token a character, in files as `tokenizers` writes them."""
    letters = {chr(c): c for c in range(32, 127)} | {"</s>": 127, "\n": 128}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.add_special_tokens(["</s>"])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')


def _data_set(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = (json.dumps({"text": f"a few words of document {n}"}) for n in range(900))
    (folder / "train.jsonl").write_text("\n".join(rows))


@pytest.mark.parametrize(
    "file", ["tokeniser/tokenizer.json", "tokeniser/tokenizer_config.json", "set/train.jsonl"]
)
def test_a_folder_whose_content_changed_is_no_longer_what_it_was(study, capsys, file: str) -> None:
    """The same name with another content: of a data set, of a tokeniser and of its settings."""
    _tokeniser(Path("tokeniser"))
    _data_set(Path("set"))
    hub = {"source": "hub", "name": "set", "split": "train", "revision": "0" * 40, "column": "text"}
    study["tokenizer"] = {"kind": "pretrained", "name": "tokeniser", "revision": None}
    study["corpus"] = hub
    assert check(study) == 0 and capsys.readouterr().err == ""
    spec = tokens_spec(load_study(Path("my study.yaml"))) | {"min_tokens": 9}
    build(spec, Path("results/cluster-check/tokens"), 1)
    assert check(study) == 0 and capsys.readouterr().err == ""
    text = Path(file).read_text()
    Path(file).write_text(f"{text}\n")
    assert check(study) == 0 and f"were made: {file}." in capsys.readouterr().err
    Path(file).write_text(text)
    Path(file).with_name("more.jsonl").write_text(text)
    assert check(study) == 0
    assert ("the folder of set/" in capsys.readouterr().err) == file.startswith("set")
