"""Values of the right type that mean nothing together, and forms in which YAML means another value.

`test_documents.py` changes one value of a document by its class; here is what only a reader of the
whole can refuse: two of a kind with one name, parts that do not fit, records and products that are
not of their study.
"""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_records import a_cell
from tests.hostile.entries import Laid
from tests.hostile.entry import call, refusal

LINK = {"name": "a", "rate_mbits": 100}
EMULATED = {"network": "emulated", "cores_per_node": 1}


def cell(number: int = 0, **changes: Any) -> dict[str, Any]:
    """An edit of one cell of the study."""
    return {"cells": {number: changes}}


def _of_texts(*paths: str) -> dict[str, Any]:
    return {"corpus": {"source": "text", "paths": [*paths], "document": "file"}}


def _of_hub(name: str) -> dict[str, Any]:
    about = {"split": "train", "revision": "0" * 40, "column": "text"}
    return {"corpus": {"source": "hub", "name": name, **about}}


def _tokeniser(name: str, revision: str | None) -> dict[str, Any]:
    return {"tokenizer": {"kind": "pretrained", "name": name, "revision": revision}}


def _beginning(steps: int, whole: str = "single/n1") -> dict[str, Any]:
    return {"beginnings": {"steps": steps, "whole": [whole]}}


STUDIES: dict[str, tuple[dict[str, Any], str]] = {
    "a name twice": (cell(1, name="single"), "cell name 'single' stands 2 times"),
    "a label twice": (cell(1, label="single"), "cell label 'single' stands 2 times"),
    "a label twice but for what nobody sees": (cell(1, label="sin\u200bgle"), "look alike"),
    "a label twice but for a line end": (
        {"cells": {0: {"label": "A b"}, 1: {"label": "A\nb"}}}, "look alike",
    ),
    "a label twice in another form of Unicode": (
        {"cells": {0: {"label": "caf\u00e9"}, 1: {"label": "cafe\u0301"}}}, "look alike",
    ),
    "a title of letters that show nothing": ({"title": "\u3164\u2800"}, "blank"),
    "a link that receives at its rate": (
        {"cluster": EMULATED | {"links": [LINK | {"receive_mbits": 100}]}}, "leave receive_mbits",
    ),
    "more nodes than addresses": ({"cluster": {"nodes": [256]}}, "at most 254"),
    "a link twice": (
        {"cluster": EMULATED | {"links": [LINK, LINK | {"rate_mbits": 2}]}},
        "link name 'a' stands 2 times",
    ),
    "a link of the loopback's name": (
        {"cluster": EMULATED | {"links": [LINK | {"name": "loopback"}]}}, "is that of no link",
    ),
    "a cell of the name that another has on the loopback": (
        cell(0, name="dps-loopback") | {"cluster": EMULATED | {"links": [LINK]}},
        "cell name 'dps-loopback' is that of 'dps'",
    ),
    "a link's condition on one node": (
        {"cluster": EMULATED | {"links": [LINK | {"jitter": 0.3}]}},
        "link 'a': jitter needs a cell on 2 nodes or more",
    ),
    "real time of a loopback": ({"cluster": {"real_time": True}}, "real_time belongs to cluster."),
    "emulated ranks of two threads": (
        {"cluster": EMULATED | {"links": [LINK], "cores_per_node": 2, "threads_per_rank": 2}},
        "cluster.threads_per_rank 2: dilated time counts the CPU seconds of one thread",
    ),
    "a node count twice": ({"cluster": {"nodes": [1, 1]}}, "nodes"),
    "nodes that the cluster has not": (cell(0, nodes=[3]), "single"),
    "a strategy's own file": (cell(0, strategy="_star"), "strategies"),
    "a strategy by its path": (cell(0, strategy="../ddp"), "strategies"),
    "a bucket of nothing": (cell(1, options={"bucket_cap_mb": 0}), "not from 0.001"),
    "a link too slow for the two ranks of a node": (
        {"cluster": EMULATED | {"links": [LINK | {"rate_mbits": 0.001}], "nodes": [1, 2],
                                "ranks_per_node": 2}}
        | {"cells": {0: {"nodes": [1], "ranks_per_node": 1}, 1: {"precision": "fp32"}}},
        "to send over link a",
    ),
    "more ranks than memory holds": (
        {"cluster": {"nodes": [1, 254], "ranks_per_node": 128}}
        | {"cells": {0: {"nodes": [1], "ranks_per_node": 1}},
           "workload": {"global_batch": 65024}}, "ranks on one machine need",
    ),
    "heads that do not divide": ({"model": {"num_heads": 3}}, "num_heads"),
    "nothing left to time": ({"workload": {"untimed_steps": 30}}, "untimed_steps"),
    "more profiled steps than there are": ({"profile": {"steps": 3}}, "profile.steps 3 after 1 un"),
    "a beginning as long as the run": (_beginning(3), "beginnings.steps 3 are no beginning of 3"),
    "a beginning that is not timed": (_beginning(1), "untimed_steps 1 leaves none"),
    "an end of a run that is none": (
        _beginning(2, "dps/n3"), "beginnings.whole names 'dps/n3'; use one of single/n1",
    ),
    "more runs than may be listed": (
        {"cells": [a_cell(f"c{n}", nodes=[1]) for n in range(200)], "repeats": 200},
        "40000 runs, over 10000",
    ),
    "a batch that is not divided": ({"workload": {"accumulation_steps": 64}}, "64"),
    "NCCL on a processor": ({"cluster": {"backend": "nccl"}}, "nccl"),
    "links of a loopback": ({"cluster": {"links": [LINK]}}, "has no cluster.links"),
    "emulated nodes without a link": ({"cluster": EMULATED}, "needs cluster.links"),
    "emulated GPUs": (
        {"cluster": EMULATED | {"device": "cuda", "links": [LINK]}}, "cluster",
    ),
    "a claim's file by a path": ({"claims": ["../bai2022"]}, "claims"),
    "a label that turns around": (cell(0, label="a\u2066b"), "cannot be printed"),
    "a corpus that is a device": (_of_texts("/dev/zero"), "device"),
    "a corpus that is a folder": (_of_texts("/"), "folder"),
    "a text twice": (_of_texts("text.txt", "./text.txt"), "stands twice"),
    "a text without a name": (_of_texts(" "), "corpus"),
    "a data set outside": (_of_hub("../../data"), "no name of a data set"),
    "a data set with a line end": (_of_hub("a/b\n"), "no name of a data set"),
    "a tokeniser of no kind": (
        {"tokenizer": {"kind": "x"}}, '"x" breaks enum: ["bpe", "wordpiece", "char", "pretrained"]',
    ),
    "a key of another kind of tokeniser": (
        {"tokenizer": {"kind": "char", "vocabulary": 9}},
        "unknown keys 'vocabulary' (additionalProperties); expected keys 'kind'",
    ),
    "a tokeniser that is no folder": (_tokeniser("no-such", None), "is no folder here"),
    "a tokeniser of a web address": (
        _tokeniser("https://example.com/a", "0" * 40), "no name of a tokeniser",
    ),
    "a branch for a commit": (_tokeniser("a/b", "main"), "full commit hash; null for a folder"),
    "a folder without a tokeniser": (_tokeniser(".", None), "tokenizer.json"),
    "a log that NCCL keeps for the record": (
        {"environment": {"NCCL_DEBUG": "WARN"}}, "environment has NCCL_DEBUG",
    ),
    "pairs of segments without their special tokens": (
        {"objective": {"kind": "masked_next_sentence", "mask_token": 3}}, "cls_token",
    ),
    "LAMB in DeepSpeed": (
        {"optimiser": {"name": "lamb"}} | cell(0, strategy="deepspeed"), "lamb",
    ),
    "rows under none": ({"model": {"pad_vocab_to": 1}}, "pad_vocab_to"),
    "the length of a schedule that has none": (
        {"optimiser": {"schedule": "constant", "schedule_steps": 9}}, "schedule_steps",
    ),
    "the length of a cell's schedule": (
        {"optimiser": {"schedule": "constant"}} | cell(0, optimiser={"schedule_steps": 9}),
        "belongs to the schedule linear",
    ),
    "a vocabulary over the model's": (
        {"tokenizer": {"kind": "bpe", "vocab_size": 300}, "model": {"vocab_size": 299}}, "300",
    ),
}  # fmt: skip
"""Changes to a good study, and what its refusal says."""

FORMS = {
    "sexagesimal": ("1:30", "1:30 is 90 in YAML"),
    "octal": ("010", "010 is 8 in YAML"),
    "octal in words": ("0o4", "global_batch"),
    "sexagesimal float": ("1:30.5", "in YAML"),
    "a set": ("!!set {4}", "set"),
    "true": ("yes", "global_batch"),
    "alias of nothing": ("*none", "is not YAML"),
}
"""Of a number in YAML."""

Prepare = Callable[[Path], Any]


def _put(name: str, content: bytes) -> Prepare:
    return lambda results: (results / name).write_bytes(content)


def _one_cell(results: Path) -> None:
    study = json.loads((results / "study.json").read_text())
    (results / "study.json").write_text(json.dumps(study | {"cells": study["cells"][:1]}))


def _many_lines(results: Path) -> None:
    path = results / "runs/single/n1/r0/steps.jsonl"
    path.write_bytes(path.read_bytes() * 20_000)


PRODUCTS: dict[str, tuple[Prepare, tuple[str, ...], str]] = {
    "a table that is none": (_put("tables/summary.md", b"text\n"), ("paper",), "no table"),
    "metrics of a cell that the study has not": (
        _one_cell, ("paper", "page"), "'dps', which the study 'fake' has not",
    ),
    "a million steps": (_many_lines, ("metrics", "compare"), "the steps of all ranks"),
}  # fmt: skip
"""What is done to the results of a study, which commands read them, and what they say."""


def changed(study: Any, changes: dict[Any, Any]) -> Any:
    """The study with the values at some places replaced."""
    for key, value in changes.items():
        is_inner = isinstance(value, dict) and key not in ("corpus", "tokenizer", "repeats")
        if is_inner and key != "options":
            study[key] = changed(study.get(key, {}) if isinstance(key, str) else study[key], value)
        else:
            study[key] = value
    return study


def test_a_study_whose_parts_do_not_fit(laid: Laid, here: Path) -> None:
    good = json.loads(laid.study.read_text())
    (here / "text.txt").write_text("text")
    wrong = []
    for name, (changes, words) in STUDIES.items():
        (here / "study.json").write_text(json.dumps(changed(copy.deepcopy(good), changes)))
        status, said = call(here, "check", "--study", "study.json")
        if status != 2 or words not in said:
            wrong.append(f"{name} -> {status}: {said}")
    assert not wrong, "\n".join(wrong)


def test_a_number_that_yaml_reads_as_another(laid: Laid, here: Path) -> None:
    text = yaml.safe_dump(json.loads(laid.study.read_text()))
    before = next(line for line in text.splitlines() if "global_batch: " in line)
    for name, (form, words) in FORMS.items():
        key = before.partition(":")[0]
        (here / "study.yaml").write_text(text.replace(before, f"{key}: {form}"))
        assert words in refusal(here, "check", "--study", "study.yaml"), name


SHOWN = "--study r/study.json --metrics r/metrics/metrics.parquet --figures r/figures"
COMMANDS = {
    "paper": f"paper {SHOWN} --tables r/tables --generated out/generated --out out/paper",
    "page": f"page {SHOWN} --runs r/runs --out out/report.html",
    "metrics": "metrics --study r/study.json --runs r/runs --out out/metrics.parquet",
    "compare": "compare r good",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_are_not_of_their_study(laid: Laid, here: Path, name: str) -> None:
    prepare, commands, words = PRODUCTS[name]
    (here / "good").symlink_to(laid.results)
    shutil.copytree(laid.results, here / "r")
    prepare(here / "r")
    for command in commands:
        status, said = call(here, *COMMANDS[command].split(), may_leave=True)
        assert status == 2 and words in said, (command, status, said)


def test_results_that_are_held_against_themselves(laid: Laid, here: Path) -> None:
    (here / "again").symlink_to(laid.results)
    assert "both" in refusal(here, "compare", laid.results, "again")


@pytest.mark.parametrize(
    "command",
    [
        "metrics --study good/study.json --runs good/runs",
        "train --spec good/runs/single/n1/r0/spec.json --tokens good/tokens",
    ],
)
def test_a_yardstick_of_what_counts_by_none(laid: Laid, here: Path, command: str) -> None:
    (here / "good").symlink_to(laid.results)
    words = f"{command} --yardstick good/study.json --out out".split()
    assert "leave " in refusal(here, *words)
