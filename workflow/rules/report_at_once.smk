# Figures and tables in two jobs: starting Python for each takes longer than making most of them.
localrules:
    all_figures,
    all_tables,


rule all_figures:
    input:
        metrics=METRICS,
        verdicts=VERDICTS if CLAIM_FILES else [],
        code=[
            *[str(p) for p in Path("pipeline/figures").glob("*.py")],
            *[str(p) for p in Path("pipeline/reference").glob("*") if p.is_file()],
            *[str(p) for p in Path("workflow/config").glob("*/published.json")],
        ],
    output:
        FIGURES,
    log:
        f"{RESULTS}/logs/figures.txt",
    threads: EVERY_CORE
    params:
        names=FIGURE_NAMES,
        folder=f"{RESULTS}/figures",
        verdicts=lambda wildcards, input: (
            f"--verdicts {input.verdicts}" if input.verdicts else ""
        ),
    shell:
        "python -m pipeline figure {params.names} --metrics {input.metrics}"
        " {params.verdicts} --out {params.folder} --processes {threads}"
        " 2> >(tee {log} >&2)"


rule all_tables:
    input:
        metrics=METRICS,
        verdicts=VERDICTS if CLAIM_FILES else [],
        code=[
            "pipeline/text.py",
            *[str(p) for p in Path("pipeline/tables").glob("*.py")],
        ],
    output:
        TABLES,
    log:
        f"{RESULTS}/logs/tables.txt",
    params:
        names=TABLE_NAMES,
        folder=f"{RESULTS}/tables",
        verdicts=lambda wildcards, input: (
            f"--verdicts {input.verdicts}" if input.verdicts else ""
        ),
    shell:
        "python -m pipeline table {params.names} --metrics {input.metrics}"
        " {params.verdicts} --out {params.folder} 2> >(tee {log} >&2)"
