# What the figures and tables of a study are.
from pipeline.figures import catalogue as figure_catalogue
from pipeline.tables import catalogue as table_catalogue

FIGURE_NAMES = figure_catalogue.shown(config)
TABLE_NAMES = table_catalogue.shown(config)
FIGURES = expand(
    f"{RESULTS}/figures/{{name}}.{{kind}}",
    name=FIGURE_NAMES,
    kind=["pdf", "svg", "png"],
)
TABLES = expand(
    f"{RESULTS}/tables/{{name}}.{{kind}}",
    name=TABLE_NAMES,
    kind=["tex", "md", "csv", "html"],
)


report: "../report/workflow.rst"


rule figures:
    input:
        FIGURES,


rule tables:
    input:
        TABLES,
