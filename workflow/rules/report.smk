# Figures and tables, one job each. A job lists its own module as an input, so editing a figure
# redraws that figure; what all of them share (theme, axes, formats) redraws all.

FIGURE_CAPTIONS = figure_catalogue.captions()
FIGURES_ON_CLAIMS = figure_catalogue.needing_verdicts()
TABLE_CAPTIONS = table_catalogue.captions()
TABLES_ON_CLAIMS = table_catalogue.needing_verdicts()

# Files of the packages that are no figure or table of their own.
FIGURE_CODE = [
    str(p)
    for p in [
        *Path("pipeline/figures").glob("*.py"),
        *Path("pipeline/reference").glob("*"),
        *Path("workflow/config").glob("*/published.json"),
    ]
    if p.is_file() and p.stem not in FIGURE_CAPTIONS
]
TABLE_CODE = [
    "pipeline/text.py",
    *[
        str(p)
        for p in Path("pipeline/tables").glob("*.py")
        if p.stem not in TABLE_CAPTIONS
    ],
]


localrules:
    figure,
    table,


rule figure:
    input:
        metrics=METRICS,
        verdicts=lambda wildcards: (
            VERDICTS if wildcards.name in FIGURES_ON_CLAIMS else []
        ),
        module="pipeline/figures/{name}.py",
        shared=FIGURE_CODE,
    output:
        report(
            f"{RESULTS}/figures/{{name}}.svg",
            caption="../report/caption.rst",
            category="Figures",
            labels={"figure": "{name}"},
        ),
        f"{RESULTS}/figures/{{name}}.pdf",
        f"{RESULTS}/figures/{{name}}.png",
    log:
        f"{RESULTS}/logs/figures/{{name}}.txt",
    wildcard_constraints:
        name="|".join(FIGURE_CAPTIONS),
    params:
        folder=lambda wildcards, output: str(Path(output[0]).parent),
        caption=lambda wildcards: FIGURE_CAPTIONS[wildcards.name],
        verdicts=lambda wildcards, input: (
            f"--verdicts {input.verdicts}" if input.verdicts else ""
        ),
    shell:
        "python -m pipeline figure {wildcards.name} --metrics {input.metrics}"
        " {params.verdicts} --out {params.folder} 2> >(tee {log} >&2)"


rule table:
    input:
        metrics=METRICS,
        verdicts=lambda wildcards: (
            VERDICTS if wildcards.name in TABLES_ON_CLAIMS else []
        ),
        module="pipeline/tables/{name}.py",
        shared=TABLE_CODE,
    output:
        report(
            f"{RESULTS}/tables/{{name}}.html",
            caption="../report/caption.rst",
            category="Tables",
            labels={"table": "{name}"},
        ),
        f"{RESULTS}/tables/{{name}}.tex",
        f"{RESULTS}/tables/{{name}}.md",
        f"{RESULTS}/tables/{{name}}.csv",
    log:
        f"{RESULTS}/logs/tables/{{name}}.txt",
    wildcard_constraints:
        name="|".join(TABLE_CAPTIONS),
    params:
        folder=lambda wildcards, output: str(Path(output[0]).parent),
        caption=lambda wildcards: TABLE_CAPTIONS[wildcards.name],
        verdicts=lambda wildcards, input: (
            f"--verdicts {input.verdicts}" if input.verdicts else ""
        ),
    shell:
        "python -m pipeline table {wildcards.name} --metrics {input.metrics}"
        " {params.verdicts} --out {params.folder} 2> >(tee {log} >&2)"
