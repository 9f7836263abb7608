# A study from an archive: the same rules from the records on, and none that makes tokens or trains.
#
#   make paper FROM=archive.zip
#
# The records are files that no rule makes, so nothing here can start a training; one that is missing
# is an error. The study comes from the archive too: --configfile results/from_archive/<study>/study.json
from snakemake.utils import min_version

min_version("9.27")
# The name of a study holds no underscore, so nothing that was measured here lies below this folder.
UNDER = "from_archive/"


include: "workflow/rules/common.smk"
include: "workflow/rules/metrics.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/paper.smk"
include: "workflow/rules/page.smk"


rule all:
    default_target: True
    input:
        rules.paper.input,
        rules.figures.output,
        rules.tables.output,
        rules.page.output,
