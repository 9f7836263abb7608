import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipeline.corpus import encode, text_store
from pipeline.corpus.build import build
from pipeline.corpus.manifest import Manifest
from pipeline.errors import CorpusError
from tests.programs import ran

ROOT = Path(__file__).parents[3]


@pytest.fixture
def text_spec(tmp_path: Path) -> dict[str, Any]:
    """A tokens spec over two text files of 60 blocks each."""
    paths = [tmp_path / name for name in ("one.txt", "two.txt")]
    for path in paths:
        blocks = [f"{path.name} has block number {i}\nwith a second line" for i in range(60)]
        path.write_text("\n\n".join(blocks) + "\n")
    return {
        "corpus": {"source": "text", "paths": [*map(str, paths)], "document": "block"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "context": 8, "model_vocab_size": 300, "min_tokens": 17,
    }  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tokens_of(folder: Path) -> list[int]:
    manifest = Manifest.load(folder, verify=True)
    parts = [np.fromfile(folder / shard.file, manifest.file_dtype) for shard in manifest.shards]
    return [int(token) for token in np.concatenate(parts)]


def make(spec: dict[str, Any], folder: Path, num_threads: int = 1) -> Manifest:
    return build(spec, folder, num_threads)


def json_spec(tmp_path: Path, strings: object, **changes: Any) -> dict[str, Any]:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(strings))
    return {"corpus": {"source": "json", "paths": [str(path)]}, "tokenizer": {"kind": "char"},
            "context": 2, "model_vocab_size": 100, "min_tokens": 3} | changes  # fmt: skip


def test_documents_come_back_between_separators(tmp_path: Path) -> None:
    strings = ["one two", "漢字", "a<|endoftext|>b", "in several pieces " * 2000]
    manifest = make(json_spec(tmp_path, strings), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    tokens = tokens_of(tmp_path / "out")
    ends = [i for i, token in enumerate(tokens) if token == manifest.separator_id]
    starts = [0, *(end + 1 for end in ends[:-1])]
    assert [tokenizer.decode(tokens[a:b]) for a, b in zip(starts, ends, strict=True)] == strings
    assert ends[-1] == len(tokens) - 1
    assert manifest.num_documents == 4
    assert manifest.num_characters == sum(map(len, strings))
    assert manifest.num_tokens == len(tokens) == manifest.num_characters + 4
    assert manifest == Manifest.load(tmp_path / "out", verify=True)


def test_same_bytes_for_any_number_of_threads_and_blocks(tmp_path, text_spec, monkeypatch) -> None:
    make(text_spec, tmp_path / "one")
    names = {"manifest.json", "tokenizer.json", "shard-00000.bin"}
    assert set(contents(tmp_path / "one")) == names
    make(text_spec, tmp_path / "three", 3)
    assert contents(tmp_path / "three") == contents(tmp_path / "one")
    monkeypatch.setattr(encode, "BLOCK_CHARACTERS", 500)
    monkeypatch.setattr(text_store, "ROWS_PER_BATCH", 7)
    make(text_spec, tmp_path / "blocks", 2)
    assert contents(tmp_path / "blocks") == contents(tmp_path / "one")


def test_what_is_read_is_never_removed_whatever_else_is_named(tmp_path, text_spec) -> None:
    """Files of these names are those of an earlier run, which go first."""
    kept = tmp_path / "out/manifest.json"
    kept.parent.mkdir()
    kept.write_text("a text of somebody")
    corpus = text_spec["corpus"] | {"paths": ["x" * 300, str(kept)]}
    with pytest.raises(CorpusError, match=r"manifest.json lies in .*; give another folder"):
        make(text_spec | {"corpus": corpus}, kept.parent)
    assert kept.read_text() == "a text of somebody"


def test_a_half_written_folder_starts_clean(tmp_path: Path, text_spec: dict[str, Any]) -> None:
    make(text_spec, tmp_path / "fresh")
    half = tmp_path / "half"
    (half / ".work-old" / "text").mkdir(parents=True)
    (half / "shard-00000.bin").write_bytes(b"half")
    (half / "shard-00009.bin").write_bytes(b"left over")
    (half / "manifest.json").write_text("{}")
    make(text_spec, half)
    assert contents(half) == contents(tmp_path / "fresh")


def test_nothing_is_left_when_it_breaks_in_the_middle(tmp_path, text_spec, monkeypatch) -> None:
    make(text_spec, tmp_path / "out")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.corpus.build.write_shards", full)
    with pytest.raises(CorpusError, match="No space left on device"):
        make(text_spec, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_bpe_trains_on_a_bounded_part(tmp_path, text_spec, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.corpus.tokenisers.TRAINING_CHARACTERS", 1500)
    manifest = make(text_spec, tmp_path / "out")
    assert manifest.tokenizer["trained_on_every_nth_piece"] == -(-manifest.num_characters // 1500)
    assert manifest.num_documents == 120


def test_the_stage_leaves_nothing_in_the_home_folder_and_imports_no_torch(
    tmp_path: Path, text_spec: dict[str, Any]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(text_spec))
    code = (
        "import sys; from pipeline.__main__ import main; status = main(sys.argv[1:]); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    arguments = ["tokens", "--spec", str(spec), "--out", str(tmp_path / "out"), "--num-proc", "2"]
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    done = ran(
        [sys.executable, "-c", code, *arguments], env=variables | {"HOME": str(home)}, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tokens: 120 documents, ")
    assert list(home.rglob("*")) == []
    assert Manifest.load(tmp_path / "out", verify=True).num_documents == 120
