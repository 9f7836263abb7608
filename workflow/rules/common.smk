# Paths and specs that the other rules share; the logic behind them is pipeline/spec.py.
import json

from pipeline import strategies
from pipeline.spec import expand as expand_study, run_order, tokens_spec
from pipeline.study import check_study

check_study(config, "configuration")
strategies.check(expand_study(config))
# More than any machine has: Snakemake lowers a job's threads to what --cores gives.
EVERY_CORE = 1024
STUDY = config["study"]
RESULTS = f"results/{STUDY}"
STUDY_FILE = f"{RESULTS}/study.json"
TOKENS = f"{RESULTS}/tokens"
RUNS = {run.run_id.partition("/")[2]: run for run in run_order(expand_study(config))}
PRIORITY = {run: len(RUNS) - place for place, run in enumerate(RUNS)}
RUN_RECORDS = [f"{RESULTS}/runs/{run}/run.json" for run in RUNS]


# The exact environment; used with --use-singularity, ignored without it.
container: "images/samestep.sif"


wildcard_constraints:
    run=r"[^/]+/n\d+/r\d+",


localrules:
    study_file,
    tokens_spec,
    run_spec,


# The three small files that split a study: a job re-runs only when its own part has changed.
rule study_file:
    output:
        STUDY_FILE,
    log:
        f"{RESULTS}/logs/study_file.txt",
    params:
        text=json.dumps(config, sort_keys=True),
    shell:
        "printf '%s\\n' {params.text:q} > {output} 2> {log}"


rule tokens_spec:
    output:
        f"{RESULTS}/tokens.spec.json",
    log:
        f"{RESULTS}/logs/tokens_spec.txt",
    params:
        text=json.dumps(tokens_spec(config), sort_keys=True),
    shell:
        "printf '%s\\n' {params.text:q} > {output} 2> {log}"


rule run_spec:
    output:
        f"{RESULTS}/runs/{{run}}/spec.json",
    log:
        f"{RESULTS}/logs/run_spec/{{run}}.txt",
    params:
        text=lambda wildcards: RUNS[wildcards.run].to_json(),
    shell:
        "printf '%s' {params.text:q} > {output} 2> {log}"
