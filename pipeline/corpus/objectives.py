"""Training objectives: windows of tokens to the inputs, targets and weights of a batch.

An objective is a pure function of the windows, the seed, the step and their positions in the global
batch. Neither strategy nor world size enters, so that masks too are those of a single device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.study.spec import ObjectiveSpec

Tokens = npt.NDArray[np.int64]

REPLACED, RANDOM = 0.8, 0.1
"""Of the chosen tokens, the shares that become the mask token and any token; the rest stay as they
are (Devlin et al. 2019, arXiv 1810.04805)."""

SHORT, UNRELATED = 0.1, 0.5
"""Shares of sequences that are cut short, and whose second segment does not follow the first (the
paper's code, `create_pretraining_data.py`)."""

BLANKS = "\u0120\u010a\u0109\u010d\u2581"
"""Blanks as byte-level tokenisers and SentencePiece write them; to Python some are letters."""


class Arrays(NamedTuple):
    """Arrays that the model gets of some sequences; all but the weights are (sequences, context).

    `weights` are (sequences, losses, context): of each target in each loss of the model. Without
    them there is one loss, in which all count alike. `segments` number the parts of a sequence from
    1 on and are 0 in its padding.
    """

    inputs: Tokens
    targets: Tokens
    weights: npt.NDArray[np.float32] | None = None
    segments: Tokens | None = None


class Objective(Protocol):
    """Windows to what the model gets."""

    pairs: ClassVar[bool]
    """True where each sequence needs a second window, any other one."""

    def __call__(self, windows: Tokens, seed: int, step: int, start: int) -> Arrays:
        """The arrays of `windows` (sequences, context + 1); second ones come after the first.

        Their positions in the global batch are those from `start` on.
        """

    @staticmethod
    def learns(spec: ObjectiveSpec) -> str:
        """A sentence for the paper on what a model learns by it, as the study states it."""


@dataclass(frozen=True)
class Causal:
    """The next token is the target of each; all count alike.

    With a `separator` documents are segments, each of which begins with the separator before it.
    """

    separator: int | None = None
    pairs: ClassVar[bool] = False

    def __call__(self, windows: Tokens, seed: int, step: int, start: int) -> Arrays:
        """Nothing is drawn."""
        inputs, targets = windows[:, :-1], windows[:, 1:]
        if self.separator is None:
            return Arrays(inputs, targets)
        return Arrays(inputs, targets, segments=1 + np.cumsum(inputs == self.separator, axis=1))

    @staticmethod
    def learns(spec: ObjectiveSpec) -> str:
        """That borders count."""
        return "Documents that share a sequence are kept apart."


class Words(NamedTuple):
    """For each token whether it may go on with a word, and whether a word may go on after it."""

    goes_on: npt.NDArray[np.bool_]
    leads_on: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], size: int, prefix: str | None) -> Words:
        """Words of letters and digits; or of WordPiece, where what goes on has the `prefix`."""
        goes_on, leads_on = (np.full(size, False) for _ in range(2))
        for token, number in vocabulary.items():
            ends = [bool(c) and c.isalnum() and c not in BLANKS for c in (token[:1], token[-1:])]
            goes_on[number] = ends[0] if prefix is None else token.startswith(prefix)
            leads_on[number] = ends[1] if prefix is None else True
        return cls(goes_on, leads_on)

    def first(self, ids: Tokens) -> Tokens:
        """The place of the first token of each token's word, (sequences, context)."""
        begins = np.pad(~(self.goes_on[ids[:, 1:]] & self.leads_on[ids[:, :-1]]), ((0, 0), (1, 0)))
        return np.maximum.accumulate(np.where(begins, np.arange(ids.shape[1]), 0), axis=1)


@dataclass(frozen=True)
class Masked:
    """A `share` of the tokens, none of them `special`, is chosen; these alone have a weight.

    `vocab_size` is the tokeniser's, from which random tokens are drawn. With `words` all tokens of
    a word are chosen or none; each is then replaced by itself.
    """

    share: float
    mask_token: int
    special: frozenset[int]
    vocab_size: int
    words: Words | None = None
    pairs: ClassVar[bool] = False

    def __call__(self, windows: Tokens, seed: int, step: int, start: int) -> Arrays:
        """Each sequence has draws of its own, keyed by seed, step and position."""
        targets = windows[:, :-1]
        inputs, chosen = self.hide(targets, draws(len(targets), seed, step, start))
        return Arrays(inputs, targets, chosen[:, np.newaxis])

    def hide(
        self, targets: Tokens, generators: list[np.random.Generator]
    ) -> tuple[Tokens, npt.NDArray[np.float32]]:
        """The tokens with those that are chosen hidden, and 1 for these, 0 for all others."""
        numbers = [generator.random((3, targets.shape[1])) for generator in generators]
        choice, fate, token = np.stack(numbers, axis=1)
        if self.words is not None:
            choice = np.take_along_axis(choice, self.words.first(targets), axis=1)
        chosen = (choice < self.share) & ~np.isin(targets, list(self.special))
        any_token = (token * self.vocab_size).astype(np.int64)
        changed = np.where(fate < REPLACED, self.mask_token, any_token)
        inputs = np.where(chosen & (fate < REPLACED + RANDOM), changed, targets)
        return inputs, chosen.astype(np.float32)

    @staticmethod
    def learns(spec: ObjectiveSpec) -> str:
        """The share and kind of what is hidden."""
        hidden = "words" if spec.whole_words else "tokens"
        return f"It learns to tell the {100 * spec.share:g} % of the {hidden} that are hidden."


@dataclass(frozen=True)
class NextSentence:
    """BERT's two tasks: find the tokens that are `masked`, tell whether one text follows another.

    A sequence is [CLS] A [SEP] B [SEP] and padding. A begins the longest part of one document in
    its window, and B is the rest of it, or the beginning of that of a second window. The target of
    [CLS] tells which, 0 or 1, and has the weight of the second loss. Unlike in Devlin et al., a
    segment ends between any two tokens, since tokens do not tell sentences.
    """

    masked: Masked
    cls_token: int
    sep_token: int
    pad_token: int
    separator: int
    pairs: ClassVar[bool] = True

    def __call__(self, windows: Tokens, seed: int, step: int, start: int) -> Arrays:
        """As long as its document, each sequence is padded to the context."""
        firsts, seconds = np.split(windows, 2)
        shape = len(firsts), windows.shape[1] - 1
        ids, segments = np.full(shape, self.pad_token), np.zeros(shape, dtype=np.int64)
        unrelated = np.zeros(len(firsts), dtype=np.int64)
        generators = draws(len(firsts), seed, step, start)
        for row, generator in enumerate(generators):
            short, length, cut, other = generator.random(4)
            text = self._document(firsts[row])[: shape[1] - 3]
            if short < SHORT:
                text = text[: 2 + int(length * (len(text) - 1))]
            a, b = np.split(text, [1 + int(cut * (len(text) - 1))])
            unrelated[row] = other < UNRELATED
            if unrelated[row]:
                b = self._document(seconds[row])[: len(b)]
            line = [self.cls_token, *a, self.sep_token, *b, self.sep_token]
            ids[row, : len(line)] = line
            segments[row, : len(line)] = np.repeat([1, 2], [len(a) + 2, len(b) + 1])
        inputs, chosen = self.masked.hide(ids, generators)
        ids[:, 0] = unrelated
        weights = np.stack([chosen, np.zeros_like(chosen)], axis=1)
        weights[:, 1, 0] = 1
        return Arrays(inputs, ids, weights, segments)

    def _document(self, window: Tokens) -> Tokens:
        """The longest part of a window without a border of documents."""
        edges = np.flatnonzero(np.pad(window == self.separator, 1, constant_values=True))
        longest = int(np.diff(edges).argmax())
        return window[edges[longest] : edges[longest + 1] - 1]

    @staticmethod
    def learns(spec: ObjectiveSpec) -> str:
        """Both tasks."""
        return f"{Masked.learns(spec)[:-1]}, and whether one segment follows another."


KINDS: Mapping[str, type[Objective]] = {
    "causal": Causal,
    "masked": Masked,
    "masked_next_sentence": NextSentence,
}
"""Objectives by the `kind` of a study."""


def draws(count: int, seed: int, step: int, start: int) -> list[np.random.Generator]:
    """A generator for each of `count` sequences, keyed by seed, step and position from `start`."""
    return [
        np.random.Generator(np.random.Philox(counter=position << 128, key=seed + (step << 64)))
        for position in range(start, start + count)
    ]
