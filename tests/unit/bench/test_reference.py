"""Both of each pair of `bench.reference` take the same steps; the page has the record."""

import json
import subprocess
import sys
from pathlib import Path

from bench.reference import PAIRS, runs_here, table

RECORD = Path("bench/results/reference.json")


def test_all_pairs_are_written_with_their_ranks(tmp_path: Path) -> None:
    """Those of four ranks, too, take the same steps."""
    out, page = tmp_path / "reference.json", tmp_path / "page.md"
    words = [sys.executable, "-m", "bench.reference", f"--out={out}"]
    subprocess.run([*words, "--size=tiny", "--minutes=0"], check=True, capture_output=True)
    pairs = json.loads(out.read_text())["pairs"]
    expected = sorted(((p.strategy, p.ranks) for p in PAIRS if runs_here(p)), key=lambda p: p[1])
    assert [(one["strategy"], one["ranks"]) for one in pairs] == expected
    assert all(one["loss_deviation"] < 1e-6 for one in pairs)
    page.write_text("<!-- reference: begin -->\n<!-- reference: end -->\n")
    subprocess.run([*words, f"--page={page}"], check=True)
    assert page.read_text().count("\n| `") == len(expected)


def test_the_page_has_the_table_of_the_record() -> None:
    text = Path("docs/strategies.md").read_text()
    begin, end = "<!-- reference: begin -->\n", "\n<!-- reference: end -->"
    assert text.split(begin)[1].split(end)[0] == table(json.loads(RECORD.read_text())), (
        f"renew it: python -m bench.reference --out {RECORD} --page docs/strategies.md"
    )
