"""A copy of the project with a study of seconds, so that tests never touch the real results."""

import atexit
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import yaml

from pipeline.machine.inherited import MATTERS
from tests.programs import ran

ROOT = Path(__file__).parents[2]
PARTS = (
    "Snakefile",
    "from_archive.smk",
    "Makefile",
    "profiles",
    "workflow",
    "pipeline",
    "paper",
    "envs",
    "LICENSE",
)

HUB_TOKEN = "hf_" + "notToBeFoundAnywhere"
"""What the environment of every run here holds, and no file that it leaves may."""

STUDY = yaml.safe_load("""
study: tiny
title: Tiny study for tests
corpus: {source: text, paths: [text.txt], document: block}
tokenizer: {kind: bpe, vocab_size: 300}
model: {family: gpt2, num_layers: 1, width: 32, num_heads: 2, context: 16, vocab_size: 300}
workload: {global_batch: 4, accumulation_steps: 1, steps: 40, untimed_steps: 2, scaling: strong,
           checkpoint_every: 0}
# A stated number of threads: so one preloaded process serves all of its runs.
cluster: {device: cpu, ranks_per_node: 1, nodes: [1, 2, 4], backend: gloo, network: loopback,
          threads_per_rank: 1}
cells:
  - {name: single, label: Single, strategy: single, precision: fp32, nodes: [1]}
  - {name: dps, label: DDP, strategy: ddp, precision: fp32, nodes: [2]}
  - {name: sps, label: Parameter server, strategy: parameter_server, precision: fp32, nodes: [2]}
  - {name: apex, label: DDP + Apex, strategy: ddp, precision: apex_o1, nodes: [1]}
repeats: 1
profile: {steps: 6}
timeout_seconds: 120
claims: [bai2022]
""")


@cache
def own_temporary_folder() -> str:
    """One for this process, with a short name: a socket's path has at most 107 characters."""
    folder, owner = mkdtemp(prefix="samestep-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a process that a test has forked may end like this one
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@dataclass(frozen=True)
class Project:
    """A project folder with the study `tiny` in it."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results" / "tiny"

    @property
    def study(self) -> Path:
        return self.folder / "tiny.yaml"

    def command(self, *arguments: str) -> list[str]:
        return ["sh", "envs/run_workflow.sh", "--configfile", "tiny.yaml", *arguments]

    def environment(self) -> dict[str, str]:
        """That of a shell of its own, also where these tests were started by make."""
        # What tests, or torch, have set in this process is not the caller's.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAKE", "MFLAGS"))
            and (name.endswith("_THREADS") or not MATTERS.fullmatch(name))
        }
        ours = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        if "PYTEST_XDIST_WORKER" in os.environ:
            # Timed runs wait for one another by a lock in there, and no test asks for their time.
            ours["TMPDIR"] = own_temporary_folder()
        return inherited | ours | {"HF_TOKEN": HUB_TOKEN}

    def call(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A program in the folder, with these variables besides; what it says is kept."""
        return ran(command, cwd=self.folder, env=self.environment() | variables, timeout=600)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = self.call(*self.command(*arguments))
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run make with the environment that is there, which is not set up anew."""
        return self.call("make", *arguments, "STAMP=", **variables)

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a dry run would start."""
        return job_counts(self.run("--cores", "2", "--dry-run", *arguments).stdout)


def job_counts(shown: str) -> dict[str, int]:
    """Rule -> number of jobs, by the statistics that Snakemake shows first."""
    lines = shown.partition("Job stats:")[2].splitlines()
    pairs = [line.split() for line in lines if re.fullmatch(r"\w+ +\d+ *", line)]
    return {rule: int(count) for rule, count in pairs if rule != "total"}


def make_project(folder: Path, **changes: object) -> Project:
    """Copy what the workflow needs and write the tiny study there."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            # What is compiled is as old as its source there too; half a file of it goes away.
            ignore = shutil.ignore_patterns("*.pyc.*", "generated", "site.yaml")
            shutil.copytree(source, folder / part, ignore=ignore)
        else:
            shutil.copy2(source, folder / part)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    words = "how many roads must a grey goose walk before the winter comes".split()
    text = "\n\n".join(" ".join(words[i % 12 :] + words[: i % 5]) for i in range(300))
    (folder / "text.txt").write_text(text)
    shipped = yaml.safe_load((ROOT / "workflow/config/smoke/study.yaml").read_text())
    kept = {key: shipped[key] for key in ("optimiser", "seeds")}
    whole = {**kept, **STUDY, **changes}
    # A change to None leaves the key out.
    whole = {key: value for key, value in whole.items() if value is not None}
    project = Project(folder)
    project.study.write_text(yaml.safe_dump(whole))
    return project
