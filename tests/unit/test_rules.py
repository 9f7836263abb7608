"""What Snakemake compares of the rules whose results are measurements; another text trains again.

Its trigger `code` holds the text of a rule's `shell` against the one that a result was made with.
To edit one of these texts is to train every finished study anew, so options that came later are in
`resources`, which are not compared.
"""

import re
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
