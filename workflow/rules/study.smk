# The study of the configuration -> the files that its jobs read.
localrules:
    study_file,
    tokens_spec,
    run_spec,


# The three small files that split a study: a job re-runs only when its own part has changed.
# Their texts are functions: Snakemake looks for wildcards in a string, and a title may hold `{x}`.
rule study_file:
    output:
        STUDY_FILE,
    log:
        f"{RESULTS}/logs/study_file.txt",
    params:
        text=lambda wildcards: json.dumps(config, sort_keys=True),
    shell:
        "printf '%s\\n' {params.text:q} > {output} 2> {log}"


rule tokens_spec:
    output:
        f"{RESULTS}/tokens.spec.json",
    log:
        f"{RESULTS}/logs/tokens_spec.txt",
    params:
        text=lambda wildcards: json.dumps(tokens_spec(STUDY), sort_keys=True),
    shell:
        "printf '%s\\n' {params.text:q} > {output} 2> {log}"


# A finished run keeps its spec where only its time limit or its checkpoints were changed. A function
# that took `output` would make a derived parameter, whose changes Snakemake ignores.
rule run_spec:
    output:
        f"{RESULTS}/runs/{{run}}/spec.json",
    log:
        f"{RESULTS}/logs/run_spec/{{run}}.txt",
    params:
        text=lambda wildcards: spec_to_write(
            RUNS[wildcards.run].spec, Path(RESULTS, "runs", wildcards.run)
        ).to_json(),
    shell:
        "printf '%s' {params.text:q} > {output} 2> {log}"
