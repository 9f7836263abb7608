# Records of all runs -> one validated tidy table. A record that is missing or invalid stops here.
METRICS = f"{RESULTS}/metrics/metrics.parquet"


rule metrics:
    input:
        study=STUDY_FILE,
        records=RUN_RECORDS,
        steps=[str(Path(record).with_name("steps.jsonl")) for record in RUN_RECORDS],
        code=[
            *Path("pipeline/metrics").glob("*.py"),
            "pipeline/schemas/metrics.schema.json",
        ],
    output:
        METRICS,
    log:
        f"{RESULTS}/logs/metrics.txt",
    params:
        runs=lambda wildcards, input: str(Path(input.records[0]).parents[3]),
    shell:
        "python -m pipeline metrics --study {input.study} --runs {params.runs} --out {output}"
        " 2> >(tee {log} >&2)"
