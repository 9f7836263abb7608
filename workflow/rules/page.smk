# The report: verdicts, figures, tables, every run and the environment on one self-contained page.
PAGE = f"{RESULTS}/report.html"


localrules:
    page,


rule page:
    input:
        study=STUDY_FILE,
        metrics=METRICS,
        verdicts=VERDICTS if CLAIM_FILES else [],
        figures=[path for path in FIGURES if path.endswith(".svg")],
        tables=[path for path in TABLES if path.endswith(".html")],
        code=[str(p) for p in Path("pipeline/page").glob("*") if p.is_file()],
    output:
        PAGE,
    log:
        f"{RESULTS}/logs/page.txt",
    params:
        figures=lambda wildcards, input: str(Path(input.figures[0]).parent),
        tables=lambda wildcards, input: str(Path(input.tables[0]).parent),
        runs=f"{RESULTS}/runs",
        verdicts=lambda wildcards, input: (
            f"--verdicts {input.verdicts}" if input.verdicts else ""
        ),
    shell:
        "python -m pipeline page --study {input.study} --metrics {input.metrics}"
        " {params.verdicts} --figures {params.figures} --tables {params.tables}"
        " --runs {params.runs} --out {output} 2> >(tee {log} >&2)"
