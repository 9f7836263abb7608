# Paths, specs and small functions that the rules share; the logic is in pipeline/.
import json
import os
import sys

from snakemake.settings.types import DeploymentMethod

from pipeline.accept import accept, accept_to_run
from pipeline.documents import read_document
from pipeline.errors import LaunchError, SamestepError, StudyError
from pipeline.study.expansion import planned_order, tokens_spec
from pipeline.records import spec_to_write
from pipeline.study.load import check_study, extended
from pipeline.machine import image, inherited
from pipeline.machine.site import NO_RUNTIME, SITE_FILE, Site, load_site
from pipeline.launch import preloaded
from pipeline.launch.slurm import job_states
from pipeline.launch.slurm.request import request
from pipeline.resolved import runs_of
from pipeline.watch import Watched

# Jobs take over what the stages of a run may; what is left out is said once.
if workflow.is_main_process:
    inherited.clean()
# The sender of this job sends it again if it is lost (`retries` of the profile).
if workflow.remote_exec:
    os.environ[inherited.SENT_AGAIN] = "yes"
# What is sent to a cluster (by a profile with this resource), and its jobs, are as the site file says.
ON_SITE = inherited.STOP in os.environ or "site" in (
    workflow.resource_settings.default_resources or {}
)
# Snakemake has read the file already, with a reader that takes the last of two equal keys.
try:
    for path in workflow.configfiles:
        read_document(Path(path), "study file", StudyError)
    resolved = extended(dict(config), Path([*workflow.configfiles, "configuration"][0]))
    config.clear()
    config.update(resolved)
    STUDY = check_study(config, "configuration")
    SITE = load_site() if ON_SITE else Site()
    if workflow.is_main_process:
        # An archive has no corpus.
        if UNDER:
            accept(STUDY, has_tokens=True)
        else:
            accept_to_run(STUDY)
            for line in Watched(STUDY, Path("results", STUDY.name)).set_aside():
                print(line, file=sys.stderr)
except SamestepError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
# More than any machine has: Snakemake lowers a job's threads to what --cores gives.
EVERY_CORE = 1024
# UNDER: `Snakefile` measures below results/, `from_archive.smk` rebuilds beside that.
RESULTS = f"results/{UNDER}{STUDY.name}"
STUDY_FILE = f"{RESULTS}/study.json"
TOKENS = f"{RESULTS}/tokens"
YARDSTICK = [f"{RESULTS}/yardstick.json"] if STUDY.cluster.yardstick else []
RUNS = {run.spec.folder: run for run in runs_of(STUDY, planned_order)}
PRIORITY = {run: len(RUNS) - place for place, run in enumerate(RUNS)}
RECORDS = [f"{RESULTS}/runs/{run}/run.json" for run in RUNS]
STEPS = [f"{RESULTS}/runs/{run}/steps.jsonl" for run in RUNS]
REQUESTS = {name: request(run, SITE) for name, run in RUNS.items()}
# Runs of one machine are jobs of the rule `train`, the others of `train_on_nodes`.
ON_NODES = [run for run in RUNS if REQUESTS[run].nodes > 1]
NO_RUN = "(?!)"
IMAGE = "images/samestep.sif"
# Snakemake enters it for each stage; on a site the launchers of ranks do.
IN_SNAKEMAKE = (
    DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
)
CONTAINED = IN_SNAKEMAKE or (ON_SITE and SITE.runtime != NO_RUNTIME)
UNMET, NO_IMAGE = [], None
try:
    UNMET = image.facts(Path(IMAGE))["versions"].get("unmet", []) if CONTAINED else []
except LaunchError as error:
    # A dry run shows the jobs all the same; `onstart` stops every other one.
    NO_IMAGE = str(error)
    if workflow.is_main_process:
        print(f"warning: {NO_IMAGE}", file=sys.stderr)
if UNMET and IN_SNAKEMAKE and workflow.is_main_process:
    print(
        f"note: inside {IMAGE} only the training runs, the other stages run on this machine: "
        + "; ".join(UNMET),
        file=sys.stderr,
    )


def files(pattern):
    """Files of this checkout that match the pattern: the code that a job depends on."""
    return [str(path) for path in sorted(Path().glob(pattern)) if path.is_file()]


def option(name):
    """`--name PATH` where a job has that input, else nothing."""
    return lambda wildcards, input: f"--{name} {input[name]}" if input.get(name) else ""


# Snakemake notes no parameter whose function takes inputs or outputs. Those of `tokens` and `train`
# must stay such functions: a parameter that it had not noted would train finished runs again.
def folder_of(name):
    """The folder of a job's input, or of the first of several."""
    return lambda wildcards, input: str(Path(str(input[name]).split()[0]).parent)


def out_folder(wildcards, output):
    """The folder of a job's first output."""
    return str(Path(output[0]).parent)


# Options of `train` that say what its ranks run in.
PLACE = " ".join(
    ([f"--image {IMAGE}"] if CONTAINED else [])
    + ([f"--site {SITE_FILE}"] if ON_SITE else [])
)


def asked(name):
    """Resources that a run asks of a scheduler."""
    return lambda wildcards: getattr(REQUESTS[wildcards.run], name)


def to_train():
    """The runs that jobs of this start train."""
    jobs = [*workflow.dag.needrun_jobs()]
    return [RUNS[job.wildcards.run] for job in jobs if job.rule.name == "train"]


# The exact environment; used with --use-singularity, ignored without it.
container: None if UNMET else IMAGE


wildcard_constraints:
    run=r"[^/]+/n\d+/[rpt]\d+",


# Jobs of seconds are not sent to a cluster's queue.
localrules:
    metrics,
    claims,
    manuscript,
