"""What the documents say of the code."""

import re
from pathlib import Path

STATISTICS = Path("docs/statistics.md").read_text(encoding="utf-8")


def test_modules_that_the_statistics_name_exist() -> None:
    named = set(re.findall(r"`(pipeline/[\w/.]+)`", STATISTICS))
    assert len(named) > 10
    assert [name for name in sorted(named) if not Path(name).is_file()] == []


def test_each_of_the_twelve_rules_stands_once_and_what_is_missing_is_said() -> None:
    rows = re.findall(
        r"^\| (\d+)\. .+? \| (met|partly|not met) \| (.+) \|$", STATISTICS, re.MULTILINE
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, 13))
    for number, met, where in rows:
        assert ("Not met:" in where) == (met != "met"), number
    words = ("zero one two three four five six seven eight nine ten eleven twelve").split()
    count = [met for _, met, _ in rows].count("met")
    assert f"So {words[count]} of the twelve rules are met" in STATISTICS


def test_tests_that_the_statistics_name_exist() -> None:
    files = {Path("tests/unit", name) for name in re.findall(r"`(\w+/test_\w+\.py)`", STATISTICS)}
    assert len(files) > 10
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"`(test_\w+)`", STATISTICS))
    assert len(named) > 8
    assert [name for name in sorted(named) if f"def {name}(" not in text] == []
