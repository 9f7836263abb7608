"""Studies that came out as nobody hopes go through every stage after training, by its command."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import figures, tables
from pipeline.__main__ import main
from pipeline.archive import layout
from pipeline.archive.layout import MANIFEST_FILE, STUDY_FILE
from pipeline.figures import theme
from pipeline.files import sha256_of_file, write_text
from pipeline.records import RunRecord
from pipeline.study.expansion import every_run
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from tests.fake_records import EMULATED, a_cell, make_manifest, make_record, make_study, put_record

Failure = Callable[[RunSpec], tuple[str, str] | None]


def unsupported(spec: RunSpec) -> tuple[str, str]:
    """Each run ended so, before a step."""
    return "unsupported", "there is no CUDA device"


def none(spec: RunSpec) -> None:
    """Each run is ok."""


def but_the_base(spec: RunSpec) -> tuple[str, str] | None:
    """No run that others are compared with."""
    return ("failed", "it was killed") if spec.cell == "c0" else None


def but_timed(spec: RunSpec) -> tuple[str, str] | None:
    """No timed run: those that are profiled or in real time alone."""
    return None if spec.profile or spec.world.real_time else ("timeout", "not done")


def every_other(spec: RunSpec) -> tuple[str, str] | None:
    """Of each cell some repeats, and on other nodes others."""
    return ("failed", "it was killed") if (spec.repeat + spec.world.nodes) % 2 else None


def cell(number: int, label: str = "", **more: Any) -> dict[str, Any]:
    """A cell of plain DDP."""
    return a_cell(f"c{number}", label=label, **more)


SMALL = {"workload": {"global_batch": 16, "accumulation_steps": 1, "steps": 8, "untimed_steps": 2,
                      "scaling": "strong", "checkpoint_every": 0}}  # fmt: skip
LONG = ("Wörter & <b>$x_1$</b> # 100 % | " * 40)[:990]
THREE = {"cells": [cell(0, strategy="single", nodes=[1]), cell(1), cell(2)], "repeats": 1,
         "cluster": {"nodes": [1, 2]}}  # fmt: skip
ONE = {"cells": [cell(0)], "repeats": 1, "claims": [], "cluster": {"nodes": [1]}}

STUDIES: dict[str, tuple[dict[str, Any], Failure]] = {
    "all unsupported": (THREE, unsupported),
    "no base": (THREE, but_the_base),
    "no timed run": (
        THREE | {"cluster": EMULATED | {"nodes": [1, 2], "real_time": True}}, but_timed,
    ),
    "every other run": (THREE | {"repeats": 7, "claims": []}, every_other),
    "no step takes another time": (
        THREE | {"repeats": 7, "claims": [], "profile": None, "alike": True}, none,
    ),
    "one cell, one run": (ONE, none),
    "long labels and reasons, and no number of nodes that two cells have": (
        {"cells": [cell(n, f"{n} {LONG}{n}", nodes=[2**n]) for n in range(3)], "repeats": 1,
         "title": LONG, "cluster": {"nodes": [1, 2, 4]}},
        lambda spec: ("failed", "a " * 4000) if spec.cell == "c1" else None,
    ),
    "twenty cells": (
        {"cells": [cell(n) for n in range(20)], "repeats": 1, "claims": [], "profile": None,
         "cluster": {"nodes": [1]}},
        none,
    ),
}  # fmt: skip
"""Changes to a good study, and how its runs ended."""


def finish(results: Path, changes: dict[str, Any], failure: Failure) -> Study:
    """Records of every run of the changed study below `results`."""
    study = make_study(
        **{"repeats": 2, "claims": ["bai2022"], "profile": {"steps": 4}, **SMALL, **changes}
    )
    alike = study.pop("alike", False)
    study = {key: value for key, value in study.items() if value is not None}
    study["cluster"] = make_study()["cluster"] | changes.get("cluster", {})
    write_text(results / STUDY_FILE, json.dumps(study) + "\n")
    write_text(results / MANIFEST_FILE, json.dumps(make_manifest()))
    tokens = sha256_of_file(results / MANIFEST_FILE)
    made = Study.of(study)
    for place, spec in enumerate(every_run(made)):
        folder, ended = results / "runs" / spec.folder, failure(spec)
        run = make_record(spec, ended, place).run
        run = {**run, "data": {**run["data"], "manifest_sha256": tokens}}
        # What a run did before it ended stays in its record.
        steps = [] if ended and ended[0] == "unsupported" else make_record(spec, None, place).steps
        if alike:
            steps = [replace(step, seconds=0.25, phases=None) for step in steps]
        put_record(folder, RunRecord(run, steps[: spec.world.size * 3] if ended else steps))
        write_text(folder / "spec.json", spec.to_json())
        write_text(folder / "log.txt", "a line\n" * 30)
    return made


def stages(study: Study, results: Path) -> list[tuple[str, ...]]:
    """The commands of the stages after training, as the rules call them, and those on the whole.

    What the paper is made from lies beside `results`.
    """
    of_study = ("--study", str(results / STUDY_FILE))
    metrics = ("--metrics", str(results / layout.METRICS_FILE))
    verdicts = str(results / "claims" / "verdicts.json")
    judged = ("--verdicts", verdicts) if study.claims else ()
    runs = ("--runs", str(results / "runs"))
    drawn, tabled = ("--figures", str(results / "figures")), ("--tables", str(results / "tables"))
    into = ("--generated", str(results.parent / "generated"), "--out", str(results / "paper"))
    claims = [("claims", *of_study, *metrics, "--out", verdicts)] if study.claims else []
    return [
        ("metrics", *of_study, *runs, "--out", metrics[1]),
        *claims,
        ("figure", *figures.catalogue.shown(study), *metrics, "--out", drawn[1]),
        ("table", *tables.catalogue.shown(study), *metrics, "--out", tabled[1]),
        ("paper", *of_study, *metrics, *judged, *drawn, *tabled, *into),
        ("page", *of_study, *metrics, *judged, *drawn, *runs,
         "--out", str(results / layout.REPORT_FILE)),
        ("archive", "--results", str(results), "--out", str(results.parent / "fake.zip")),
    ]  # fmt: skip


@pytest.fixture
def one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as SVG, with stand-ins for the others: embedding fonts takes half of the time."""
    save = theme.save

    def draw(figure: Any, folder: Path, name: str) -> None:
        save(figure, folder, name, ("svg",))
        for kind in ("pdf", "png"):
            (folder / f"{name}.{kind}").write_bytes(b"%PDF-1.4\n")

    monkeypatch.setattr(theme, "save", draw)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("one_format")
def test_every_stage_ends_well(tmp_path, capfd, name) -> None:
    results = tmp_path / "fake"
    study = finish(results, *STUDIES[name])
    for command in stages(study, results):
        status = main([*command])
        assert status == 0, (command[0], capfd.readouterr().err[-3000:])
    if name != "one cell, one run":
        return
    products = ("report.html", "figures/speedup.png", "tables/summary.md", "paper/paper.tex")
    for path in map(results.joinpath, products):
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert main([*command]) == 2, path  # the last one, `archive`
        assert f"{path} is not what a stage has made" in capfd.readouterr().err
        path.write_bytes(content)
