"""The table of verdicts in a Markdown file."""

import re
from pathlib import Path

import pytest

from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.types import NOT_TESTABLE, VERDICTS
from pipeline.claims.write import block, in_words, update_readme
from pipeline.errors import SamestepError
from pipeline.files import marks
from pipeline.metrics.results import Results
from pipeline.text import markdown
from tests.fake_records import make_table

TESTED = {
    "id": "tested",
    "sentence": "A is faster.",
    "verdict": "reproduced",
    "why": "the speed of A over B is 1.23 [1.10, 1.40], claimed above 1",
    "effect": {"value": 1.2345, "low": 1.1, "high": 1.4},
    "claimed": {"text": "above 1"},
    "scale": "made there, tested here",
    "notes": ["B ran in bf16, not fp16"],
}
UNDECIDED = TESTED | {"id": "undecided", "verdict": "undecided"}
UNTESTED = TESTED | {"id": "untested", "verdict": "not testable here", "effect": None}


def test_a_row_for_each_claim_with_an_effect() -> None:
    runs = "36 timed and 6 profiled runs"
    lines = block("smoke", [TESTED, UNDECIDED, UNTESTED], runs).splitlines()
    effect = "1.23 [1.10, 1.40] | above 1 |"
    assert lines[2] == f"| A is faster. | reproduced | {effect}"
    assert lines[3] == f"| A is faster. | undecided | {effect}"
    assert lines[-1].startswith(
        "The study `smoke`, 36 timed and 6 profiled runs. "
        "3 claims: 1 reproduced, 0 not reproduced, 1 undecided. "
        "1 claim cannot be tested on this hardware with these runs; the paper gives the reasons."
    )
    assert len(lines) == 6


def test_readme_shows_known_claims_of_a_shipped_study() -> None:
    claims = [claim for path in FOLDER.glob("*/claims.yaml") for claim in load_claims(path)]
    begin, end = marks("verdicts of smoke")
    table = Path("README.md").read_text().split(begin)[1].split(end)[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", table, re.MULTILINE)[1:]
    assert rows and {sentence for sentence, _ in rows} <= {markdown(c.sentence) for c in claims}
    assert {verdict for _, verdict in rows} <= {*VERDICTS} - {NOT_TESTABLE}


def test_only_what_is_between_the_marks_changes(tmp_path) -> None:
    file, (begin, end) = tmp_path / "README.md", marks("verdicts of smoke")
    file.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):
        update_readme(file, "smoke", [TESTED], Results(make_table()))
    text = file.read_text()
    assert text.startswith(f"before\n{begin}\n| published") and text.endswith(f"{end}\nafter\n")
    assert "old" not in text and text.count("A is faster.") == 1
    file.write_text("\n".join([begin, end, *marks("finding of smoke")]))
    update_readme(file, "smoke", [TESTED], Results(make_table()))
    told = file.read_text()
    # Three runs decide nothing: no bold sentence.
    assert "GPT-2 with 1.07 M parameters on 1, 2 and 4 nodes" in told and "**" not in told
    file.write_text("nothing")
    with pytest.raises(SamestepError, match="has no lines <!-- verdicts of smoke: begin -->"):
        update_readme(file, "smoke", [TESTED], Results(make_table()))


def test_what_leaves_a_claim_open_stands_beside_its_effect() -> None:
    effect = {"value": 1.2, "low": 1.1, "high": 1.3, "repeats": 6, "interval": "95 %"}
    one = {"effect": effect, "claimed": None}
    assert in_words(one)["measured"] == "1.20 [1.10, 1.30]"
    bias = "within the emulation's own bias of 29 % of the bound"
    assert in_words(one | {"against": bias})["measured"] == f"1.20 [1.10, 1.30]; {bias}"
    takes = "1.20 [1.10, 1.30]; to decide it takes at least real nodes"
    assert in_words(one | {"against": "", "takes": "real nodes"})["measured"] == takes
