"""Make the tokeniser that a study names; all kinds are `tokenizers.Tokenizer` objects.

- `bpe`: byte-level byte-pair encoding trained on the corpus (Sennrich et al. 2016; GPT-2's form).
- `wordpiece`: pieces of lower-case words trained on the corpus (Schuster & Nakajima 2012; BERT's
  form, Devlin et al. 2019), with BERT's special tokens.
- `char`: one token a character, with the vocabulary of the corpus.
- `pretrained`: `tokenizer.json` of a folder, or of a hub repository at a pinned revision.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pipeline.corpus.sources import check_hub
from pipeline.corpus.text_store import TextStore
from pipeline.documents import read_document
from pipeline.errors import CorpusError, refuse
from pipeline.files import open_regular

SEPARATOR, UNKNOWN = "<|endoftext|>", "<unk>"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Of WordPiece, with ids from 0 on; [SEP] follows every document, as in BERT's own vocabularies."""
LETTERS = 1000
"""Most characters that WordPiece knows, as in the library; words with others are unknown."""
# Merges hardly change with more text than this, while time and memory would grow with the corpus.
TRAINING_CHARACTERS = 64 * 2**20


@dataclass(frozen=True)
class Tokeniser:
    """A tokeniser, the document separator, and what the manifest says about how it was made."""

    tokenizer: Tokenizer
    separator: str
    description: Mapping[str, Any]

    @property
    def separator_id(self) -> int:
        """Token that follows every document."""
        return self.tokenizer.get_vocab(with_added_tokens=True)[self.separator]

    @property
    def vocab_size(self) -> int:
        """The largest id plus one: what an embedding needs, gaps in the ids included."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def check_fits(self, model_vocab_size: int) -> None:
        """Raise CorpusError where the model has fewer embeddings than there are tokens."""
        if self.vocab_size > model_vocab_size:
            raise CorpusError(
                f"the {self.description['kind']} tokeniser has {self.vocab_size} entries; expected "
                f"at most model.vocab_size {model_vocab_size}, raise model.vocab_size or set "
                "tokenizer.vocab_size"
            )


def make_tokeniser(section: Mapping[str, Any], store: TextStore, cache: Path) -> Tokeniser:
    """The tokeniser of a study's `tokenizer` section, which its schema has checked."""
    match section["kind"]:
        case "bpe":
            return _train_bpe(store, section["vocab_size"])
        case "wordpiece":
            return _train_wordpiece(store, section["vocab_size"])
        case "char":
            return _characters(store.texts(), section.get("vocab_size"))
    return _pretrained(section["name"], section["revision"], cache)


def check_folder(section: Mapping[str, Any], model_vocab_size: int) -> None:
    """Raise CorpusError where a pretrained tokeniser in a folder has more entries than the model.

    Of one that is to be fetched it is seen once that is done.
    """
    if Path(name := section["name"]).is_dir():
        _pretrained(name, None, Path()).check_fits(model_vocab_size)


def reason_of(error: BaseException) -> str:
    """The reason of a refusal by the library, on one line; an interrupt is raised again.

    A panic of its Rust code is no Exception to Python, and of a hidden class.
    """
    if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
        raise error
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _train_bpe(store: TextStore, vocab_size: int) -> Tokeniser:
    """The 256 bytes, the separator and merges up to `vocab_size` entries; the separator is id 0."""
    every = -(-store.num_characters // TRAINING_CHARACTERS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(store.texts(every), trainer)
    return Tokeniser(tokenizer, SEPARATOR, {"kind": "bpe", "trained_on_every_nth_piece": every})


def _train_wordpiece(store: TextStore, vocab_size: int) -> Tokeniser:
    """The special tokens, letters at the beginning of a word and within one, and what joins them.

    The library numbers letters within words in the order of a hash table, another in every process,
    and joins of equally frequent pairs the one with lower numbers first. So it is given them as
    tokens that it must keep, in an order of our own.
    """
    every = -(-store.num_characters // TRAINING_CHARACTERS)
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    normalizer = tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    normal = (normalizer.normalize_str(text) for text in store.texts(every))
    known = min(LETTERS, (vocab_size - len(SPECIAL)) // 2)
    letters = [letter for letter in _by_frequency(normal) if not letter.isspace()][:known]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIAL, *(f"##{letter}" for letter in letters)],
        limit_alphabet=len(letters),
        initial_alphabet=letters,
        show_progress=False,
    )
    tokenizer.train_from_iterator(store.texts(every), trainer)
    # Anew: to this one the letters within words are special tokens.
    made = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=SPECIAL[1]))
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([*SPECIAL])
    return Tokeniser(made, "[SEP]", {"kind": "wordpiece", "trained_on_every_nth_piece": every})


def _by_frequency(texts: Iterable[str]) -> dict[str, int]:
    """Counts of the characters, from the most frequent on, equal ones by code point."""
    counts = Counter(chain.from_iterable(texts))
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _characters(texts: Iterable[str], vocab_size: int | None) -> Tokeniser:
    """The most frequent characters after the separator (id 0) and the unknown character (id 1).

    Byte-pair encoding without a merge is exactly one token a character, and needs no regular
    expression to split them.
    """
    counts = _by_frequency(texts)
    kept = [*counts] if vocab_size is None else [*counts][: vocab_size - 2]
    vocab = {SEPARATOR: 0, UNKNOWN: 1} | {character: i for i, character in enumerate(kept, 2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNKNOWN, cache_capacity=0))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([SEPARATOR, UNKNOWN])
    dropped = sum([*counts.values()][len(kept) :])
    return Tokeniser(tokenizer, SEPARATOR, {"kind": "char", "num_unknown_characters": dropped})


def _pretrained(name: str, revision: str | None, cache: Path) -> Tokeniser:
    """A tokeniser that exists, in a folder or on the hub; its own end-of-text token separates."""
    folder = Path(name)
    if folder.is_dir():
        file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    else:
        file, settings = _download(name, revision, cache)
    try:
        with open_regular(file) as content:
            tokenizer = Tokenizer.from_buffer(content.read())
    except BaseException as error:  # `tokenizers` raises the bare class for a bad file
        raise CorpusError(
            f"{file.name} of tokeniser {name!r} cannot be read ({reason_of(error)}); expected a "
            "file of the `tokenizers` library, correct tokenizer.name"
        ) from None
    dropout = getattr(tokenizer.model, "dropout", None)
    ids = list(tokenizer.get_vocab(with_added_tokens=True).values())
    refuse(CorpusError, f"tokeniser {name!r} ", [
        (dropout,
         f"has dropout {dropout or 0:g}, so it makes other tokens each time; set it to null in "
         "tokenizer.json"),
        (len({*ids}) < len(ids), "gives one id to several tokens; give each its own"),
    ])  # fmt: skip
    tokenizer.no_truncation()
    tokenizer.no_padding()
    description = {"kind": "pretrained", "name": folder.name if folder.is_dir() else name}
    separator = _separator(tokenizer, settings, name)
    return Tokeniser(tokenizer, separator, description | {"revision": revision})


def _download(name: str, revision: str | None, cache: Path) -> tuple[Path, Path]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    if revision is None:
        raise CorpusError(
            f"tokenizer.name {name!r} is no folder here and tokenizer.revision is null; expected "
            "a folder that holds tokenizer.json, or the full commit hash of the hub repository"
        )
    check_hub()
    try:
        file = Path(
            hf_hub_download(name, "tokenizer.json", revision=revision, cache_dir=str(cache))
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise CorpusError(
            f"tokeniser {name!r} at revision {revision} cannot be fetched "
            f"({' '.join(str(error).split())[:200]}); check tokenizer.name and the network"
        ) from None
    # Optional: without it `_separator` tries the usual names.
    with contextlib.suppress(EntryNotFoundError):
        hf_hub_download(name, "tokenizer_config.json", revision=revision, cache_dir=str(cache))
    return file, file.with_name("tokenizer_config.json")


def _separator(tokenizer: Tokenizer, settings: Path, name: str) -> str:
    """The end-of-text token that the settings name, else the first usual one in the vocabulary."""
    fix = "mend it or remove it"
    stated: Any = {}
    if settings.exists() or settings.is_symlink():
        stated = read_document(settings, "", CorpusError, fix)
    if not isinstance(stated, dict):
        raise CorpusError(f"{settings} is no mapping; {fix}")
    tokens = [stated.get("eos_token"), stated.get("sep_token"), SEPARATOR, "</s>", "[SEP]"]
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and tokenizer.token_to_id(text) is not None:
            return str(text)
    raise CorpusError(
        f"tokeniser {name!r} has no end-of-text token; expected eos_token or sep_token in "
        "tokenizer_config.json, add it or use another tokeniser"
    )
