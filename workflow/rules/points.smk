# A study of points that were measured elsewhere -> figure, tables, paper and page. Nothing trains.
import json
import sys

from pipeline.documents import read_document
from pipeline.errors import SamestepError, StudyError
from pipeline.study.load import check_points
from pipeline.tables.points import TABLES as POINTS_TABLES

# Snakemake has read the file already, with a reader that takes the last of two equal keys.
try:
    for path in workflow.configfiles:
        read_document(Path(path), "study file", StudyError)
    RESULTS = f"results/{check_points(dict(config), 'configuration').name}"
except SamestepError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
RECORDS = []
FIGURES = expand(f"{RESULTS}/figures/points.{{kind}}", kind=["svg", "pdf", "png"])
TABLES = expand(
    f"{RESULTS}/tables/{{name}}.{{kind}}", name=POINTS_TABLES, kind=["csv", "tex", "md"]
)
PAPER = [f"{RESULTS}/paper/paper.{kind}" for kind in ("pdf", "tex")]
PAGE = f"{RESULTS}/report.html"
CODE = [
    str(path)
    for pattern in (
        "paper/*.*",
        "pipeline/cost/*.*",
        "pipeline/figures/*.*",
        "pipeline/page/*.*",
        "pipeline/paper/*.py",
        "pipeline/reference/*.*",
        "pipeline/reference/points/*",
        "pipeline/tables/*.py",
    )
    for path in sorted(Path().glob(pattern))
]


localrules:
    study_file,
    points,


rule study_file:
    output:
        f"{RESULTS}/study.json",
    log:
        f"{RESULTS}/logs/study_file.txt",
    params:
        text=lambda wildcards: json.dumps(config, sort_keys=True),
    shell:
        "printf '%s\\n' {params.text:q} > {output} 2> {log}"


# All in one job: predicting the points takes longer than a figure or a table.
rule points:
    input:
        study=f"{RESULTS}/study.json",
        code=CODE,
    output:
        FIGURES,
        TABLES,
        PAPER,
        PAGE,
    log:
        f"{RESULTS}/logs/points.txt",
    params:
        generated=f"paper/generated/{Path(RESULTS).name}",
        folder=RESULTS,
    shell:
        "python -m pipeline points --study {input.study} --generated {params.generated}"
        " --out {params.folder} 2> >(tee {log} >&2)"
