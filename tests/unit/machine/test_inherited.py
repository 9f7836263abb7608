"""What ranks and stages take over from the environment of whoever called."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import snakemake
from hypothesis import given
from hypothesis import strategies as st

from pipeline.machine import inherited
from tests.programs import ran

EXPORTED = (
    "OMP_PROC_BIND KMP_AFFINITY MKL_DYNAMIC GOMP_CPU_AFFINITY ATEN_CPU_CAPABILITY LD_PRELOAD "
    "TORCH_DISTRIBUTED_DEBUG PYTORCH_CUDA_ALLOC_CONF GLOO_DEVICE_TRANSPORT NCCL_DEBUG "
    "HOROVOD_DISABLE_GROUP_FUSION MALLOC_ARENA_MAX GLIBC_TUNABLES CUBLAS_WORKSPACE_CONFIG "
    "OPENBLAS_CORETYPE NVIDIA_TF32_OVERRIDE ONEDNN_MAX_CPU_ISA CXXFLAGS PYTHONPATH "
    "MKL_DOMAIN_NUM_THREADS KMP_ALL_THREADS BLIS_NUM_THREADS MKL_CBWR OMP_DYNAMIC OMP_PLACES "
    "OMP_THREAD_LIMIT MALLOC_CONF MIMALLOC_PURGE_DELAY KINETO_CONFIG LRU_CACHE_CAPACITY "
    "NUMEXPR_MAX_THREADS UCX_TLS RDMAV_FORK_SAFE MV2_SMP_EAGER "
    "SLURM_GPU_FREQ SLURM_GPU_BIND SLURM_THREADS_PER_CORE SLURM_CPU_FREQ_REQ SBATCH_HINT "
    "SRUN_CPU_BIND SLURM_TASK_PROLOG APPTAINER_ENV SINGULARITY_ENV_FILE APPTAINER_CPUSET_CPUS"
).split()
"""What sites and people export that changes the speed or the numbers of a rank."""

SITE_SHELL = {
    **dict.fromkeys(EXPORTED, "1"),
    # As `module load`, conda, Lmod and salloc leave it.
    "MODULEPATH": "/m", "LOADEDMODULES": "gcc/13:intel/2024", "_LMFILES_": "/m/gcc",
    "MKLROOT": "/opt/mkl", "CPATH": "/i", "LIBRARY_PATH": "/l", "CONDA_PREFIX": "/c", "NCPUS": "8",
    "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8", "SLURM_NTASKS": "1", "SLURM_PTY_PORT": "1",
    "PBS_JOBID": "7", "PBS_NODEFILE": "/n", "LSB_JOBID": "7", "OMPI_COMM_WORLD_RANK": "0",
    "PMI_RANK": "3",
}  # fmt: skip
BARE = {"PATH": "/bin", "HOME": "/home/a"}

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True) | st.sampled_from(EXPORTED)
ENVIRONMENTS = st.dictionaries(NAMES, st.text("ab/", max_size=3), max_size=8)


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_what_was_cleaned_is_clean(given, stated) -> None:
    variables = inherited.for_ranks(given, stated)
    assert inherited.for_ranks(given | variables, inherited.stated(variables)) == variables
    variables = inherited.for_stages({**given, **stated, inherited.STATED: ",".join(stated)})
    assert inherited.for_stages(variables) == variables


@pytest.mark.parametrize("name", EXPORTED)
def test_what_matters_is_named_and_reaches_neither_a_rank_nor_a_stage(name) -> None:
    given = {name: "1", "PATH": "/bin", "HTTPS_PROXY": "p"}
    for kept in (inherited.for_ranks(given, {}), inherited.for_stages(given)):
        assert kept["PATH"] == "/bin" and kept.get(name) in (None, inherited.ROOT)
        assert f": {name};" in str(inherited.removed(given, kept))
    assert inherited.for_stages(given)["HTTPS_PROXY"] == "p"
    on_purpose = {name: "2", inherited.STATED: name}
    assert inherited.for_stages(on_purpose)[name] in ("2", inherited.ROOT)


def test_ranks_of_a_site_s_shell_have_what_those_of_an_empty_one_have() -> None:
    """Equal environments, equal steps: but for the allocation's own names nothing differs."""
    stated = inherited.threads(2) | {"NCCL_ALGO": "Ring"}
    variables = inherited.for_ranks(BARE | SITE_SHELL, stated)
    bare = inherited.for_ranks(BARE, stated)
    assert {name for name in variables if variables[name] != bare.get(name)} == {
        "SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "SLURM_NTASKS", "SLURM_PTY_PORT",
    }  # fmt: skip
    assert inherited.recorded(variables) == inherited.recorded(bare)


def test_snakemake_s_numbers_of_threads_reach_its_jobs() -> None:
    given = dict.fromkeys(inherited.THREADS_OF_A_JOB, "3")
    assert given.items() <= inherited.for_stages(given).items()
    source = Path(snakemake.__file__).with_name("shell.py").read_text()
    assert {*re.findall(r'envvars\["(\w+_THREADS)"\]', source)} == {*given}


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
    done = ran(
        [sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            **{"PYTHONPATH": there, "LD_PRELOAD": "", "PYTHONHASHSEED": "7"},
        },
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


@pytest.mark.parametrize("how", ["begin", "clean"])
def test_a_caller_that_ignores_or_blocks_signals_hides_no_failure(how: str) -> None:
    """Python says of a child whose end is ignored that it ended well."""

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    code = f"from pipeline.machine import inherited as i; i.{how}(); import subprocess as s, signal"
    code += "; print(s.run(['false']).returncode, signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    done = ran(
        [sys.executable, "-c", code],
        preexec_fn=ignore,
        env={"PATH": os.environ["PATH"], **inherited.OWN},
    )
    assert done.stdout == "1 set()\n", done.stderr
