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
