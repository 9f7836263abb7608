"""Variables that a process takes over from its caller: ranks by a list, stages all but some.

A shell, a site's modules or a batch system export variables that change how fast ranks compute, or
what. A rank gets what is `NEEDED`, what its launcher sets and what the study or the site file
states (`environment`). The other stages keep what people set for them, such as proxies, but nothing
that changes numbers or Python's packages. `STATED` names in each environment what was set on
purpose.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
STATED = "SAMESTEP_STATED"
SENT_AGAIN = "SAMESTEP_SENT_AGAIN"
"""Set in jobs that Snakemake has sent to a scheduler (`workflow/rules/common.smk`)."""

STOP = "SAMESTEP_STOP"
"""Names a file that is made when the job is to end (`envs/begin_job.sh`); rank 0 looks for it."""

OWN = {"PYTHONPATH": ROOT, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
"""Python finds this project and its own packages, and none of the working folder or the user."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
THREADS_OF_A_JOB = (*THREADS, "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Those that Snakemake sets for each job (snakemake/shell.py)."""

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The way between the nodes: a fact of the site (`pipeline.machine.site`), not of a study."""

_ORDERS = (
    # What srun, sbatch and salloc read as options: ours are in their command.
    r"(SLURM|SRUN|SBATCH|SALLOC)_(EXPORT_ENV|EXPORT|HINT|MEM_BIND|CPU_BIND|GPU_BIND|CPU_FREQ_REQ"
    r"|GPU_FREQ|DISTRIBUTION|THREADS_PER_CORE|CORE_SPEC|THREAD_SPEC|OVERCOMMIT|EXACT|WORKING_DIR"
    r"|TASK_PROLOG)(_\w+)?"
    # What a runtime sets inside the image, lays over it, or allows it of the machine.
    r"|(APPTAINER|SINGULARITY)_(ENV|ENV_FILE|OVERLAY|CPU\w*|MEMORY\w*|APPLY_CGROUPS)"
)
"""Variables by which a caller gives orders to the programs that start ranks."""

NEEDED = re.compile(
    rf"(?!({_ORDERS})$)("
    # Who and where a process is, and what it finds its programs, libraries and text by. Libraries
    # of a site (CUDA, MPI) lie where LD_LIBRARY_PATH says; it is recorded.
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|KRB5CCNAME|XDG_\w+"
    # Which GPUs there are.
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_HOME|CUDA_PATH"
    r"|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES"
    # The allocation.
    r"|SLURM\w*"
    # How a runtime enters the image; what it would set inside (APPTAINERENV_) is not.
    r"|APPTAINER_\w+|SINGULARITY_\w+|ENROOT_\w+"
    r"|SAMESTEP_\w+)"
)

MATTERS = re.compile(
    # Torch sets the places of its caches by itself.
    r"(?!\w+_CACHE_DIR$)"
    r"((OMP|GOMP|KMP|MKL|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|NPY|NUMPY|TBB|DNNL|ONEDNN|ATEN|C10|TORCH"
    r"|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|TRITON|GLOO|NCCL|HOROVOD|DS|DEEPSPEED|UCX|FI|I_MPI|OMPI"
    r"|OPAL|PRTE|MPICH|MPIR|MV2|PSM2|PSM3|HFI|IBV|MLX4|MLX5|RDMAV|OFI|SHARP|HCOLL|UCC"
    r"|CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA|KINETO|CUPTI|ROCR|HSA|HIP|MIOPEN|IPEX|ZENDNN|AOCL|ACL"
    r"|XLA|MALLOC|TCMALLOC|JEMALLOC|MIMALLOC|LD|GLIBC|ASAN|TSAN|UBSAN|LSAN)_\w+"
    rf"|{_ORDERS}|LRU_CACHE_CAPACITY"
    r"|(CC|CXX|C\w*FLAGS|PYTHON\w+|BASH_ENV|BASH_FUNC_.+|SHELLOPTS|BASHOPTS))"
)
"""Variables that change the speed or the numbers of a rank, its packages, or a rule's shell."""

_RESERVED = re.compile(
    rf"{'|'.join(THREADS)}|PYTHON\w*|SAMESTEP_\w+|SLURM\w*|TORCHELASTIC_\w+|PATH|HOME"
    r"|NCCL_DEBUG(_SUBSYS|_FILE)?"
    r"|(LOCAL_|GROUP_|ROLE_|HOROVOD_\w*)?(RANK|WORLD_SIZE|SIZE|NAME)|MASTER_(ADDR|PORT)"
    r"|HOROVOD_(CONTROLLER|CPU_OPERATIONS|FUSION_THRESHOLD|CYCLE_TIME)|DS_ACCELERATOR"
)
_OF_A_PLACE = re.compile(
    rf"HOROVOD_\w*(RANK|SIZE|HOSTNAME|ADDR|PORT)|NCCL_DEBUG_FILE|PYTHON\w+|{_ORDERS}"
)


def threads(count: int) -> dict[str, str]:
    """Threads of each library of a rank."""
    return dict.fromkeys(THREADS, str(count))


def for_ranks(environment: Mapping[str, str], on_purpose: Mapping[str, str]) -> dict[str, str]:
    """Variables that a rank gets of `environment`, with those given `on_purpose`."""
    kept = {name: value for name, value in environment.items() if NEEDED.fullmatch(name)}
    return kept | _with_names(on_purpose) | OWN


def for_stages(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that a stage gets of `environment`, with those stated there."""
    on_purpose = stated(environment)
    kept = {
        name: value
        for name, value in environment.items()
        if NEEDED.fullmatch(name) or name in THREADS_OF_A_JOB or not MATTERS.fullmatch(name)
    }
    return kept | (_with_names(on_purpose) if on_purpose else {}) | OWN


def stated(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that stand in `environment` on purpose: those that `STATED` names there."""
    names = environment.get(STATED, "").split(",")
    return {name: environment[name] for name in names if name in environment}


def _with_names(stated: Mapping[str, str]) -> dict[str, str]:
    return {**stated, STATED: ",".join(sorted(stated))}


def removed(environment: Mapping[str, str], kept: Mapping[str, str]) -> str | None:
    """One line on what matters in `environment` and is not `kept`; None where nothing is.

    A shell's variables are left out, since many sites export some, and Python's too unless they
    add packages.
    """
    names = sorted(
        name
        for name, value in environment.items()
        if MATTERS.fullmatch(name) and kept.get(name) != value
        if not name.startswith(("PYTHON", "BASH", "SHELL")) or name in ("PYTHONPATH", "PYTHONHOME")
    )
    if not names:
        return None
    return (
        f"note: not taken over from the caller's environment: {', '.join(names)}; a study, or "
        "workflow/site.yaml for a cluster, states what runs need under `environment`"
    )


def begin(on_purpose: Mapping[str, str] | None = None) -> None:
    """Start this program again without what a stage does not take over, unless it is so already.

    Libraries and Python read much of it as they start. With `on_purpose` the program measures as
    ranks do, and gets a rank's environment.
    """
    _usual_signals()
    if on_purpose is None:
        kept = for_stages(os.environ)
    else:
        kept = for_ranks(os.environ, {**stated(os.environ), **on_purpose})
    names = {*os.environ, *(on_purpose or {})} - {STATED}
    if all(kept.get(name) == os.environ.get(name) for name in names):
        os.environ.update(kept)  # for what it starts
        return
    if on_purpose is None and (note := removed(os.environ, kept)):
        print(note, file=sys.stderr, flush=True)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)  # noqa: S606, own words


def _usual_signals() -> None:
    """Undo what the caller ignores or blocks: an ignored child's end looks like success."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def clean() -> None:
    """Remove from this process's environment what the stages that it starts do not take over.

    And what a job was told of itself, since a shell within a job may begin a workflow.
    """
    _usual_signals()
    for name in (STATED, SENT_AGAIN):
        os.environ.pop(name, None)
    kept = for_stages(os.environ)
    if note := removed(os.environ, kept):
        print(note, file=sys.stderr)
    os.environ.clear()
    os.environ.update(kept)


def reserved(names: Iterable[str], *, of_site: bool = False) -> list[str]:
    """Those of these variables that a study, or a site file, may not set."""
    ours = () if of_site else INTERFACES
    return sorted(name for name in names if name in ours or _RESERVED.fullmatch(name))


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a rank that matter or were stated, but for its own place among the ranks."""
    names = stated(environment)
    return {
        name: value
        for name, value in sorted(environment.items())
        if (MATTERS.fullmatch(name) or name in names) and not _OF_A_PLACE.fullmatch(name)
    }
