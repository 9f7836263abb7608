"""What Snakemake compares of the rules whose results are measurements; another text trains again.

Its trigger `code` holds the text of a rule's `shell` against the one that a result was made with.
To edit one of these texts is to train every finished study anew, so options that came later are in
`resources`, which are not compared.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXTS = {
    "tokens": (
        "python -m pipeline tokens --spec {input} --out {params.folder} --num-proc {threads}"
        " 2> >(tee {log} >&2)"
    ),
    "tokens_spec": "printf '%s\\\\n' {params.text:q} > {output} 2> {log}",
    "run_spec": "printf '%s' {params.text:q} > {output} 2> {log}",
    "train": (
        "python -m pipeline train --spec {input.spec} --tokens {params.tokens}"
        " --out {params.folder} {resources.image} --attempt {resources.attempt}"
    ),
}
TEXTS["train_on_nodes"] = TEXTS["train"] + " -- {resources.srun}"


@pytest.mark.parametrize("rule", TEXTS)
def test_the_text_of_a_rule_is_the_one_that_results_were_made_with(rule: str) -> None:
    rules = "".join(path.read_text() for path in sorted(Path("workflow/rules").glob("*.smk")))
    (body,) = re.findall(rf"^rule {rule}:\n(.*?)(?=^\S|\Z)", rules, re.M | re.S)
    shell = body.partition("    shell:\n")[2]
    assert "".join(re.findall(r'"(.*)"', shell)) == TEXTS[rule]


LOADED = """
import sys
import pipeline.metrics.build
import pipeline.models.gpt2.arithmetic
from pipeline import strategies
for name in strategies.names():
    strategies.load(name, {})
print(*(module for module in sys.modules if module.startswith("pipeline.")))
"""
ROOMS = ("metrics", "models", "parallel", "planner", "strategies")
NO_ARITHMETIC = {"pipeline.parallel.types"}
"""What strategies import for training alone."""


def test_an_edit_of_what_metrics_are_computed_by_makes_them_anew() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    loaded = {name for name in done.stdout.decode().split() if name.split(".")[1] in ROOMS}
    patterns = re.findall(r'"(pipeline/.*?)"', Path("workflow/rules/metrics.smk").read_text())
    listed = {path for pattern in patterns for path in Path().glob(pattern)}
    files = {name: Path(*name.split(".")).with_suffix(".py") for name in loaded}
    missing = {name for name, file in files.items() if file.is_file() and file not in listed}
    assert missing == NO_ARITHMETIC
