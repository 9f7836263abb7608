# Records of all runs -> one validated tidy table. A record that is missing or invalid stops here.

METRICS = f"{RESULTS}/metrics/metrics.parquet"


# With adaptive repeats a round decides which cells need one more; it needs the rounds before it.
checkpoint round:
    input:
        study=STUDY_FILE,
        records=lambda wildcards: run_files(
            STUDY, RESULTS, int(wildcards.repeat), "run.json", checkpoints.round.get
        ),
    output:
        f"{RESULTS}/rounds/{{repeat}}.json",
    log:
        f"{RESULTS}/logs/rounds/{{repeat}}.txt",
    wildcard_constraints:
        repeat=r"\d+",
    params:
        runs=f"{RESULTS}/runs",
    shell:
        "python -m pipeline repeats --study {input.study} --runs {params.runs}"
        " --repeat {wildcards.repeat} --out {output} 2> >(tee {log} >&2)"


rule metrics:
    input:
        study=STUDY_FILE,
        records=of_all_runs("run.json"),
        steps=of_all_runs("steps.jsonl"),
        validation=VALIDATION if VALIDATED else [],
        yardstick=YARDSTICK,
        code=[
            *files("pipeline/metrics/*.py"),
            "pipeline/planner/memory.py",
            *files("pipeline/models/*/arithmetic.py"),
            *files("pipeline/strategies/*.py"),
            "pipeline/models/__init__.py",
            "pipeline/parallel/annotations.py",
            "pipeline/parallel/mesh.py",
            "pipeline/parallel/schedule.py",
            "pipeline/parallel/wire.py",
            "pipeline/schemas/emulation.schema.json",
            "pipeline/schemas/metrics.schema.json",
            "pipeline/schemas/yardstick.schema.json",
        ],
    output:
        METRICS,
    log:
        f"{RESULTS}/logs/metrics.txt",
    params:
        runs=f"{RESULTS}/runs",
        validation=option("validation"),
        yardstick=option("yardstick"),
    shell:
        "python -m pipeline metrics --study {input.study} --runs {params.runs} {params.validation}"
        " {params.yardstick} --out {output} 2> >(tee {log} >&2)"
