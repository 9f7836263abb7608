import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.sources import Source
from pipeline.corpus.text_store import TextStore, store_text
from pipeline.corpus.tokenisers import Tokeniser, make_tokeniser

TEXT = "the cat sat on the mat\nthe dog sat on the cat\n漢字 and 漢\n"


@pytest.fixture
def store(tmp_path: Path) -> TextStore:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    section = {"source": "text", "paths": [str(tmp_path / "a.txt")], "document": "file"}
    return store_text(Source(section), tmp_path / "text.arrow")


def make(store: TextStore, tmp_path: Path, **section: Any) -> Tokeniser:
    return make_tokeniser(section, store, tmp_path / "cache")


def test_bpe_has_the_separator_first_and_gives_any_text_back(store, tmp_path) -> None:
    tokeniser = make(store, tmp_path, kind="bpe", vocab_size=270)
    assert tokeniser.separator_id == 0
    assert 257 < tokeniser.vocab_size <= 270
    for text in (TEXT, "unseen: ñ \t🙂"):
        ids = tokeniser.tokenizer.encode(text).ids
        assert tokeniser.tokenizer.decode(ids) == text
        assert max(ids) < tokeniser.vocab_size


def test_wordpiece_has_berts_special_tokens_and_pieces_of_lower_case_words(store, tmp_path) -> None:
    tokeniser = make(store, tmp_path, kind="wordpiece", vocab_size=60)
    tokenizer, special = tokeniser.tokenizer, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert [tokenizer.token_to_id(one) for one in special] == [*range(5)]
    assert (tokeniser.separator_id, tokeniser.vocab_size) == (3, 5 + 2 * 13 + 6)
    added = tokenizer.get_added_tokens_decoder().values()
    assert [one.content for one in added] == special, "letters are none"
    assert tokenizer.encode("THE cat, the Cât").tokens == ["the", "cat", "[UNK]", "the", "cat"]
    assert tokenizer.encode("catthe").tokens == ["cat", "##t", "##he"]
    assert tokenizer.decode(tokenizer.encode("the dog").ids) == "the dog"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_vocabulary_is_the_same_in_every_process_and_thread_count(store, kind) -> None:
    """Pairs of this text are equally frequent."""
    size = {"bpe": 290, "wordpiece": 60}[kind]
    code = (
        "import sys, pathlib\n"
        "from pipeline.corpus.text_store import TextStore\n"
        "from pipeline.corpus.tokenisers import make_tokeniser\n"
        "store = TextStore(pathlib.Path(sys.argv[1]), 1, int(sys.argv[2]), '')\n"
        f"section = {{'kind': '{kind}', 'vocab_size': {size}}}\n"
        "made = make_tokeniser(section, store, pathlib.Path('none'))\n"
        "print(made.tokenizer.to_str())\n"
    )
    outputs = set()
    for parallel, hash_seed in (("false", "1"), ("true", "2")):
        variables = os.environ | {"TOKENIZERS_PARALLELISM": parallel, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code, str(store.file), str(store.num_characters)]
        outputs.add(subprocess.run(command, env=variables, check=True, capture_output=True).stdout)
    assert len(outputs) == 1


def test_char_keeps_the_most_frequent_and_counts_the_rest(store: TextStore, tmp_path: Path) -> None:
    tokeniser = make(store, tmp_path, kind="char", vocab_size=5)
    vocab = tokeniser.tokenizer.get_vocab()
    # ' ' stands 12 times, 't' 9, then 'a' 7; ties would go by code point.
    assert {token for token, i in vocab.items() if i >= 2} == {" ", "t", "a"}
    ids = tokeniser.tokenizer.encode("tz漢a").ids
    assert ids == [vocab["t"], 1, 1, vocab["a"]]
    kept = sum(TEXT.count(character) for character in " ta")
    assert tokeniser.description["num_unknown_characters"] == len(TEXT) - kept


def pretrained_folder(store: TextStore, tmp_path: Path, settings: object) -> Path:
    folder = tmp_path / "made-before"
    folder.mkdir()
    tokenizer = make(store, tmp_path, kind="bpe", vocab_size=280).tokenizer
    tokenizer.add_special_tokens(["</done>"])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "separator"),
    [
        (None, "<|endoftext|>"),
        ({"eos_token": {"content": "</done>"}}, "</done>"),
        ({"eos_token": None, "sep_token": "</done>"}, "</done>"),
    ],
)
def test_pretrained_from_a_folder(store, tmp_path, settings, separator) -> None:
    folder = pretrained_folder(store, tmp_path, settings)
    tokeniser = make(store, tmp_path, kind="pretrained", name=str(folder), revision=None)
    assert tokeniser.separator == separator
    # Truncation and padding of the file must not shorten or lengthen documents.
    assert tokeniser.tokenizer.decode(tokeniser.tokenizer.encode(TEXT).ids) == TEXT
    described = {"kind": "pretrained", "name": "made-before", "revision": None}
    assert tokeniser.description == described


def test_pretrained_from_the_hub_asks_for_the_pinned_revision(store, tmp_path, monkeypatch) -> None:
    folder = pretrained_folder(store, tmp_path, {"eos_token": "</done>"})
    asked = []

    def download(name: str, file: str, *, revision: str, cache_dir: str) -> str:
        asked.append((name, file, revision))
        return str(folder / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    tokeniser = make(store, tmp_path, kind="pretrained", name="a/b", revision="f" * 40)
    files = ("tokenizer.json", "tokenizer_config.json")
    assert asked == [("a/b", file, "f" * 40) for file in files]
    assert tokeniser.separator == "</done>"
    assert tokeniser.description == {"kind": "pretrained", "name": "a/b", "revision": "f" * 40}
