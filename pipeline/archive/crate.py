"""`ro-crate-metadata.json`: the archive as a Workflow Run RO-Crate (JSON-LD).

Profile: Provenance Run Crate 0.5, https://w3id.org/ro/wfrun/provenance/0.5, on RO-Crate 1.1. The
main entity is the Snakefile; one action is the whole study, and one is each training run with its
times, status, inputs and results. Everything is taken from the records, so equal records give
equal bytes. The stages after the training keep no times, and so are no actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pipeline.archive import layout
from pipeline.records import RunRecord
from pipeline.study.study import Study

Entity = dict[str, Any]

CRATE = "https://w3id.org/ro/crate/1.1"
_RUN_CRATES = "https://w3id.org/ro/wfrun"
PROFILES = {
    f"{_RUN_CRATES}/process/0.5": ("Process Run Crate", "0.5"),
    f"{_RUN_CRATES}/workflow/0.5": ("Workflow Run Crate", "0.5"),
    f"{_RUN_CRATES}/provenance/0.5": ("Provenance Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
_LICENSE = "https://spdx.org/licenses/Apache-2.0"
_STUDY_RUN, _TRAIN, _TRAIN_STEP, _ENGINE = "#study-run", "#train", "#step-train", "#snakemake"
_FORMATS = {
    "csv": "text/csv", "html": "text/html", "json": "application/json", "md": "text/markdown",
    "jsonl": "application/jsonl", "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf", "png": "image/png", "svg": "image/svg+xml", "tex": "text/x-tex",
}  # fmt: skip


def metadata(
    study: Study,
    records: Sequence[RunRecord],
    facts: Mapping[str, Any],
    names: Sequence[str],
) -> dict[str, Any]:
    """The content of ro-crate-metadata.json for the files `names`; `facts` is archive.json's."""
    parameters = _parameters(names)
    files = [_file(name, parameters) for name in names if name != layout.WORKFLOW_FILE]
    actions = [_study_run(study, records, names), *map(_training, records)]
    controls = [_control(record) for record in records]
    graph = [
        {
            "@id": layout.CRATE_FILE,
            "@type": "CreativeWork",
            "about": _ref("./"),
            "conformsTo": _refs([CRATE, "https://w3id.org/workflowhub/workflow-ro-crate/1.0"]),
        },
        _root(study, records, names, actions),
        *({"@id": url, "@type": "CreativeWork", "name": name, "version": edition}
          for url, (name, edition) in PROFILES.items()),
        _workflow(facts, parameters),
        *_tools(records, facts),
        *(_parameter(key, *value) for key, value in parameters.items()),
        *actions,
        _organisation(controls),
        *controls,
        *files,
    ]  # fmt: skip
    return {"@context": f"{CRATE}/context", "@graph": graph}


def _ref(name: str) -> dict[str, str]:
    return {"@id": name}


def _refs(names: Iterable[str]) -> dict[str, str] | list[dict[str, str]]:
    """One reference stands alone, several in a list, as RO-Crate 1.1 asks for."""
    refs = [_ref(name) for name in names]
    return refs[0] if len(refs) == 1 else refs


def _root(
    study: Study,
    records: Sequence[RunRecord],
    names: Sequence[str],
    actions: Sequence[Entity],
) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": study.title,
        "description": f"Study {study.name!r} of parallel training strategies: records of its "
        f"{len(records)} training runs, and the metrics, figures, tables and paper made from them",
        "datePublished": max(record.run["ended_at"] for record in records),
        "license": _ref(_LICENSE),
        "conformsTo": _refs(PROFILES),
        "mainEntity": _ref(layout.WORKFLOW_FILE),
        "hasPart": _refs(names),
        "mentions": _refs([str(action["@id"]) for action in actions]),
    }


def _workflow(facts: Mapping[str, Any], parameters: Iterable[str]) -> Entity:
    dirty = "-dirty" if facts["git_dirty"] else ""
    commit = facts["git_commit"]
    return {
        "@id": layout.WORKFLOW_FILE,
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "Samestep",
        "encodingFormat": "text/plain",
        "description": "text -> tokens -> training runs -> records -> metrics -> figures, tables, "
        "verdicts on claims, paper",
        "version": f"{facts['samestep']} ({commit}{dirty})" if commit else facts["samestep"],
        "license": _ref(_LICENSE),
        "programmingLanguage": _ref(_LANGUAGE),
        "hasPart": _ref(_TRAIN),
        "step": _ref(_TRAIN_STEP),
        "input": _ref("#input-study"),
        "output": _refs(key for key in parameters if key.startswith("#output")),
    }


def _tools(records: Sequence[RunRecord], facts: Mapping[str, Any]) -> list[Entity]:
    """What the actions name besides files: licence, language, engine and the tool that trains."""
    versions = sorted({record.run["versions"]["samestep"] for record in records})
    return [
        {"@id": _LICENSE, "@type": "CreativeWork", "name": "Apache License 2.0"},
        {
            "@id": _LANGUAGE,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "identifier": _ref("https://doi.org/10.1093/bioinformatics/bts480"),
            "url": _ref("https://snakemake.readthedocs.io"),
        },
        {
            "@id": _ENGINE,
            "@type": "SoftwareApplication",
            "name": "Snakemake",
            "softwareVersion": version("snakemake"),
            "url": _ref("https://snakemake.readthedocs.io"),
        },
        {
            "@id": _TRAIN,
            "@type": "SoftwareApplication",
            "name": "python -m pipeline train",
            "description": "trains one run and writes its record",
            "softwareVersion": ", ".join(versions) or facts["samestep"],
        },
        {
            "@id": _TRAIN_STEP,
            "@type": "HowToStep",
            "name": "train",
            "workExample": _ref(_TRAIN),
        },
    ]


def _parameters(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The workflow's formal parameters: id -> name, and the file that took its place."""
    found = {"#input-study": ("study", layout.STUDY_FILE)}
    found["#output-record"] = ("record", next(n for n in names if n.endswith("run.json")))
    if layout.PAPER_FILES[0] in names:
        found["#output-paper"] = ("paper", layout.PAPER_FILES[0])
    return found


def _parameter(key: str, name: str, file: str) -> Entity:
    return {
        "@id": key,
        "@type": "FormalParameter",
        "name": name,
        "additionalType": "File",
        "workExample": _ref(file),
    }


def _file(name: str, parameters: Mapping[str, tuple[str, str]]) -> Entity:
    kind = name.rpartition(".")[2]
    entity: Entity = {"@id": name, "@type": "File", "name": name}
    entity["encodingFormat"] = _FORMATS.get(kind, "text/plain")
    if name == layout.README_FILE:
        entity["about"] = _ref("./")
    examples = [key for key, (_, file) in parameters.items() if file == name]
    return entity | ({"exampleOfWork": _refs(examples)} if examples else {})


def _study_run(study: Study, records: Sequence[RunRecord], names: Sequence[str]) -> Entity:
    """The whole workflow; its times are those of the first and the last training run."""
    results = [n for n in names if n.startswith("runs/") or layout.PRODUCT.fullmatch(n)]
    return {
        "@id": _STUDY_RUN,
        "@type": "CreateAction",
        "name": f"study {study.name}",
        "description": "all training runs of the study, and what was made from their records",
        "instrument": _ref(layout.WORKFLOW_FILE),
        "startTime": min(record.run["started_at"] for record in records),
        "endTime": max(record.run["ended_at"] for record in records),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _ref(layout.STUDY_FILE),
        "result": _refs([n for n in results if not n.endswith("spec.json")]),
    }


def _run_name(record: RunRecord) -> str:
    return record.spec.run_id.partition("/")[2]


def _training(record: RunRecord) -> Entity:
    """One training run; a run that could not finish is a failed action with its reason."""
    name, run = _run_name(record), record.run
    ok = record.status == "ok"
    return {
        "@id": f"#run-{name}",
        "@type": "CreateAction",
        "name": f"train {name}",
        "description": f"strategy {record.spec.strategy}, precision {record.spec.precision}, "
        f"{record.spec.world.size} ranks, seed {record.spec.seed}: {record.status}",
        "instrument": _ref(_TRAIN),
        "startTime": run["started_at"],
        "endTime": run["ended_at"],
        "actionStatus": f"http://schema.org/{'Completed' if ok else 'Failed'}ActionStatus",
        **({} if ok else {"error": run["reason"]}),
        "object": _refs([f"runs/{name}/spec.json", layout.MANIFEST_FILE]),
        "result": _refs([f"runs/{name}/run.json", f"runs/{name}/steps.jsonl"]),
    }


def _control(record: RunRecord) -> Entity:
    name = _run_name(record)
    return {
        "@id": f"#control-{name}",
        "@type": "ControlAction",
        "name": f"start of train {name}",
        "instrument": _ref(_TRAIN_STEP),
        "object": _ref(f"#run-{name}"),
    }


def _organisation(controls: Sequence[Entity]) -> Entity:
    return {
        "@id": "#organisation",
        "@type": "OrganizeAction",
        "name": "Snakemake's run of the workflow",
        "instrument": _ref(_ENGINE),
        "object": _refs([str(control["@id"]) for control in controls]),
        "result": _ref(_STUDY_RUN),
    }
