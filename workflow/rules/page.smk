# The report: verdicts, figures, tables, every run and the environment on one self-contained page.
PAGE = f"{RESULTS}/report.html"


localrules:
    page,


rule page:
    input:
        study=STUDY_FILE,
        metrics=METRICS,
        verdicts=VERDICTS if CLAIM_FILES else [],
        figures=list(VECTORS.values()),
        tables=list(PAGES.values()),
        code=files("pipeline/page/*"),
    output:
        PAGE,
    log:
        f"{RESULTS}/logs/page.txt",
    params:
        figures=folder_of("figures"),
        tables=folder_of("tables"),
        runs=f"{RESULTS}/runs",
        verdicts=option("verdicts"),
    shell:
        "python -m pipeline page --study {input.study} --metrics {input.metrics}"
        " {params.verdicts} --figures {params.figures} --tables {params.tables}"
        " --runs {params.runs} --out {output} 2> >(tee {log} >&2)"
