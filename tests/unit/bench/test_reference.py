"""That both of a pair of `bench.reference` take the same steps, on a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.reference import PAIRS, Pair, compare, row, runs_here, sent, table
from tests.ranks import group_alone

RECORD = Path("bench/results/reference.json")
HERE = [pair for pair in PAIRS if pair.ranks == 2 and pair.package == "torch"]


@pytest.mark.parametrize(
    "pair", [p for p in HERE if p.strategy != "horovod"], ids=lambda p: f"{p.strategy}{p.options}"
)
def test_a_pair_takes_the_same_steps(pair: Pair) -> None:
    with group_alone():
        compared = compare(pair, "tiny", ends=0.0, steps=2)
        assert compared["loss_deviation"] < 1e-6 and compared["rounds"] == 6
        compared |= {"sent_bytes": sent(pair, "tiny")}
    assert row(compared).startswith(f"| `{pair.strategy}`")


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
