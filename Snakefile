# The study in one command: `snakemake --cores all` (or `make paper`, which sets up first).
# Another study: `snakemake --cores all --configfile workflow/config/<study>/study.yaml`.
from snakemake.utils import min_version

min_version("9.27")


# A second configfile would be merged into the first, so the default is read only where none is given.
if not {"study", "extends"} & {*config}:

    configfile: "workflow/config/smoke/study.yaml"


UNDER = ""


if "points" in config:

    include: "workflow/rules/points.smk"

else:

    include: "workflow/rules/common.smk"
    include: "workflow/rules/study.smk"
    include: "workflow/rules/tokens.smk"
    include: "workflow/rules/train.smk"
    include: "workflow/rules/metrics.smk"
    include: "workflow/rules/claims.smk"
    include: "workflow/rules/figures.smk"
    include: "workflow/rules/tables.smk"
    include: "workflow/rules/paper.smk"
    include: "workflow/rules/page.smk"


rule all:
    default_target: True
    input:
        # Snakemake ignores a missing intermediate file, so `all` requests every record.
        RECORDS,
        FIGURES,
        TABLES,
        PAPER,
        PAGE,
