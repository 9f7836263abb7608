# The manuscript with all its numbers, figures and tables -> PDF and LaTeX.
PAPER = [f"{RESULTS}/paper/paper.{kind}" for kind in ("pdf", "tex")]


rule manuscript:
    input:
        study=STUDY_FILE,
        metrics=METRICS,
        figures=FIGURES,
        tables=TABLES,
        verdicts=VERDICTS if CLAIM_FILES else [],
        sources=[
            "paper/literal.lua",
            "paper/manuscript.md",
            "paper/references.bib",
            "paper/template.tex",
            "paper/template.typ",
        ],
        code=[
            "pipeline/fonts.py",
            "pipeline/text.py",
            *files("pipeline/paper/*.py"),
        ],
    output:
        report(
            PAPER[0],
            caption="../report/caption.rst",
            category="Paper",
            labels={"document": "paper"},
        ),
        PAPER[1:],
    log:
        f"{RESULTS}/logs/manuscript.txt",
    params:
        figures=folder_of("figures"),
        tables=folder_of("tables"),
        generated=f"paper/generated/{UNDER}{STUDY.name}",
        folder=out_folder,
        verdicts=option("verdicts"),
    shell:
        "python -m pipeline paper --study {input.study} --metrics {input.metrics}"
        " --figures {params.figures} --tables {params.tables} {params.verdicts}"
        " --generated {params.generated} --out {params.folder} 2> >(tee {log} >&2)"


rule paper:
    input:
        PAPER,
