# Compute nodes may have no network: where text or tokeniser come from a hub, this stage runs beside
# Snakemake, unless the site file names a partition for it.
FROM_HUB = STUDY.corpus["source"] == "hub" or STUDY.tokenizer["kind"] == "pretrained"
OF_TOKENS = SITE.submission
if SITE.network_partition and FROM_HUB:
    OF_TOKENS = OF_TOKENS | {"slurm_partition": SITE.network_partition}
if FROM_HUB and not SITE.network_partition:

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
    resources:
        **OF_TOKENS,
    params:
        folder=out_folder,
    shell:
        "python -m pipeline tokens --spec {input} --out {params.folder} --num-proc {threads}"
        " 2> >(tee {log} >&2)"
