# All tables in one job, for the same reason as the figures.
from pipeline.tables import catalogue as table_catalogue

TABLE_NAMES = table_catalogue.shown(STUDY)
NUMBERS = {name: f"{RESULTS}/tables/{name}.csv" for name in TABLE_NAMES}
TABLES = [path for path in NUMBERS.values()] + expand(
    f"{RESULTS}/tables/{{name}}.{{kind}}", name=TABLE_NAMES, kind=["tex", "md"]
)


localrules:
    tables,


rule tables:
    input:
        metrics=METRICS,
        code=["pipeline/fonts.py", "pipeline/text.py", *files("pipeline/tables/*.py")],
    output:
        [
            report(
                path,
                caption="../report/caption.rst",
                category="Tables",
                labels={"table": name},
            )
            for name, path in NUMBERS.items()
        ],
        TABLES[len(NUMBERS) :],
    log:
        f"{RESULTS}/logs/tables.txt",
    params:
        names=TABLE_NAMES,
        folder=out_folder,
    shell:
        "python -m pipeline table {params.names} --metrics {input.metrics}"
        " --out {params.folder} 2> >(tee {log} >&2)"
