# All tables in one job, for the same reason as the figures.
from pipeline.tables import catalogue as table_catalogue

TABLE_NAMES = table_catalogue.shown(STUDY)
PAGES = {name: f"{RESULTS}/tables/{name}.html" for name in TABLE_NAMES}
TABLES = [path for path in PAGES.values()] + expand(
    f"{RESULTS}/tables/{{name}}.{{kind}}", name=TABLE_NAMES, kind=["tex", "md", "csv"]
)


localrules:
    tables,


rule tables:
    input:
        metrics=METRICS,
        verdicts=VERDICTS if CLAIM_FILES else [],
        code=["pipeline/fonts.py", "pipeline/text.py", *files("pipeline/tables/*.py")],
    output:
        [
            report(
                path,
                caption="../report/caption.rst",
                category="Tables",
                labels={"table": name},
            )
            for name, path in PAGES.items()
        ],
        TABLES[len(PAGES) :],
    log:
        f"{RESULTS}/logs/tables.txt",
    params:
        names=TABLE_NAMES,
        folder=out_folder,
        verdicts=option("verdicts"),
    shell:
        "python -m pipeline table {params.names} --metrics {input.metrics}"
        " {params.verdicts} --out {params.folder} 2> >(tee {log} >&2)"
