"""Options and fixtures of the whole suite."""

from pathlib import Path

import pytest

from tests.system.image import image, singularity

__all__ = ["image", "singularity"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one way to move golden files."""
    parser.addoption(
        "--write-golden", action="store_true", help="write tests/golden/*.json anew, then compare"
    )


@pytest.fixture(scope="session")
def small_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real token shards of a small text that this function writes."""
    from pipeline.corpus.build import TokensSpec, build

    folder = tmp_path_factory.mktemp("tokens")
    words = "the quick brown fox jumps over a lazy dog while seven wizards box".split()
    text = "\n\n".join(" ".join(words[i % 13 :] + words[: i % 7]) for i in range(400))
    (folder / "text.txt").write_text(text)
    spec = {
        "corpus": {"source": "text", "paths": [str(folder / "text.txt")], "document": "block"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "context": 16,
        "model_vocab_size": 300,
        "min_tokens": 129,
    }
    build(TokensSpec.from_dict(spec), folder / "tokens", 1)
    return folder / "tokens"
