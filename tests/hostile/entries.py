"""The documents that stages read: a good one of each, and the command that reads it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.archive.layout import METRICS_FILE
from pipeline.machine.facts import hardware
from pipeline.study.expansion import expand, tokens_spec
from pipeline.study.study import Study
from tests.fake_records import a_verdict
from tests.hostile.mutants import Mutant, mutants, number_keys, sample
from tests.unit.archive.conftest import finished_study

ROOT = Path(__file__).parents[2]
MOST = 74
"""Of the hundreds of mutants of a document, which take a minute each time."""

SCHEMAS = (*ROOT.glob("pipeline/schemas/*.json"), *ROOT.glob("workflow/schemas/*.yaml"))


@dataclass(frozen=True)
class Laid:
    """A finished study of two synthetic runs below `results`."""

    results: Path

    @property
    def study(self) -> Path:
        """Its study file."""
        return self.results / "study.json"

    @property
    def metrics(self) -> Path:
        """Its table of metrics."""
        return self.results / METRICS_FILE

    def record(self, name: str) -> Path:
        """A file of its one finished run."""
        return self.results / "runs/single/n1/r0" / name


def lay(folder: Path) -> Laid:
    """Write one."""
    return Laid(finished_study(folder / "fake", workload=_WORK))


_WORK = {
    "global_batch": 4, "accumulation_steps": 1, "steps": 3, "untimed_steps": 1,
    "scaling": "strong", "checkpoint_every": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A kind of document; `file` is its name, `about` a word of every error that is about it.

    `command` reads it: PATH is the document, GIVEN the folder that it lies in, RESULTS and RUN
    those of the good study, OUT what may be written.
    """

    file: str
    about: str
    document: Callable[[Laid], Any]
    command: str
    beside: Callable[[Laid, Path], None] = field(default=lambda laid, folder: None)
    depth: int = 9

    def mutants(self, laid: Laid) -> list[Mutant]:
        """Mutants of the good document."""
        return sample(mutants(self.document(laid), _numbers(), depth=self.depth), MOST)

    def write(self, content: Any, folder: Path) -> Path:
        """The document below `folder`."""
        path = folder / "given" / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".yaml":
            try:
                path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper))
            except UnicodeEncodeError:  # half a character, which only the slow one writes
                path.write_text(yaml.safe_dump(content))
        elif path.name == "manifest.json":
            path.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")
        else:
            path.write_text(json.dumps(content) + "\n")
        return path

    def arguments(self, laid: Laid, path: Path, folder: Path) -> list[str]:
        """The command that reads the document at `path`, with what belongs beside it."""
        self.beside(laid, path)
        words = self.command.split()
        places = {"PATH": path, "GIVEN": folder / "given", "OUT": folder / "out",
                  "RESULTS": laid.results, "RUN": laid.record("")}  # fmt: skip
        for name, place in places.items():
            words = [word.replace(name, str(place)) for word in words]
        return words

    def is_about_it(self, said: str) -> bool:
        """Whether an error is about the document, and not about what comes after it."""
        return self.about in said

    def clear(self, folder: Path) -> None:
        """Remove what a command that took the document has written."""
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@cache
def _numbers() -> set[str]:
    return number_keys(*SCHEMAS)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _spec(laid: Laid) -> Any:
    return _json(laid.record("spec.json"))


def _emulated_spec(laid: Laid) -> Any:
    spec = _spec(laid)
    link = {"name": "slow", "rate_mbits": 100, "delay_us": 10, "receive_mbits": 50.0}
    spec["world"] |= {"network": "emulated", "link": link, "cores_per_node": 1}
    return spec | {"image_digest": "sha256:" + "0" * 64, "profile": True}


def _study(laid: Laid) -> Any:
    study = _json(laid.study)
    study["cluster"] |= {
        "network": "emulated", "cores_per_node": 1, "threads_per_rank": 1,
        "links": [{"name": "slow", "rate_mbits": 200, "delay_us": 10}],
    }  # fmt: skip
    study["cells"][0] |= {
        "nodes": [1], "ranks_per_node": 1, "options": {}, "workload": {"global_batch": 4},
        "optimiser": {"learning_rate": 0.1},
    }  # fmt: skip
    more = {"claims": ["bai2022"], "compares": ["global_batch"], "profile": {"steps": 1}}
    return study | more | {"compile": False, "image_digest": "sha256:" + "0" * 64}


def _other_kinds(laid: Laid) -> Any:
    corpus = {"source": "hub", "name": "a/b", "config": None, "split": "train",
              "revision": "0" * 40, "column": "text", "max_documents": 10}  # fmt: skip
    tokenizer = {"kind": "pretrained", "name": "gpt2", "revision": "0" * 40}
    return _json(laid.study) | {"corpus": corpus, "tokenizer": tokenizer}


def _tokens_spec(laid: Laid) -> Any:
    study = Study.of(_json(laid.study))
    assert expand(study)
    text = {"source": "text", "paths": ["no such file"], "document": "block"}
    return tokens_spec(study) | {"corpus": text}


def _claims(laid: Laid) -> Any:
    content = yaml.safe_load((ROOT / "workflow/config/bai2022/claims.yaml").read_text())
    return content | {"claims": content["claims"][:2]}


def _run_beside(laid: Laid, path: Path) -> None:
    """The other file of the run, in a folder that `compare` reads, and its other steps."""
    for name in ("run.json", "steps.jsonl"):
        if name != path.name and not (path.parent / name).exists():
            shutil.copy(laid.record(name), path.parent / name)
    if path.suffix == ".jsonl" and path.is_file():
        _, *others = laid.record(path.name).read_text().splitlines(keepends=True)
        with path.open("a") as stream:
            stream.writelines(others)


def _other_runs_beside(laid: Laid, path: Path) -> None:
    """The other runs of the study and the other files of this one, which `metrics` reads."""
    runs = path.parents[3]
    for source in (laid.results / "runs").rglob("*.json*"):
        target = runs / source.relative_to(laid.results / "runs")
        if target != path:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


CALIBRATION: dict[str, Any] = {
    "version": 6, "study": "smoke", "measured_at": "2026-01-01T00:00:00+00:00", "threads": 1,
    "git_commit": None, "cores_per_node": 1, "links": {"1gbit": {"name": "1gbit",
    "rate_mbits": 1000, "delay_us": 0}}, "host_seconds": 1e-5, "memory_bytes_per_second": 1e10,
    "operators": [
        {"kind": kind, "dtype": "float32", "sizes": [64, 64, 64], "seconds": 1e-4}
        for kind in ("product", "attention", "layer_norm", "gelu", "add", "cross_entropy",
                     "embedding", "unit", "update")
    ],
    "waits": [{"nodes": 4, "dilated_for": 4, "seconds": 1e-3, "more": 1e-4}],
    "collectives": [
        {"link": "1gbit", "ranks": ranks, "kind": kind, "bytes": size, "seconds": 1e-9 * size}
        for kind in ("all_reduce", "reduce_scatter", "all_gather", "send", "shift")
        for ranks in (2, 4) for size in (1024, 1 << 20)
    ],
}  # fmt: skip
"""Of the study `smoke`, but for the machine."""


def _calibration(laid: Laid) -> Any:
    """Of the laid study, which has one rank on the loopback."""
    cores = hardware()["num_cores"]
    machine = {"cpu_model": hardware()["cpu_model"], "num_cores": cores}
    here = {"hardware": machine, "links": {}, "cores_per_node": None, "threads": cores}
    return CALIBRATION | here | {"collectives": []}


def _site(laid: Laid) -> Any:
    container = {"runtime": "apptainer", "binds": ["/opt/a"], "options": ["--no-mount=tmp"]}
    return {
        "partition": "gpu", "network_partition": "net", "account": "me", "qos": "long",
        "constraint": "a", "gpus": "--gres=gpu:h100:N", "cpus_per_node": 8, "max_minutes": 60,
        "accounting": False, "before": ["module load a"], "container": container,
        "environment": {"NCCL_SOCKET_IFNAME": "ib0"}, "scratch": "/scratch",
    }  # fmt: skip


RUN = "runs/single/n1/r0"
TRAIN = "train --spec PATH --tokens no-tokens --out OUT"
# A command that ends for want of a table, once it has read what else it is given.
PAPER = (
    "paper --study RESULTS/study.json --metrics none --figures RESULTS/figures --tables "
    "RESULTS/tables --generated OUT --out OUT --verdicts PATH"
)

DOCUMENTS: dict[str, Entry] = {
    "study": Entry("study.json", "study.json", _study, "check --study PATH"),
    "study, other kinds": Entry("study.yaml", "study.yaml", _other_kinds, "plan --study PATH"),
    "spec": Entry("spec.json", "spec", _spec, TRAIN),
    "spec on emulated nodes": Entry("spec.json", "spec", _emulated_spec, TRAIN),
    "tokens spec": Entry(
        "tokens.spec.json", "tokens spec", _tokens_spec,
        "tokens --spec PATH --out OUT --num-proc 1",
    ),
    "manifest": Entry(
        "manifest.json", "manifest", lambda laid: _json(laid.results / "tokens/manifest.json"),
        "train --spec RUN/spec.json --tokens GIVEN --out OUT",
    ),
    "record": Entry(
        f"{RUN}/run.json", "", lambda laid: _json(laid.record("run.json")),
        "metrics --study RESULTS/study.json --runs GIVEN/runs --out OUT/m.parquet",
        _other_runs_beside,
    ),
    "step": Entry(
        f"{RUN}/steps.jsonl", "",
        lambda laid: json.loads(laid.record("steps.jsonl").read_text().splitlines()[0]),
        "compare GIVEN RESULTS", _run_beside,
    ),
    "verdicts": Entry("verdicts.json", "verdicts.json", lambda laid: a_verdict(), PAPER),
    "claims": Entry(
        "claims.yaml", "claims.yaml", _claims,
        "claims --study RESULTS/study.json --metrics none --claims PATH --out OUT", depth=5,
    ),
    "site": Entry(
        "site.yaml", "site file", _site, "commands --study RESULTS/study.json --site PATH"
    ),
    "calibration": Entry(
        "calibration.json", "calibration.json", _calibration,
        "predict --study RESULTS/study.json --calibration PATH",
    ),
}  # fmt: skip
