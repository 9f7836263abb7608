"""Adding a figure is adding a file: its stage draws it, the paper shows it, none may be empty."""

import os
import re
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests.fake_records import make_table, write_table
from tests.programs import ran

STAGES = """
import sys
from pathlib import Path
from pipeline.__main__ import main
from pipeline.paper.manuscript import render
stage = ["figure", "--metrics", sys.argv[1], "--out", "figures"]
print(main([*stage, "peak"]), main([*stage, "typo"]))
shown = "{% for name in other_figures %}{{ figure(name) }}{% endfor %}"
print(render(shown, {}, Path("tables")))
"""


def test_the_figure_of_the_page_on_own_studies_is_one_file(tmp_path: Path) -> None:
    page = Path("docs/own-study.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name in ("pipeline", "paper", "workflow"):
        copytree(name, tmp_path / name, ignore=ignore_patterns("*.pyc.*"))
    (tmp_path / "pipeline/figures/peak.py").write_text(code)
    typo = code.replace("peak_memory_bytes", "peak_memory")
    (tmp_path / "pipeline/figures/typo.py").write_text(typo)
    metrics = write_table(make_table(repeats=2), tmp_path)

    done = ran(
        [sys.executable, "-c", STAGES, str(metrics)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    drawn_and_empty, shown = done.stdout.split("\n", 1)
    assert drawn_and_empty == "0 2", done.stderr
    assert "\nerror: figure typo is empty: pipeline/figures/typo.py picks" in done.stderr
    made = sorted(path.name for path in (tmp_path / "figures").glob("*.*g"))
    assert made == ["peak.png", "peak.svg"]
    assert shown.startswith("![Peak memory of the largest rank")
    assert "(figures/peak){#fig:peak" in shown
