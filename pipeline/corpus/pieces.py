"""Cut long documents into pieces of bounded size, so that memory does not grow with a document.

A cut is made where a GPT-2 style pre-tokeniser separates words anyway: after a line end, or before
a space, that stands between two visible characters. The pieces depend on the text alone, never on
the chunks in which it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PIECE_CHARACTERS = 2**14


def split_document(
    chunks: Iterable[str], limit: int = PIECE_CHARACTERS
) -> Iterator[tuple[str, bool]]:
    """Yield `(piece, is_last)` of one document that arrives as `chunks` of any size.

    Every piece but the last has 1 to `limit` characters. A document without a visible character
    yields nothing.
    """
    rest, is_visible = "", False
    for chunk in chunks:
        text, start = rest + chunk, 0
        # White space alone waits: however much there is, it may turn out to be no document.
        is_visible = is_visible or bool(chunk.strip())
        while is_visible and len(text) - start > limit:
            stop = _cut(text, start, limit)
            yield text[start:stop], False
            start = stop
        rest = text[start:]
    if is_visible:
        yield rest, True


def _cut(text: str, start: int, limit: int) -> int:
    """The best place to end the piece that begins at `start`; needs `limit` + 1 characters."""
    stop = start + limit
    after_line = _between_visible(text, "\n", start + 1, stop)
    if after_line > 0:
        return after_line + 1
    before_space = _between_visible(text, " ", start + 1, stop)
    return before_space if before_space > 0 else stop


def _between_visible(text: str, mark: str, start: int, stop: int) -> int:
    """The last index in [start, stop) of `mark` between two visible characters, or -1."""
    at = text.rfind(mark, start, stop)
    while at >= 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at
        at = text.rfind(mark, start, at)
    return -1
