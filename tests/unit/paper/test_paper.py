import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline import figures, tables
from pipeline.claims.write import by_question, read_verdicts, total
from pipeline.errors import SamestepError
from pipeline.metrics.bands import FIRST_STEPS
from pipeline.paper.manuscript import render
from pipeline.paper.numbers import collect
from pipeline.study.study import Study
from tests.fake_records import a_cell, make_study, make_table
from tests.unit.paper.papers import SOURCE, collected, make_paper, text_of


def test_the_paper_is_the_same_bytes_twice(study, folder: Path, tmp_path: Path) -> None:
    for run in ("a", "b"):
        assert make_paper(folder, tmp_path / run) == 0
    one, other = (tmp_path / run / "paper" for run in ("a", "b"))
    pdf, latex = (one / "paper.pdf").read_bytes(), (one / "paper.tex").read_text()
    # What a machine can check of PDF/UA-1 typst has checked; it writes the part of the standard.
    assert b"<pdfuaid:part>1<" in pdf and pdf == (other / "paper.pdf").read_bytes()
    # Figures are included by a path relative to the file.
    folders = r"\{[^{}]*figures/"
    again = re.sub(folders, "{", (other / "paper.tex").read_text())
    assert len(latex) > 10_000 and re.sub(folders, "{", latex) == again
    included = re.findall(r"\{([^{}]*\.pdf)\}", latex)
    shown = figures.catalogue.shown(Study.of(study))
    assert sorted(Path(path).stem for path in included) == shown
    assert all((one / path).is_file() for path in included)


def test_no_number_is_typed_by_hand() -> None:
    body = SOURCE.split("---", 2)[2]
    # A formula's own constants are no results.
    formulas = re.sub(r"\$\$.*?\$\$", "", body, flags=re.DOTALL)
    prose = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\[-?@[^\]]*\]", "", formulas, flags=re.DOTALL)
    assert re.findall(r"\S*\d\S*", prose) == []


def test_every_figure_and_table_is_shown_once_and_referred_to() -> None:
    for kind, package in (("figure", figures), ("table", tables)):
        names = [*package.catalogue.captions]
        assert sorted(re.findall(rf'\b{kind}\("(\w+)"\)', SOURCE)) == names
        own = re.findall(r'\bcaption\("(\w+)"', SOURCE) if kind == "table" else []
        assert set(re.findall(rf'see_{kind}\("(\w+)"\)', SOURCE)) == {*names, *own}


def test_a_table_of_the_template_itself_is_numbered_too(tmp_path: Path) -> None:
    table = '| a |\n|:--|\n| b |\n\n{{ caption("own", "What it is") }}\n'
    text = render('See {{ see_table("own") }}.\n\n' + table, {}, tmp_path)
    assert "See Table 1." in " ".join(text.split())
    assert text.endswith("\n\n: What it is {#tbl:own}\n")


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


def test_numbers_are_plain_json(study: dict[str, Any], table: pd.DataFrame) -> None:
    numbers = collected(study, table)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["date"]["text"] == "2 January 2026"


def test_the_text_says_what_ran_and_what_did_not(study, table, folder) -> None:
    text = text_of(study, table, folder)
    assert "Of 32 timed and 16 profiled runs, 38 finished" in text
    assert "oom in 1 of 2 runs at 4 nodes" in text
    assert "NOT EQUAL" not in text
    assert "more ranks than there are cores" in text
    assert "Scaling is strong" in text


def test_the_configuration_of_a_model_and_what_it_learns_are_said(study, table, folder) -> None:
    bert = {"family": "transformers", "architecture": "BertForMaskedLM"}
    model = study["model"] | bert | {"config": {"intermediate_size": 48}}
    objective = {"kind": "masked", "mask_token": 5, "whole_words": True}
    text = text_of(study | {"model": model, "objective": objective}, table, folder)
    assert "The model is BertForMaskedLM [@wolf2020] with" in text
    assert (
        ", and by its configuration `intermediate_size: 48`. It learns to tell the 15 % of the "
        "words that are hidden. The text is" in text
    )


def test_a_cell_out_of_tolerance_is_said_aloud(study, table, folder) -> None:
    broken = table.copy()
    verdict = (broken["metric"] == "parity_verdict") & (broken["cell"] == "dps")
    broken.loc[verdict, "text"] = "NOT EQUAL"
    mixed = (broken["cell"] == "dps") & (broken["nodes"] == 2) & (broken["metric"] == "mixed")
    broken.loc[mixed, "value"], broken.loc[mixed, "text"] = 1.0, "torch 2.12 and 2.13"
    text = text_of(study, broken, folder)
    assert "Not all cells computed the same training" in text
    assert "**NOT EQUAL: Distributed Parameter Server (DDP) at 1 node against single" in text
    assert "at 2 nodes: the runs differ in torch 2.12 and 2.13" in text
    assert f"over the first {FIRST_STEPS} steps" in text


def results_of(study: dict[str, Any], table: pd.DataFrame, folder: Path) -> str:
    """Abstract and results: what stands there is said of the data."""
    text = text_of(study, table, folder)
    abstract, rest = text.split("# Introduction")
    tables = r": Cells against each other.*?\{#tbl:comparisons\}"
    return abstract + re.sub(tables, "", rest.split("# Results")[1].split("# Limits")[0])


NO_VERDICT = ("faster", "slower", "fastest", "slowest")


def test_where_the_test_does_not_decide_nothing_is_called_faster(study, table, folder) -> None:
    said = results_of(study, table, folder)
    assert not [word for word in NO_VERDICT if re.search(rf"\b{word}\b(?! rank)", said)]
    assert "the data do not decide which has more" in said and "::: {.finding}" not in said


def test_the_first_page_says_on_what_it_was_measured_before_it_says_what(
    study: dict[str, Any], table: pd.DataFrame, folder: Path
) -> None:
    first = text_of(study, table, folder).split("# Introduction")[0]
    where = "GPT-2 with 1.07 M parameters on 1, 2 and 4 nodes, up to 4 ranks that share 2 cores"
    assert f"subtitle: |- {where}" in first and f"*fake* trains {where}" in first
    assert "{#fig:throughput alt=" in first and "{#tbl:summary}" in first


def test_the_bold_sentence_is_a_decided_comparison_at_equal_precision(folder: Path) -> None:
    study = make_study(repeats=6, profile={"steps": 8})
    table = make_table(repeats=6, profile={"steps": 8})
    numbers = collected(study, table)["headline"]
    assert numbers["decided"] and numbers["lead"].startswith(numbers["measured_on"])
    assert "in fp32, Distributed Parameter Server (DDP) was faster than" in numbers["lead"]
    assert "AMP" not in numbers["lead"], "the fastest of all runs, in bf16"
    assert "Of a step, communication that no computing hides was" in numbers["why"]
    said = text_of(study, table, folder)
    assert f"**{numbers['lead']}".split("[")[0] in said


def test_a_chinese_corpus_weak_scaling_and_no_single_cell(folder: Path) -> None:
    changes: dict[str, Any] = {
        "repeats": 1,
        "cells": [a_cell("dps", label="DDP * [a_b]")],
        "corpus": {"source": "json", "paths": ["data/tang_poems.json"]},
        "tokenizer": {"kind": "char"},
    }
    changes["workload"] = {**make_study()["workload"], "scaling": "weak", "global_batch": 4}
    text = text_of(make_study(**changes), make_table(**changes), folder)
    assert "the strings of `tang_poems.json`" in text and "one token a character" in text
    assert "Scaling is weak" in text and "## Throughput and scaled speedup" in text
    assert "same step wherever the global batch is the same. Before" in text
    assert r"DDP \* \[a\_b\]" in text and r"global\_batch differ" in text


def test_the_optimiser_is_named_with_its_source(folder: Path) -> None:
    study = make_study(repeats=1)
    study["optimiser"] |= {"name": "lamb"}
    text = text_of(study, make_table(repeats=1), folder)
    assert "The optimiser is LAMB [@you2020] with learning rate" in text
    assert "@inproceedings{you2020," in Path("paper/references.bib").read_text()


def test_what_a_cell_sets_for_itself_is_said(folder: Path) -> None:
    study = make_study(repeats=2)
    own = {"workload": {"global_batch": 8}, "options": {"bucket_cap_mb": 1}}
    study["cells"][2] |= own
    study["compares"] = ["global_batch"]
    table = make_table(**{key: study[key] for key in ("repeats", "cells", "compares")})
    text = text_of(study, table, folder)
    assert "| workload.global\\_batch = 8 and options.bucket\\_cap\\_mb = 1 |" in text
    assert "what a cell sets for itself stands in the table of cells" in text
    assert "at every world size" not in text


def test_claims_have_a_section_of_their_own(study, table, folder, tmp_path) -> None:
    verdicts = read_verdicts(folder / "verdicts.json")
    numbers = collect(Study.of(study), table, verdicts)
    text = " ".join(render(SOURCE, numbers, folder / "tables").split())
    counts = numbers["claims"]
    # Claims on one effect count once.
    assert counts["total"] == total(verdicts) and counts["undecided"] > 0
    assert len(by_question(verdicts)) < len(verdicts)
    assert text.count(counts["counted"]) == 2
    assert "published figures and claims, each with its place" in text
    assert "is not linear, because of communication: *not testable here in all 3 parts*" in text
    assert "**None was tested at the scale it was made at**" in text


def test_numbers_of_figures_and_tables_follow_what_is_shown(study, table, folder) -> None:
    with_claims = collect(Study.of(study), table, read_verdicts(folder / "verdicts.json"))
    text = " ".join(render(SOURCE, with_claims, folder / "tables").split())
    # Tables of cells and of claims are the manuscript's own; the environment's stands last.
    environment = len(tables.catalogue.shown(Study.of(study))) + 1
    assert f"the commit in Table {environment + 1}" in text
    plain = text_of(study, table, folder)
    assert f"the commit in Table {environment}" in plain and "Published claims" not in plain


def test_a_name_cannot_leave_its_code_span() -> None:
    corpus = {"source": "hub", "name": "x`<img src=/etc/hosts>`{=html}\n\n# y", "split": "`"}
    study = make_study(
        corpus=corpus, tokenizer={"kind": "pretrained", "name": "`a`", "revision": None}
    )
    shown = collect(Study.of(study), make_table())["corpus"]
    assert "`` x`<img src=/etc/hosts>`{=html} # y ``" in shown["source"]
    assert "(split `` ` ``, " in shown["source"]
    assert shown["tokenizer"] == "the pretrained tokeniser `` `a` ``"
