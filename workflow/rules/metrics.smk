# Records of all runs -> one validated tidy table. A record that is missing or invalid stops here.

METRICS = f"{RESULTS}/metrics/metrics.parquet"


rule metrics:
    input:
        study=STUDY_FILE,
        records=RECORDS,
        steps=STEPS,
        yardstick=YARDSTICK,
        code=[
            *files("pipeline/metrics/*.py"),
            "pipeline/planner/memory.py",
            "pipeline/resolved.py",
            *files("pipeline/models/*/arithmetic.py"),
            *files("pipeline/strategies/*.py"),
            *files("pipeline/strategies/*/plan.py"),
            "pipeline/models/__init__.py",
            "pipeline/parallel/mesh.py",
            "pipeline/schemas/metrics.schema.json",
            "pipeline/schemas/yardstick.schema.json",
        ],
    output:
        METRICS,
    log:
        f"{RESULTS}/logs/metrics.txt",
    params:
        runs=lambda wildcards, input: str(Path(input.records[0]).parents[3]),
        yardstick=option("yardstick"),
    shell:
        "python -m pipeline metrics --study {input.study} --runs {params.runs} {params.yardstick}"
        " --out {output} 2> >(tee {log} >&2)"
