# Metrics and the published claims that the study names -> one verdict for each claim.
import os

from pipeline.claims.load import files_of as claim_files_of

CLAIM_FILES = [os.path.relpath(path) for path in claim_files_of(STUDY)]
VERDICTS = f"{RESULTS}/claims/verdicts.json"


rule claims:
    input:
        study=STUDY_FILE,
        metrics=METRICS,
        claims=CLAIM_FILES,
        code=[
            *files("pipeline/claims/*.py"),
            *files("pipeline/reference/*"),
            *files("workflow/config/*/published.json"),
            "pipeline/schemas/reference.schema.json",
            "pipeline/schemas/verdicts.schema.json",
            "workflow/schemas/claims.schema.yaml",
        ],
    output:
        VERDICTS,
    log:
        f"{RESULTS}/logs/claims.txt",
    shell:
        "python -m pipeline claims --study {input.study} --metrics {input.metrics}"
        " --claims {input.claims} --out {output} 2> >(tee {log} >&2)"
