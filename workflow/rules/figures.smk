# All figures in one job: starting Python for each takes longer than drawing most of them.
from pipeline.figures import catalogue as figure_catalogue

FIGURE_NAMES = figure_catalogue.shown(STUDY)
VECTORS = {name: f"{RESULTS}/figures/{name}.svg" for name in FIGURE_NAMES}
FIGURES = [path for path in VECTORS.values()] + expand(
    f"{RESULTS}/figures/{{name}}.{{kind}}", name=FIGURE_NAMES, kind=["pdf", "png"]
)


report: "../report/workflow.rst"


localrules:
    figures,


rule figures:
    input:
        metrics=METRICS,
        code=["pipeline/fonts.py", "pipeline/text.py", *files("pipeline/figures/*")],
    output:
        [
            report(
                path,
                caption="../report/caption.rst",
                category="Figures",
                labels={"figure": name},
            )
            for name, path in VECTORS.items()
        ],
        FIGURES[len(VECTORS) :],
    log:
        f"{RESULTS}/logs/figures.txt",
    params:
        names=FIGURE_NAMES,
        folder=out_folder,
    shell:
        "python -m pipeline figure {params.names} --metrics {input.metrics}"
        " --out {params.folder} 2> >(tee {log} >&2)"
