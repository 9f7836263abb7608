"""The table of verdicts in a Markdown file."""

import pytest

from pipeline.claims import readme
from pipeline.errors import ClaimError

TESTED = {
    "id": "faster",
    "verdict": "reproduced",
    "effect": {"value": 1.2345, "low": 1.1, "high": 1.4},
    "claimed": {"text": "above 1"},
}
UNTESTED = {"id": "memory", "verdict": "not testable here", "effect": None, "claimed": None}


def test_a_row_for_each_claim_with_a_verdict() -> None:
    lines = readme.block("smoke", [TESTED, UNTESTED]).splitlines()
    assert lines[2] == "| `faster` | reproduced | 1.23 [1.1, 1.4] | above 1 |"
    assert lines[-1].startswith("1 of the 2 claims could not be tested by the study `smoke`")
    assert len(lines) == 5


def test_only_what_is_between_the_marks_changes(tmp_path) -> None:
    file, (begin, end) = tmp_path / "README.md", readme.marks("smoke")
    file.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):
        readme.update(file, "smoke", [TESTED])
    text = file.read_text()
    assert text.startswith(f"before\n{begin}\n| claim") and text.endswith(f"{end}\nafter\n")
    assert "old" not in text and text.count("`faster`") == 1
    file.write_text("nothing")
    with pytest.raises(ClaimError, match="has no lines <!-- verdicts of smoke: begin -->"):
        readme.update(file, "smoke", [TESTED])
