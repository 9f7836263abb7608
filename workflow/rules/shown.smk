# What the figures and tables of a study are.
from pipeline.figures import (
    captions as figure_captions,
    needing_verdicts as figures_on_claims,
)
from pipeline.tables import (
    captions as table_captions,
    needing_verdicts as tables_on_claims,
)

FIGURE_CAPTIONS = figure_captions()
FIGURES_ON_CLAIMS = figures_on_claims()
TABLE_CAPTIONS = table_captions()
TABLES_ON_CLAIMS = tables_on_claims()
FIGURES = expand(
    f"{RESULTS}/figures/{{name}}.{{kind}}",
    name=[n for n in FIGURE_CAPTIONS if CLAIM_FILES or n not in FIGURES_ON_CLAIMS],
    kind=["pdf", "svg", "png"],
)
TABLES = expand(
    f"{RESULTS}/tables/{{name}}.{{kind}}",
    name=[n for n in TABLE_CAPTIONS if CLAIM_FILES or n not in TABLES_ON_CLAIMS],
    kind=["tex", "md", "csv", "html"],
)


report: "../report/workflow.rst"


rule figures:
    input:
        FIGURES,


rule tables:
    input:
        TABLES,
