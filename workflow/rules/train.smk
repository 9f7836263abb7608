# One job trains one run. It takes every core, so that a timed run never overlaps another job, and it
# depends on its own spec and the tokens alone.
rule train:
    input:
        spec=f"{RESULTS}/runs/{{run}}/spec.json",
        manifest=f"{TOKENS}/manifest.json",
    output:
        run=f"{RESULTS}/runs/{{run}}/run.json",
        steps=f"{RESULTS}/runs/{{run}}/steps.jsonl",
    log:
        f"{RESULTS}/runs/{{run}}/log.txt",
    # The scheduler takes the highest first: runs go in the random order of pipeline.spec.run_order.
    priority: lambda wildcards: PRIORITY[wildcards.run]
    threads: EVERY_CORE
    params:
        tokens=lambda wildcards, input: str(Path(input.manifest).parent),
        folder=lambda wildcards, output: str(Path(output.run).parent),
    shell:
        "python -m pipeline train --spec {input.spec} --tokens {params.tokens} --out {params.folder}"
