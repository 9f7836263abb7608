"""The manuscript says what the runs did; PDF and LaTeX."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pypandoc
import pytest

from pipeline import figures, tables
from pipeline.claims.write import count, counted, read_verdicts
from pipeline.errors import SamestepError
from pipeline.metrics.bands import FIRST_STEPS
from pipeline.metrics.headline import headline
from pipeline.metrics.results import Results
from pipeline.paper import export, points
from pipeline.paper.manuscript import MANUSCRIPT, SOURCES, render, source
from pipeline.paper.numbers import collect
from pipeline.study.study import Study
from tests.fake_records import EMULATED, a_cell, altered, make_study, make_table, write_table
from tests.fake_records import made as made_table
from tests.fake_results import make_results, stage
from tests.programs import ran

SOURCE = source()


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return make_study(repeats=2, claims=["bai2022"], profile={"steps": 8})


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2, profile={"steps": 8})


@pytest.fixture(scope="module")
def folder(study: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_results(tmp_path_factory.mktemp("results"), study)


def text_of(
    study: dict[str, Any], table: pd.DataFrame, folder: Path, verdicts: Sequence[Any] = ()
) -> str:
    """The manuscript on one line, with the tables of `folder`."""
    numbers = collect(Study.of(study), Results(table), verdicts)
    return " ".join(render(SOURCE, numbers, folder / "tables").split())


def test_a_study_is_repeated_by_a_command_that_there_is(study, table, folder: Path) -> None:
    own, shipped = (text_of(study | {"study": one}, table, folder) for one in ("mine", "smoke"))
    assert "with the study's file and its text, run ``` make paper STUDY=FILE.yaml " in own
    assert "In a clean checkout, run ``` make paper ```" in shipped


@pytest.mark.parametrize("file", [MANUSCRIPT, points.FILE])
def test_no_number_is_typed_by_hand(file: str) -> None:
    body = source(file).split("---", 2)[2]
    # A formula's own constants, and those of a command, are no results.
    generated = r"\$\$.*?\$\$|```.*?```|\{\{.*?\}\}|\{%.*?%\}|\[-?@[^\]]*\]"
    prose = re.sub(generated, "", body, flags=re.DOTALL)
    assert re.findall(r"\S*\d\S*", prose) == []


def test_every_figure_and_table_is_shown_once_and_referred_to() -> None:
    for kind, package in (("figure", figures), ("table", tables)):
        names = [*package.catalogue.captions]
        assert sorted(re.findall(rf'\b{kind}\("(\w+)"\)', SOURCE)) == names
        own = re.findall(r'\bcaption\("(\w+)"', SOURCE) if kind == "table" else []
        assert set(re.findall(rf'see_{kind}\("(\w+)"\)', SOURCE)) == {*names, *own}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ runs.invented }}", "invented"),
        ('{{ figure("nothing") }}', "shows the unknown figure 'nothing'"),
        ('{{ see_table("scaling") }}', "refers to, but does not show, 'scaling'"),
        ("{% if %}", r"manuscript\.md:1"),
    ],
)
def test_an_unknown_name_is_an_error(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=message):
        render(source, {"runs": {}}, tmp_path)


WEAK = make_study()["workload"] | {"scaling": "weak", "global_batch": 4}
OWN = [
    cell | ({"workload": {"global_batch": 8}, "options": {"bucket_cap_mb": 1}}
            if cell["name"] == "dps" else {})
    for cell in make_study()["cells"]
]  # fmt: skip
SAID: dict[str, tuple[dict[str, Any], list[str]]] = {
    "what ran": (
        {"repeats": 2, "profile": {"steps": 8}},
        ["Of 32 timed and 16 profiled runs, 38 finished", "oom in 1 of 2 runs at 4 nodes",
         "more ranks than there are cores", "Scaling is strong"],
    ),
    "emulated nodes": (
        {"repeats": 2, "cluster": EMULATED},
        ["(200 Mbit/s and 1 Gbit/s; packets of 9000 bytes)", "at most 2 here",
         "emulated times are off was not measured here", "time-out is dilated too"],
    ),
    "another corpus, weak scaling and no single device": (
        {"repeats": 1, "cells": [a_cell("dps", label="DDP * [a_b]")], "workload": WEAK,
         "corpus": {"source": "json", "paths": ["data/tang_poems.json"]},
         "tokenizer": {"kind": "char"}},
        ["the strings of `tang_poems.json`", "one token a character", "Scaling is weak",
         "## Throughput and scaled speedup", r"DDP \* \[a\_b\]", "(not the same global batch)",
         "same step wherever the global batch is the same. Before"],
    ),
    "beginnings": (
        {"repeats": 2, "beginnings": {"steps": 8, "whole": ["single/n1", "dps/n2"]}},
        ["of `single/n1` and `dps/n2` takes all of them, every other run the first 8. Nodes"],
    ),
    "settings of a cell": (
        {"repeats": 2, "cells": OWN, "compares": ["global_batch"]},
        ["| workload.global\\_batch = 8 and options.bucket\\_cap\\_mb = 1 |",
         "what a cell sets for itself stands in the table of cells",
         f"the global batch is {make_study()['workload']['global_batch']} sequences ("],
    ),
}  # fmt: skip
UNSAID = {
    "what ran": "NOT EQUAL",
    "emulated nodes": "real time",
    "settings of a cell": "at every world size",
}


@pytest.mark.parametrize("case", SAID)
def test_the_text_follows_the_study(case: str, folder: Path) -> None:
    changes, said = SAID[case]
    text = text_of(make_study(**changes), make_table(**changes), folder)
    assert [words for words in said if words not in text] == []
    assert case not in UNSAID or UNSAID[case] not in text


def test_the_environment_tells_what_emulated_nodes_got() -> None:
    changes, _ = SAID["emulated nodes"]
    table = make_table(**changes)
    stalled = table.index[table["metric"] == "stalled"]
    table.loc[stalled[:4], "value"] = 1.0
    told = made_table("environment", table)[0].set_index("item")["value"]
    assert told["Emulated: rate into a node [Mbit/s]"] == "190 to 950"
    assert "Emulated: copies of a world" not in told, "those of earlier records"
    assert told["Emulated: runs that stalled"] == f"4 of {len(stalled)}"


def test_the_configuration_of_a_model_and_what_it_learns_are_said(study, table, folder) -> None:
    bert = {"family": "transformers", "architecture": "BertForMaskedLM"}
    model = study["model"] | bert | {"config": {"intermediate_size": 48}}
    objective = {"kind": "masked", "mask_token": 5, "whole_words": True}
    text = text_of(study | {"model": model, "objective": objective}, table, folder)
    assert "The model is BertForMaskedLM [@wolf2020] with" in text
    assert ", and by its configuration `intermediate_size: 48`. It learns to tell the 15 %" in text


def test_a_cell_out_of_tolerance_is_said_aloud(study, table, folder) -> None:
    broken = altered(table, {"metric": "parity_verdict", "cell": "dps"}, text="NOT EQUAL")
    mixed = {"metric": "mixed", "cell": "dps", "nodes": 2}
    broken = altered(broken, mixed, value=1.0, text="torch 2.12 and 2.13")
    text = text_of(study, broken, folder)
    assert "Not all cells computed the same training" in text
    assert "**NOT EQUAL: Distributed Parameter Server (DDP) at 1 node against single" in text
    assert "at 2 nodes: the runs differ in torch 2.12 and 2.13" in text
    assert f"over the first {FIRST_STEPS} steps" in text


def test_where_the_test_does_not_decide_nothing_is_called_faster(study, table, folder) -> None:
    text = text_of(study, table, folder)
    # Abstract and results: what stands there is said of the data.
    abstract, rest = text.split("# Introduction")
    results = rest.split("# Results")[1].split("# Limits")[0]
    said = abstract + re.sub(r": Throughput of the row.*?\{#tbl:comparisons\}", "", results)
    assert not re.search(r"\b(faster|slower|fastest|slowest)\b(?! rank)", said)
    assert "the data do not decide which has more" in said and "**At" not in said


def test_the_bold_sentence_is_a_decided_comparison_at_equal_precision(folder: Path) -> None:
    study = make_study(repeats=6, profile={"steps": 8})
    table = make_table(repeats=6, profile={"steps": 8})
    numbers = headline(Results(table))
    told = numbers["result"]
    assert numbers["decided"] and "Distributed Parameter Server (DDP) had a throughput of " in told
    assert "times that of" in told and "AMP" not in told, "the fastest of all runs, in bf16"
    assert "Exposed (not overlapped) communication was" in numbers["why"]
    said = text_of(study, table, folder)
    assert f"**{told}".split("[")[0] in said


def test_claims_have_a_section_of_their_own(study, table, folder) -> None:
    verdicts = read_verdicts(folder / "verdicts.json")
    text, plain = (text_of(study, table, folder, given) for given in (verdicts, ()))
    # Claims on one effect count once.
    effects = count(verdicts)
    assert sum(effects.values()) < len(verdicts) and effects["undecided"] > 0
    assert text.count(counted(verdicts)) == 2 and "Published claims" not in plain
    assert "A study such as that of Bai" in text and "such as that" not in plain
    assert "is not linear, because of communication: *not testable here in all 3 parts*" in text
    assert "**None was tested at the scale it was made at**" in text
    # Tables of cells and of claims are the manuscript's own; the environment's stands last.
    environment = len(tables.catalogue.shown(Study.of(study))) + 1
    assert f"the commit in Table {environment + 1}" in text
    assert f"the commit in Table {environment}" in plain


def test_a_name_cannot_leave_its_code_span() -> None:
    corpus = {"source": "hub", "name": "x`<img src=/etc/hosts>`{=html}\n\n# y", "split": "`"}
    study = make_study(
        corpus=corpus, tokenizer={"kind": "pretrained", "name": "`a`", "revision": None}
    )
    shown = collect(Study.of(study), Results(make_table()))["corpus"]
    assert "`` x`<img src=/etc/hosts>`{=html} # y ``" in shown["source"]
    assert "(split `` ` ``, " in shown["source"]
    assert shown["tokenizer"] == "the pretrained tokeniser `` `a` ``"


REAL = {**make_study()["cluster"], "network": "real"}
LIMITS = ["Emulated nodes share one machine", "Nodes on the loopback are groups of processes",
          "Nodes were joined by a real network"]  # fmt: skip
NETWORKS: dict[str, tuple[dict[str, Any], Any, list[int]]] = {
    "loopback": ({}, None, [1]),
    "real": ({"cluster": REAL}, None, [2]),
    "none": ({"cluster": EMULATED}, lambda spec: True, [1]),
    "mixed": ({"cluster": EMULATED}, lambda s: s.repeat == 0 and s.world.nodes > 1, [0, 1]),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_the_limits_name_the_networks_that_the_runs_had(case: str, folder: Path) -> None:
    changes, fell_back, said = NETWORKS[case]
    study = make_study(repeats=2, **changes)
    made = make_table(repeats=2, fell_back=fell_back, **changes)
    limits = text_of(study, made, folder).split("# Limits")[1]
    assert [place for place, text in enumerate(LIMITS) if text in limits] == said
    reason = "could not have (the kernel lets no user make network namespaces)"
    assert (reason in limits) == (fell_back is not None)


def test_the_paper_says_by_which_clock_its_throughputs_are(folder: Path) -> None:
    table = make_table()
    assert "tokens of a step over the median step time. Speedup" in text_of(
        make_study(), table, folder
    )
    of_study = table[table["metric"] == "compares"].assign(metric="throughput_clock")
    text = text_of(make_study(), pd.concat([table, of_study]), folder)
    assert "over the mean time of steps that run freely" in text


def test_the_accuracy_of_this_machine_is_a_table(tmp_path: Path) -> None:
    cluster = EMULATED | {"links": EMULATED["links"][1:], "real_time": True}
    study, made = make_study(repeats=6, cluster=cluster), make_table(repeats=6, cluster=cluster)
    write_table(made, tmp_path)
    assert stage(tmp_path, "table", *tables.catalogue.shown(Study.of(study))) == 0
    text = text_of(study, made, tmp_path)
    assert "in 36 runs between the others (Table" in text
    assert ": Median step times in real time, each node on cores of its own" in text
    assert "No time on more than 2 nodes was held against real time." in text


def test_profiled_runs_that_all_failed_leave_no_figure(folder: Path) -> None:
    profiled: dict[str, Any] = {"repeats": 2, "profile": {"steps": 8}}
    made = make_table(
        failures=lambda spec: ("oom", "no memory") if spec.profile else None, **profiled
    )
    text = text_of(make_study(**profiled), made, folder)
    split = text.partition("## Where the time of a step goes")[2].partition("## Step time")[0]
    assert "No profiled run finished" in split and "Figure" not in split
    assert "oom in 3 of 3 runs" in split


def test_numbers_of_a_wide_table_have_their_room_and_its_heads_wrap() -> None:
    """typst made the widest column of numbers narrower, which lay over the one before it."""
    heads = ["Cell", *(f"Schedule number {n}" for n in range(8))]
    wide = [heads, ["Annotated, data 2 x model 2", "55.3\u00a0[53.5,\u00a056.5]", *["18.4"] * 7]]
    few = [heads[:3], ["DDP", "18.4", "18.4"]]
    command = [pypandoc.get_pandoc_path(), "--from=markdown", f"--to={export.TYPST}"]
    command += ["--wrap=none", "--columns=100000", f"--lua-filter={SOURCES / 'literal.lua'}"]
    markdown = "\n".join(_pipe_table(rows) for rows in (wide, few))
    printed = ran(command, input=markdown, check=True).stdout
    [given] = re.findall(r"columns: \((.*)\)", printed)
    shares = [float(share.strip(" %")) for share in given.split(",")]
    assert len(shares) == 9 and sum(shares) <= 100.1
    assert shares[1] / shares[2] == pytest.approx((17 * 3.5 + 6) / (8 * 3.5 + 6), rel=0.01)
    assert "columns: 3" in printed


def _pipe_table(rows: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])) + "\n"


def test_a_person_s_own_pandoc_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.md").write_text("After [@bai2022] by Mr. Bai.\n")
    made = []
    for name in ("none", "own"):
        own = tmp_path / name / "pandoc"
        own.mkdir(parents=True)
        if name == "own":
            (own / "abbreviations").write_text("by\n")
            (own / "default.csl").write_text("<style/>")
        monkeypatch.setenv("XDG_DATA_HOME", str(own.parent))
        made.append(export.converted(tmp_path / "a.md", "pdf", ["--to=latex"]))
    assert "Mr.~Bai" in made[0] and made[0] == made[1]
