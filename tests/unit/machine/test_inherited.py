"""What ranks and stages take over from the environment of whoever called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.machine import inherited

EXPORTED = (
    "OMP_PROC_BIND KMP_AFFINITY MKL_DYNAMIC GOMP_CPU_AFFINITY ATEN_CPU_CAPABILITY LD_PRELOAD "
    "TORCH_DISTRIBUTED_DEBUG PYTORCH_CUDA_ALLOC_CONF GLOO_DEVICE_TRANSPORT NCCL_DEBUG "
    "HOROVOD_DISABLE_GROUP_FUSION MALLOC_ARENA_MAX GLIBC_TUNABLES CUBLAS_WORKSPACE_CONFIG "
    "OPENBLAS_CORETYPE NVIDIA_TF32_OVERRIDE ONEDNN_MAX_CPU_ISA CXXFLAGS PYTHONPATH"
).split()
"""What sites and people export that changes the speed or the numbers of a rank."""

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True) | st.sampled_from(EXPORTED)
ENVIRONMENTS = st.dictionaries(NAMES, st.text("ab/", max_size=3), max_size=8)


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_a_rank_has_what_is_listed_or_stated_and_nothing_else(given, stated) -> None:
    found = inherited.for_ranks(given, stated)
    rest = {k: v for k, v in found.items() if k not in {inherited.STATED, *inherited.OWN, *stated}}
    assert all(inherited.NEEDED.fullmatch(name) for name in rest)
    assert rest.items() <= given.items()
    assert inherited.for_ranks(given | found, inherited.stated(found)) == found


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_a_stage_that_was_cleaned_is_clean(given, stated) -> None:
    found = inherited.for_stages(given, stated)
    assert inherited.for_stages(found) == found


@pytest.mark.parametrize("name", EXPORTED)
def test_what_matters_is_named_and_reaches_neither_a_rank_nor_a_stage(name) -> None:
    given = {name: "1", "PATH": "/bin", "HTTPS_PROXY": "p"}
    for kept in (inherited.for_ranks(given, {}), inherited.for_stages(given)):
        assert kept["PATH"] == "/bin" and kept.get(name) in (None, inherited.ROOT)
        assert f": {name};" in str(inherited.removed(given, kept))
    assert inherited.for_stages(given)["HTTPS_PROXY"] == "p"
    assert inherited.for_stages(given, {name: "2"})[name] in ("2", inherited.ROOT)


def test_the_record_has_what_a_rank_had_but_not_its_place() -> None:
    had = {"OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": "/l", "HOROVOD_RANK": "3", "PATH": "/bin"}
    expected = {"LD_LIBRARY_PATH": "/l", "OMP_NUM_THREADS": "1"}
    assert inherited.recorded(had) == expected
    named = {"OF_THE_SITE": "1", inherited.STATED: "OF_THE_SITE"}
    assert inherited.recorded(had | named) == expected | {"OF_THE_SITE": "1"}


def test_variables_that_the_project_sets_are_no_study_s_and_interfaces_the_site_s() -> None:
    names = "NCCL_DEBUG OMP_NUM_THREADS RANK HOROVOD_CYCLE_TIME PYTHONPATH SLURM_JOB_ID".split()
    given = [*names, "OMP_PROC_BIND", "NCCL_ALGO", *inherited.INTERFACES]
    assert inherited.reserved(given, of_site=True) == sorted(names)
    assert inherited.reserved(given) == sorted([*names, *inherited.INTERFACES])


def test_a_stage_starts_again_without_what_its_python_would_read(tmp_path: Path) -> None:
    """A module of that folder would take the place of Python's own."""
    (tmp_path / "argparse.py").write_text("raise SystemExit('another argparse')\n")
    there = f"{inherited.ROOT}:{tmp_path}"
    code = f"import os, sys; sys.path[:0] = [{inherited.ROOT!r}]; import pipeline.machine.inherited"
    code += (
        " as i; i.begin(); import argparse; print(*(n for n in os.environ if n == 'LD_PRELOAD'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            **{"PYTHONPATH": there, "LD_PRELOAD": "", "PYTHONHASHSEED": "7"},
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert done.stderr.count("note: not taken over") == 1
    assert "LD_PRELOAD, PYTHONPATH;" in done.stderr


@pytest.mark.parametrize("name", ["BASH_ENV", "BASH_FUNC_python%%", "SHELLOPTS"])
def test_a_shell_that_a_person_sets_up_is_no_rule_s(name) -> None:
    """A site's modules export these, so that no word is due."""
    kept = inherited.for_stages({name: "x", "PATH": "/bin"})
    assert name not in kept and inherited.removed({name: "x"}, kept) is None


def test_who_begins_a_workflow_is_no_job_and_states_nothing(monkeypatch) -> None:
    marks = {inherited.SENT_AGAIN: "yes", inherited.STATED: "OMP_PROC_BIND", "OMP_PROC_BIND": "1"}
    monkeypatch.setattr(os, "environ", {**marks, inherited.STOP: "/stop", "PATH": "/bin"})
    inherited.clean()
    assert not marks.keys() & os.environ.keys()
    assert os.environ[inherited.STOP] == "/stop"
