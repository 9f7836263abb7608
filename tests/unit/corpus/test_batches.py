"""Batches of windows in a random order, by slices; the shards and the manifest below them."""

import hashlib
import itertools
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.corpus.batches import MAX_OPEN_SHARDS, Batches, permute
from pipeline.corpus.manifest import TOKENIZER_FILE, Manifest, smallest_dtype, write_shards
from pipeline.corpus.objectives import Causal, Masked, NextSentence, Words
from pipeline.errors import CorpusError
from pipeline.files import sha256_of_file
from pipeline.study.spec import ObjectiveSpec

# Steps 0, 1, 166 (its last four positions lie in the next epoch) and 100 000.
GOLDEN = [
    [35, 352, 994, 667, 834, 489], [140, 576, 19, 103, 646, 901],
    [21, 94, 824, 961, 798, 659], [315, 56, 520, 599, 386, 847],
]  # fmt: skip
DOCUMENTS = ObjectiveSpec("causal", reset_positions=True)
WORDS = ObjectiveSpec("masked", 500, 0.5, whole_words=True)
PAIRS = ObjectiveSpec("masked_next_sentence", 500, 0.5, 501, 502, 503)


MakeShards = Callable[..., Path]


@pytest.fixture
def make_shards(tmp_path: Path) -> MakeShards:
    """Write tokens 0, 1, 2, ... so that a token is its own position in the corpus."""

    def make(num_tokens: int, shard_tokens: int = 2**24) -> Path:
        folder = tmp_path / f"tokens-{num_tokens}-{shard_tokens}"
        folder.mkdir()
        separator, file = "<|endoftext|>", folder / TOKENIZER_FILE
        vocab = {separator: 0, "a bell \a": num_tokens - 1}  # as text may have it
        file.write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
        tokens = np.arange(num_tokens, dtype="uint16")
        Manifest(
            schema_version=1,
            source={"source": "text", "files": ["a.txt"], "document": "file"},
            tokenizer={"kind": "bpe", "separator": separator, "sha256": sha256_of_file(file),
                       "trained_on_every_nth_piece": 1},
            num_documents=1, num_characters=num_tokens, num_tokens=num_tokens,
            vocab_size=num_tokens, separator_id=0, dtype="uint16", text_sha256="0" * 64,
            shards=tuple(write_shards(folder, "uint16", [tokens], shard_tokens)),
            versions={"python": "3", "datasets": "1", "tokenizers": "1"},
        ).write(folder)  # fmt: skip
        return folder

    return make


def test_golden_indices(make_shards: MakeShards) -> None:
    """The order of sampling is part of every recorded result; changing it changes them all."""
    batches = Batches(make_shards(8001), context=8, global_batch=6, seed=20220613)
    assert batches.num_windows == 1000
    assert [batches.indices(step).tolist() for step in (0, 1, 166, 100_000)] == GOLDEN


def test_windows_are_consecutive_tokens_and_targets_are_shifted(make_shards: MakeShards) -> None:
    batches = Batches(make_shards(1000, 7), context=5, global_batch=10, seed=1)
    inputs, targets, *_ = batches.slice(3, 0, 10)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.shape == targets.shape == (10, 5)
    expected = batches.indices(3)[:, None] * 5 + np.arange(5)
    assert np.array_equal(inputs, expected)
    assert np.array_equal(targets, expected + 1)


def test_the_entropy_of_unseen_text_is_that_of_its_tokens_by_their_frequency(make_shards) -> None:
    batches = Batches(make_shards(1000, 7), context=5, global_batch=10, seed=1)
    targets = np.concatenate([batches.slice(step, 0, 10)[1] for step in (17, 18)])
    shares = np.unique(targets, return_counts=True)[1] / targets.size
    assert batches.unigram_entropy(17, 19) == pytest.approx(-(shares * np.log(shares)).sum())
    assert batches.num_windows == 199
    assert batches.unigram_entropy(18, 20) is None, "the second epoch repeats the text"


# The shards are only read, so that all examples may share them.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    step=st.integers(min_value=0, max_value=10**6),
    seed=st.integers(min_value=0, max_value=2**64 - 1),
    cuts=st.sets(st.integers(min_value=1, max_value=11), max_size=4),
    objective=st.sampled_from([None, DOCUMENTS, WORDS, PAIRS]),
)
def test_slices_of_any_world_make_the_same_batch(small_tokens, step, seed, cuts, objective) -> None:
    """Ranks, micro-batches and restarts are slices; masks are drawn for each anew."""
    batches = Batches(small_tokens, 8, 12, seed, objective)
    whole = batches.slice(step, 0, 12)
    edges = [0, *sorted(cuts), 12]
    parts = [batches.slice(step, a, b) for a, b in itertools.pairwise(edges)]
    for expected, *pieces in zip(whole, *parts, strict=True):
        if expected is None:
            assert not any(part is not None for part in pieces)
        else:
            assert np.array_equal(np.concatenate(pieces), expected)


def test_a_document_begins_with_the_separator_before_it() -> None:
    window = np.array([[5, 0, 7, 8, 0, 0, 9, 4]])
    arrays = Causal(separator=0)(window, 0, 0, 0)
    assert arrays.segments is not None and arrays.weights is None
    assert arrays.inputs.tolist() == [[5, 0, 7, 8, 0, 0, 9]]
    assert arrays.segments.tolist() == [[1, 2, 2, 2, 3, 4, 4]]


def test_masks_are_drawn_from_ordinary_tokens_in_their_shares() -> None:
    tokens = np.arange(64 * 513).reshape(64, 513) % 100
    masked = Masked(0.15, mask_token=101, special=frozenset({0, 7, 101}), vocab_size=100)
    inputs, targets, weights, _ = masked(tokens, 3, 5, 0)
    assert weights is not None
    chosen = weights[:, 0] == 1
    assert np.array_equal(targets, tokens[:, :-1])
    assert not np.isin(targets[chosen], [0, 7]).any() and (inputs == targets)[~chosen].all()
    assert chosen.mean() == pytest.approx(0.15 * 0.98, abs=0.005)
    hidden, kept = (inputs == 101)[chosen], (inputs == targets)[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.02)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 100, abs=0.02)
    assert len(np.unique(inputs[chosen & (inputs != targets) & (inputs != 101)])) > 90
    for other in ((4, 5, 0), (3, 6, 0), (3, 5, 1)):
        assert not np.array_equal(masked(tokens, *other).inputs, inputs)
    # Masks are part of every recorded result; changing them changes them all.
    assert np.flatnonzero(weights[0])[:8].tolist() == [6, 13, 18, 19, 21, 28, 29, 32]


@pytest.mark.parametrize("prefix", [None, "##"])
def test_of_a_word_all_tokens_are_hidden_or_none(prefix: str | None) -> None:
    text = ["<s>", "\u0120the", "\u0120quick", "er", "2", ".", "\u0120", "fox", "es", "\u010a", "a"]
    if prefix:
        text = ["<s>", "the", "quick", "##er", "##2", ".", "a", "fox", "##es", "b", "c"]
    words = Words.of({token: n for n, token in enumerate(text) if n}, len(text) + 1, prefix)
    line = np.arange(len(text) + 1)[np.newaxis]
    assert words.first(line)[0].tolist() == [0, 1, 2, 2, 2, 5, 6, 7, 7, 9, 10, 11]
    masked = Masked(0.5, 11, frozenset({0, 11}), 11, words)
    weights = masked(np.tile(line, (200, 1)), 0, 0, 0).weights
    assert weights is not None and not weights[:, 0, 0].any()
    assert (weights[:, 0, 3:5] == weights[:, 0, 2:3]).all() and 60 < weights[:, 0, 2].sum() < 140
    assert (weights[:, 0, 7] == weights[:, 0, 8]).all() and (
        weights[:, 0, 6] != weights[:, 0, 7]
    ).any()


def test_pairs_of_segments_follow_one_another_or_not_and_are_padded_for_real() -> None:
    """Tokens count up within documents of 7 to 69, so that what follows a token is known."""
    lengths = np.arange(7, 70)
    text = np.concatenate([[0, *range(1000 * n, 1000 * n + n)] for n in lengths])
    starts = np.arange(400) * (len(text) - 33) // 400
    windows = np.stack([text[start : start + 33] for start in (*starts, *starts[::-1])])
    masked = Masked(0.15, 100_001, frozenset({0, *range(100_001, 100_005)}), 100_000)
    pairs = NextSentence(masked, 100_002, 100_003, 100_004, separator=0)
    inputs, targets, weights, segments = pairs(windows, 3, 5, 0)
    assert weights is not None and segments is not None
    assert inputs.shape == targets.shape == segments.shape == (400, 32)
    first, second, padding = (segments == n for n in (1, 2, 0))
    assert (inputs[:, 0] == 100_002).all() and (inputs[padding] == 100_004).all()
    ends = np.diff(segments, axis=1, append=0) != 0
    assert (inputs[ends & ~padding] == 100_003).all() and (ends & ~padding).sum() == 800
    assert 0.1 < padding.mean() < 0.3 and (padding.sum(axis=1) == 0).any()
    for row in range(400):
        a, b = targets[row, 1:][first[row, 1:]][:-1], targets[row][second[row]][:-1]
        assert len(a) and (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        follows = not len(b) or b[0] == a[-1] + 1
        assert follows or targets[row, 0] == 1, "within a document, unless the target says so"
    assert targets[:, 0].mean() == pytest.approx(0.5, abs=0.08)
    assert (weights[:, 1, 0] == 1).all() and weights[:, 1].sum() == 400
    chosen = weights[:, 0] == 1
    assert not chosen[ends | padding].any() and not chosen[:, 0].any()
    assert chosen.sum() / (first | second).sum() == pytest.approx(0.15 * 0.85, abs=0.03)
    assert (inputs == targets)[:, 1:][~chosen[:, 1:]].all()


@pytest.mark.parametrize("context", [5, 8])
def test_windows_without_text_make_pairs_all_the_same(context: int) -> None:
    pairs = NextSentence(Masked(0.5, 9, frozenset({0, 6, 7, 8, 9}), 6), 6, 7, 8, separator=0)
    inputs, _, weights, segments = pairs(np.zeros((4, context + 1), dtype=np.int64), 0, 0, 0)
    assert inputs[0].tolist() == [6, 7, 7, *[8] * (context - 3)]
    assert segments is not None and segments[0].tolist() == [1, 1, 2, *[0] * (context - 3)]
    assert weights is not None and weights[:, 0].sum() == 0


def test_a_special_token_that_text_has_is_refused(make_shards: MakeShards) -> None:
    folder = make_shards(100)
    with pytest.raises(CorpusError, match=r"mask_token 9 is an ordinary token.*from 100 up"):
        Batches(folder, 4, 4, 0, ObjectiveSpec("masked", 9))
    with pytest.raises(CorpusError, match=r"sep_token 7 is an ordinary token"):
        Batches(folder, 8, 4, 0, ObjectiveSpec("masked_next_sentence", 100, 0.1, 101, 7, 102))


def test_every_window_once_an_epoch_in_a_new_order(make_shards: MakeShards) -> None:
    batches = Batches(make_shards(401), context=4, global_batch=8, seed=0)  # 100 windows
    steps = 25  # two epochs of 100 windows: the 13th batch lies in both
    sequence = np.concatenate([batches.indices(step) for step in range(steps)])
    first, second = sequence[:100], sequence[100:]
    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)


def test_too_few_windows_for_a_batch(make_shards: MakeShards) -> None:
    folder = make_shards(41)
    assert Batches(folder, context=10, global_batch=4, seed=0).num_windows == 4
    with pytest.raises(CorpusError, match=r"41 tokens are 3 windows of 11; .* global batch 4"):
        Batches(folder, context=11, global_batch=4, seed=0)


def test_a_corpus_of_more_shards_than_file_descriptors_is_read(make_shards: MakeShards) -> None:
    """A shard that is mapped holds a descriptor: with all of them open this ends with EMFILE."""
    folder = make_shards(1600, 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + MAX_OPEN_SHARDS + 8, hard))
    try:
        batches = Batches(folder, context=4, global_batch=390, seed=1)
        inputs = batches.slice(0, 0, 390).inputs
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(batches.manifest.shards) == 400
    assert np.array_equal(inputs, batches.indices(0)[:, None] * 4 + np.arange(4))


@given(
    size=st.integers(min_value=1, max_value=2**62),
    seed=st.integers(min_value=0, max_value=2**80),
    epoch=st.integers(min_value=0, max_value=2**40),
    data=st.data(),
)
def test_stays_in_range_and_does_not_collide_at_any_size(size, seed, epoch, data) -> None:
    indices = data.draw(st.sets(st.integers(0, size - 1), max_size=50))
    values = permute(np.array(sorted(indices), dtype=np.int64), size, seed, epoch)
    assert len(set(values.tolist())) == len(indices)
    assert ((values >= 0) & (values < size)).all()


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(3, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_smallest_type_that_fits(vocab_size: int, dtype: str) -> None:
    assert smallest_dtype(vocab_size) == dtype
    assert np.iinfo(dtype).max >= vocab_size - 1


@given(
    parts=st.lists(st.lists(st.integers(0, 65535), max_size=12), max_size=10),
    shard_tokens=st.integers(min_value=1, max_value=9),
    dtype=st.sampled_from(["uint16", "uint32"]),
)
def test_shards_hold_the_stream_in_order(tmp_path_factory, parts, shard_tokens, dtype) -> None:
    folder = tmp_path_factory.mktemp("shards")
    arrays = (np.array(part, dtype=dtype) for part in parts)
    shards = write_shards(folder, dtype, arrays, shard_tokens)
    data = b"".join((folder / shard.file).read_bytes() for shard in shards)
    flat = [token for part in parts for token in part]
    assert np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).tolist() == flat
    assert all(shard.num_tokens == shard_tokens for shard in shards[:-1])
    assert len(shards) == -(-len(flat) // shard_tokens)
    for shard in shards:
        assert hashlib.sha256((folder / shard.file).read_bytes()).hexdigest() == shard.sha256


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(data, sort_keys=True, indent=1) + "\n")


def one_line(folder: Path, *words: str, verify: bool = False) -> None:
    with pytest.raises(CorpusError) as caught:
        Manifest.load(folder, verify=verify)
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, "python -m pipeline tokens"):
        assert word in message


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "shard-00001.bin").write_bytes(b"\0" * 78),
         ("shard-00001.bin has 78 bytes", "expected 80", "40 tokens of uint16")),
        (lambda folder: (folder / "shard-00002.bin").unlink(),
         ("shard-00002.bin does not exist", "40 bytes")),
        (lambda folder: edit(folder, num_tokens=99), ("$.num_tokens", "99", "sum 100")),
    ],
    ids=["cut", "missing", "another number"],
)  # fmt: skip
def test_what_is_seen_without_reading_the_tokens(make_shards: MakeShards, damage, words) -> None:
    folder = make_shards(100, 40)
    damage(folder)
    one_line(folder, *words)


@pytest.mark.parametrize("name", ["shard-00000.bin", "tokenizer.json"])
def test_changed_bytes_are_found_by_verify(make_shards: MakeShards, name: str) -> None:
    folder = make_shards(100)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    Manifest.load(folder)
    one_line(folder, name, "SHA-256", verify=True)


def test_a_rank_reads_only_its_slice(make_shards: MakeShards) -> None:
    folder = make_shards(500, 10)
    batches = Batches(folder, context=4, global_batch=4, seed=0)
    window = int(batches.indices(0)[1])
    needed = {window * 4 // 10, (window * 4 + 4) // 10}
    expected = batches.slice(0, 1, 2)[0]
    for number in set(range(50)) - needed:
        path = folder / f"shard-{number:05d}.bin"
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert np.array_equal(Batches(folder, 4, 4, seed=0).slice(0, 1, 2)[0], expected)


def test_what_was_verified_is_not_read_again(make_shards: MakeShards, monkeypatch) -> None:
    """A study has hundreds of runs, and a corpus may be terabytes."""
    folder = make_shards(100, 40)
    manifest = Manifest.load(folder, verify=True)
    assert [shard.num_tokens for shard in manifest.shards] == [40, 40, 20]
    text = (folder / "manifest.json").read_bytes()
    assert manifest.sha256 == hashlib.sha256(text).hexdigest()
    hashed = "pipeline.corpus.manifest.sha256_of_file"
    monkeypatch.setattr(hashed, lambda path: pytest.fail(f"{path} was read again"))
    assert Manifest.load(folder, verify=True) == manifest
