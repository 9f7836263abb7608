# Loading Python's packages takes longer than a small run trains, so stages on this machine, launchers
# and ranks are forks of processes that have them; inside a container each loads for itself.
onstart:
    if NO_IMAGE is not None:
        raise LaunchError(NO_IMAGE)
    # With its limit of jobs a second Snakemake 9.27 starts, for every job that ends, one more timer that
    # polls all waiting jobs each second; after some hundred they took half a core from the runs. No
    # option turns it off: with `--max-jobs-per-timespan` over an hour the last timers keep Snakemake
    # from ending for that hour, and its settings are made after this file is read.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
    if workflow.local_exec and not CONTAINED and (runs := to_train()):
        preloaded.start_stages()
        preloaded.start_ranks(runs, SITE.variables(os.environ, over_network=False))
    if "snakemake_executor_plugin_slurm" in sys.modules:
        job_states.send_again(sys.modules["snakemake_executor_plugin_slurm"])
    if not SITE.accounting and hasattr(
        workflow.executor_settings, "status_command"
    ):
        workflow.executor_settings.status_command = "squeue"


# What the machine computes undisturbed: before the runs, with all cores to itself.
rule yardstick:
    input:
        study=ancient(STUDY_FILE),
        manifest=ancient(f"{TOKENS}/manifest.json"),
    output:
        f"{RESULTS}/yardstick.json",
    log:
        f"{RESULTS}/logs/yardstick.txt",
    container:
        IMAGE
    threads: EVERY_CORE
    shell:
        "python -m pipeline yardstick --study {input.study} --out {output} > {log} 2>&1"


# One job trains one run. It takes every core (on a cluster: whole nodes), so that a timed run never
# overlaps another job, and it depends on its own spec and the tokens alone.
rule train:
    input:
        # Where it is made again, no finished run trains again.
        **{"yardstick": ancient(path) for path in YARDSTICK},
        spec=f"{RESULTS}/runs/{{run}}/spec.json",
        manifest=f"{TOKENS}/manifest.json",
    output:
        run=f"{RESULTS}/runs/{{run}}/run.json",
        steps=f"{RESULTS}/runs/{{run}}/steps.jsonl",
    log:
        f"{RESULTS}/runs/{{run}}/log.txt",
    wildcard_constraints:
        run="|".join(run for run in RUNS if run not in ON_NODES) or NO_RUN,
    # The scheduler takes the highest first: runs go in the random order of pipeline.study.expansion.planned_order.
    priority: lambda wildcards: PRIORITY[wildcards.run]
    container:
        IMAGE
    threads: EVERY_CORE
    resources:
        **SITE.submission,
        mem_mb=asked("memory_mb"),
        runtime=asked("minutes"),
        slurm_extra=asked("slurm_extra"),
        gres=asked("gres"),
        # The executor takes the number of tasks for one of each GPU, where GPUs are a `gres`.
        tasks_per_gpu=0,
        cpus_per_task=asked("cpus"),
        # The yardstick's too: finished runs are made again where the text of `shell` changes.
        image=lambda wildcards, input: " ".join(
            [PLACE]
            + [
                f"--yardstick {path}"
                for path in YARDSTICK
                if RUNS[wildcards.run].spec.world.yardstick
                or RUNS[wildcards.run].spec.world.real_time
            ]
        ),
        attempt=lambda wildcards, attempt: attempt,
    params:
        tokens=folder_of("manifest"),
        folder=out_folder,
    shell:
        "python -m pipeline train --spec {input.spec} --tokens {params.tokens}"
        " --out {params.folder} {resources.image} --attempt {resources.attempt}"


# A run over several machines: srun, which does not exist inside an image, starts its launchers, and each
# enters the image on its machine.
rule train_on_nodes:
    input:
        spec=f"{RESULTS}/runs/{{run}}/spec.json",
        manifest=f"{TOKENS}/manifest.json",
    output:
        run=f"{RESULTS}/runs/{{run}}/run.json",
        steps=f"{RESULTS}/runs/{{run}}/steps.jsonl",
    log:
        f"{RESULTS}/runs/{{run}}/log.txt",
    wildcard_constraints:
        run="|".join(ON_NODES) or NO_RUN,
    priority: lambda wildcards: PRIORITY[wildcards.run]
    container:
        None if IN_SNAKEMAKE else IMAGE
    threads: EVERY_CORE
    resources:
        **SITE.submission,
        mpi="srun",
        nodes=asked("nodes"),
        tasks=asked("nodes"),
        mem_mb=asked("memory_mb"),
        runtime=asked("minutes"),
        slurm_extra=asked("slurm_extra"),
        gres=asked("gres"),
        tasks_per_gpu=0,
        cpus_per_task=asked("cpus"),
        srun=lambda wildcards: " ".join(REQUESTS[wildcards.run].srun),
        image=PLACE,
        attempt=lambda wildcards, attempt: attempt,
    params:
        tokens=folder_of("manifest"),
        folder=out_folder,
    shell:
        "python -m pipeline train --spec {input.spec} --tokens {params.tokens}"
        " --out {params.folder} {resources.image} --attempt {resources.attempt}"
        " -- {resources.srun}"


# The runs on one number of machines, for an allocation of that size: profiles/allocation/job.sh.
for machines in sorted({asked_for.nodes for asked_for in REQUESTS.values()}):

    rule:
        name:
            f"runs_on_{machines}"
        input:
            [
                f"{RESULTS}/runs/{run}/run.json"
                for run in RUNS
                if REQUESTS[run].nodes == machines
            ],
