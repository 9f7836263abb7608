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
    study: Study, records: Sequence[RunRecord], facts: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """The content of ro-crate-metadata.json for the files `names`; `facts` is archive.json's."""
    # The workflow's formal parameters: id -> name, and the file that took its place.
    parameters = {
        "#input-study": ("study", layout.STUDY_FILE),
        "#output-record": ("record", next(n for n in names if n.endswith("run.json"))),
        "#output-paper": ("paper", layout.PAPER_FILES[0]),
    }
    runs = {f"#run-{record.spec.folder}": record for record in records}
    ended = max(record.run["ended_at"] for record in records)
    root = _entity(
        "./", "Dataset", study.title,
        description=f"Study {study.name!r} of parallel training strategies: records of its "
        f"{len(records)} training runs, and the metrics, figures, tables and paper made from them",
        datePublished=ended,
        license=_refs([_LICENSE]),
        conformsTo=_refs(PROFILES),
        mainEntity=_refs([layout.WORKFLOW_FILE]),
        hasPart=_refs(names),
        mentions=_refs([_STUDY_RUN, *runs]),
    )  # fmt: skip
    commit, dirty = facts["git_commit"], "-dirty" if facts["git_dirty"] else ""
    workflow = _entity(
        layout.WORKFLOW_FILE, ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "Samestep",
        encodingFormat="text/plain",
        description="text -> tokens -> training runs -> records -> metrics -> figures, tables, "
        "verdicts on claims, paper",
        version=f"{facts['samestep']} ({commit}{dirty})" if commit else facts["samestep"],
        license=_refs([_LICENSE]),
        programmingLanguage=_refs([_LANGUAGE]),
        hasPart=_refs([_TRAIN]),
        step=_refs([_TRAIN_STEP]),
        input=_refs(["#input-study"]),
        output=_refs(key for key in parameters if key.startswith("#output")),
    )  # fmt: skip
    results = [n for n in names if n.startswith("runs/") or layout.PRODUCT.fullmatch(n)]
    whole = _entity(
        _STUDY_RUN, "CreateAction", f"study {study.name}",
        description="all training runs of the study, and what was made from their records",
        instrument=_refs([layout.WORKFLOW_FILE]),
        # The stages after the training keep no times.
        startTime=min(record.run["started_at"] for record in records),
        endTime=ended,
        actionStatus="http://schema.org/CompletedActionStatus",
        object=_refs([layout.STUDY_FILE]),
        result=_refs([n for n in results if not n.endswith("spec.json")]),
    )  # fmt: skip
    controls = {
        key.replace("#run-", "#control-"): (f"start of train {record.spec.folder}", key)
        for key, record in runs.items()
    }
    organisation = _entity(
        "#organisation", "OrganizeAction", "Snakemake's run of the workflow",
        instrument=_refs([_ENGINE]), object=_refs(controls), result=_refs([_STUDY_RUN]),
    )  # fmt: skip
    pages = _refs(["https://snakemake.readthedocs.io"])
    versions = sorted({record.run["versions"]["samestep"] for record in records})
    graph = [
        {
            "@id": layout.CRATE_FILE,
            "@type": "CreativeWork",
            "about": _refs(["./"]),
            "conformsTo": _refs([CRATE, "https://w3id.org/workflowhub/workflow-ro-crate/1.0"]),
        },
        root,
        *(_entity(url, "CreativeWork", name, version=edition)
          for url, (name, edition) in PROFILES.items()),
        workflow,
        _entity(_LICENSE, "CreativeWork", "Apache License 2.0"),
        _entity(_LANGUAGE, "ComputerLanguage", "Snakemake",
                identifier=_refs(["https://doi.org/10.1093/bioinformatics/bts480"]), url=pages),
        _entity(_ENGINE, "SoftwareApplication", "Snakemake",
                softwareVersion=version("snakemake"), url=pages),
        _entity(_TRAIN, "SoftwareApplication", "python -m pipeline train",
                description="trains one run and writes its record",
                softwareVersion=", ".join(versions)),
        _entity(_TRAIN_STEP, "HowToStep", "train", workExample=_refs([_TRAIN])),
        *(_entity(key, "FormalParameter", name, additionalType="File", workExample=_refs([file]))
          for key, (name, file) in parameters.items()),
        whole,
        *(_training(key, record) for key, record in runs.items()),
        organisation,
        *(_entity(key, "ControlAction", name, instrument=_refs([_TRAIN_STEP]), object=_refs([run]))
          for key, (name, run) in controls.items()),
        *(_file(name, parameters) for name in names if name != layout.WORKFLOW_FILE),
    ]  # fmt: skip
    return {"@context": f"{CRATE}/context", "@graph": graph}


def _entity(key: str, kind: str | list[str], name: str, **facts: Any) -> Entity:
    return {"@id": key, "@type": kind, "name": name, **facts}


def _refs(names: Iterable[str]) -> dict[str, str] | list[dict[str, str]]:
    """One reference stands alone, several in a list, as RO-Crate 1.1 asks for."""
    refs = [{"@id": name} for name in names]
    return refs[0] if len(refs) == 1 else refs


def _file(name: str, parameters: Mapping[str, tuple[str, str]]) -> Entity:
    entity = _entity(name, "File", name)
    entity["encodingFormat"] = _FORMATS.get(name.rpartition(".")[2], "text/plain")
    if name == layout.README_FILE:
        entity["about"] = _refs(["./"])
    if examples := [key for key, (_, file) in parameters.items() if file == name]:
        entity["exampleOfWork"] = _refs(examples)
    return entity


def _training(key: str, record: RunRecord) -> Entity:
    """One training run; a run that could not finish is a failed action with its reason."""
    name, run, spec = record.spec.folder, record.run, record.spec
    ok = record.status == "ok"
    return _entity(
        key, "CreateAction", f"train {name}",
        description=f"strategy {spec.strategy}, precision {spec.precision}, "
        f"{spec.world.size} ranks, seed {spec.seed}: {record.status}",
        instrument=_refs([_TRAIN]),
        startTime=run["started_at"],
        endTime=run["ended_at"],
        actionStatus=f"http://schema.org/{'Completed' if ok else 'Failed'}ActionStatus",
        **({} if ok else {"error": run["reason"]}),
        object=_refs([f"runs/{name}/spec.json", layout.MANIFEST_FILE]),
        result=_refs([f"runs/{name}/run.json", f"runs/{name}/steps.jsonl"]),
    )  # fmt: skip
