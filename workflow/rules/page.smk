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
        code=[*files("pipeline/page/*"), *files("pipeline/tables/*.py")],
    output:
        PAGE,
    log:
        f"{RESULTS}/logs/page.txt",
    params:
        figures=folder_of("figures"),
        runs=f"{RESULTS}/runs",
        verdicts=option("verdicts"),
    shell:
        "python -m pipeline page --study {input.study} --metrics {input.metrics}"
        " {params.verdicts} --figures {params.figures} --runs {params.runs}"
        " --out {output} 2> >(tee {log} >&2)"
