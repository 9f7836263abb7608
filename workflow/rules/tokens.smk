# Compute nodes may have no network: where text or tokeniser come from a hub, this stage runs beside
# Snakemake, unless a profile names a partition for it (`set-resources`).
FROM_HUB = STUDY.corpus["source"] == "hub" or STUDY.tokenizer["kind"] == "pretrained"
OF_TOKENS = workflow.resource_settings.overwrite_resources.get("tokens", {})
if FROM_HUB and "slurm_partition" not in OF_TOKENS:

    localrules:
        tokens,


# Corpus -> token shards and their manifest.
rule tokens:
    input:
        f"{RESULTS}/tokens.spec.json",
    output:
        f"{TOKENS}/manifest.json",
    log:
        f"{RESULTS}/logs/tokens.txt",
    threads: EVERY_CORE
    params:
        folder=out_folder,
    shell:
        "python -m pipeline tokens --spec {input} --out {params.folder} --num-proc {threads}"
        " 2> >(tee {log} >&2)"
