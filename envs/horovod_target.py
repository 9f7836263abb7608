"""What a Horovod wheel is built for, where it is kept, and what its compilation is told.

Nothing here imports torch, so that the no-op of envs/build_horovod.py is quick.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH_LEVEL = "p3"
"""Moves with PATCHES, so that a wheel of other patches is not taken for this one."""

CXX_STANDARD = 20
"""torch 2.13's headers refuse anything under 17; 20 is what torch itself is compiled with."""

PATCHES = (
    (
        "CMakeLists.txt",
        "\nset(CMAKE_CXX_STANDARD 14)",
        f"\nset(CMAKE_CXX_STANDARD {CXX_STANDARD})\n"
        # Eight sources a compiler call read the same headers once: 127 CPU seconds for 196.
        "if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})\n"
        "  set(CMAKE_UNITY_BUILD ON)\n"
        "  set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)\n"
        "endif()",
    ),
    # It has a type of the name that another source has.
    (
        "third_party/gloo/gloo/CMakeLists.txt",
        "add_library(gloo ${GLOO_STATIC_OR_SHARED} ${GLOO_SRCS})",
        'set_source_files_properties("${CMAKE_CURRENT_SOURCE_DIR}/allreduce.cc"\n'
        "    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n"
        "add_library(gloo ${GLOO_STATIC_OR_SHARED} ${GLOO_SRCS})",
    ),
    (
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        f"set(CMAKE_CXX_STANDARD {CXX_STANDARD})",
    ),
    # The global process set, which every collective uses, forgets HOROVOD_GLOO_IFACE and binds to
    # the address of the host's name: on many hosts the loopback, where no other node is reached.
    (
        "horovod/common/gloo/gloo_context.cc",
        "GlooContext& global_context,\n"
        "                                          const std::vector<int>& registered_ranks) {\n",
        "GlooContext& global_context,\n"
        "                                          const std::vector<int>& registered_ranks) {\n"
        "  gloo_iface_ = global_context.gloo_iface_;\n",
    ),
    # The rest is for a quick build: no debug information, of all of torch's headers those in use,
    # and little optimisation of what is no loop over gradients: bindings and the autotuner.
    (
        "CMakeLists.txt",
        'string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
        'string(REPLACE "-O2 -g" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
    ),
    (
        "horovod/torch/adapter_v2.h",
        "#include <torch/extension.h>\n#include <torch/torch.h>\n",
        "#include <ATen/core/Tensor.h>\n"
        "#include <ATen/ops/empty.h>\n"
        "#include <ATen/ops/empty_like.h>\n"
        "#include <ATen/ops/zeros.h>\n"
        "namespace torch { using namespace at; }\n",
    ),
    (
        "horovod/torch/mpi_ops_v2.cc",
        "#include <torch/extension.h>\n#include <torch/torch.h>\n",
        "#include <torch/csrc/utils/pybind.h>\n",
    ),
    (
        "horovod/torch/CMakeLists.txt",
        "# Create library\n",
        "set_source_files_properties(\n"
        "    ${PROJECT_SOURCE_DIR}/horovod/torch/mpi_ops_v2.cc\n"
        "    ${PROJECT_SOURCE_DIR}/horovod/torch/adapter_v2.cc\n"
        "    ${PROJECT_SOURCE_DIR}/horovod/common/optim/gaussian_process.cc\n"
        "    ${PROJECT_SOURCE_DIR}/horovod/common/optim/bayesian_optimization.cc\n"
        "    PROPERTIES COMPILE_OPTIONS -O1)\n",
    ),
    # The longest first, so that no core waits for them at the end.
    (
        "horovod/torch/CMakeLists.txt",
        "SHARED ${SOURCES} ${PYTORCH_SOURCES})",
        "SHARED ${PYTORCH_SOURCES} ${SOURCES})",
    ),
)
"""File, text that stands in it exactly once, text that replaces it."""

SYSTEM_NVCC = Path("/usr/local/cuda/bin/nvcc")
SYSTEM_NCCL = (Path("/usr/include/nccl.h"), Path("/usr/local/include/nccl.h"))
"""Where NVIDIA's own packages and images put them."""

BYTES_PER_COMPILER = 2 * 1024**3
"""Memory that one compiler process needs for torch's headers, rounded up."""

_MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHONPATH")


class BuildError(Exception):
    """Horovod cannot be had here; the text is the reason. `lasting` when a retry would not help."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        """Keep `reason` on one line."""
        super().__init__(" ".join(reason.split()))
        self.lasting = lasting


@dataclass(frozen=True)
class Target:
    """What a wheel is built for; equal targets share one wheel."""

    torch: str
    kind: str

    @property
    def local_version(self) -> str:
        """Local version label of the wheel, such as `torch2.13.0.cpu.gloo.p3` (PEP 440)."""
        torch = re.sub("[^a-z0-9]+", ".", self.torch.lower())
        return f"torch{torch}.{self.kind}.{PATCH_LEVEL}"

    @property
    def full_version(self) -> str:
        """Version under which the wheel is installed."""
        return f"{VERSION}+{self.local_version}"

    @property
    def wheel_folder(self) -> Path:
        """Folder of the cached wheel: cache / platform and C library / python."""
        libc = "".join(platform.libc_ver()) or "libc"
        python = f"{sys.implementation.cache_tag}"
        where = f"{sysconfig.get_platform()}-{libc}-{python}"
        return cache_folder() / "wheels" / where / self.full_version


def cache_folder() -> Path:
    """`SAMESTEP_CACHE`, else `samestep` under the user's cache folder."""
    own = os.environ.get("SAMESTEP_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "samestep"


def torch_folder() -> Path:
    """Folder of the installed torch, found without importing it; raises BuildError without one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed; run `make setup` first")
    return Path(spec.origin).parent


def read_target(environment: Mapping[str, str]) -> Target:
    """Target for the installed torch: `nccl` beside CUDA and NCCL, else `gloo`."""
    text = (torch_folder() / "version.py").read_text(encoding="utf-8")
    version = re.search(r"__version__\s*=\s*'([^']+)'", text)
    if version is None:
        raise BuildError("torch/version.py names no version; reinstall torch")
    has_cuda = re.search(r"^cuda\b[^=]*=\s*'", text, re.MULTILINE) is not None
    kind = "nccl" if has_cuda and find_nvcc(environment) and find_nccl(environment) else "gloo"
    return Target(version.group(1), kind)


def find_nvcc(environment: Mapping[str, str]) -> Path | None:
    """The CUDA compiler that Horovod and torch would find, or None."""
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"):
        nvcc = Path(environment.get(name) or "/nonexistent") / "bin" / "nvcc"
        if nvcc.is_file():
            return nvcc
    found = shutil.which("nvcc", path=environment.get("PATH"))
    return Path(found) if found else SYSTEM_NVCC if SYSTEM_NVCC.is_file() else None


def find_nccl(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Variables that lead Horovod's CMake to NCCL's header and library, or None without NCCL.

    The system's NCCL comes first, then the one that torch brought with it from PyPI, so that both
    load the same library.
    """
    if environment.get("HOROVOD_NCCL_HOME") or environment.get("HOROVOD_NCCL_INCLUDE"):
        return {}
    if any(header.is_file() for header in SYSTEM_NCCL):
        return {}
    wheel = torch_folder().parent / "nvidia" / "nccl"
    library = next(iter(sorted((wheel / "lib").glob("libnccl.so*"))), None)
    if library is None or not (wheel / "include" / "nccl.h").is_file():
        return None
    return {"HOROVOD_NCCL_INCLUDE": str(wheel / "include"), "HOROVOD_NCCL_LIB": str(library.parent)}


def link_nccl(folder: str, scratch: Path) -> str:
    """A folder that names NCCL as CMake looks for it; PyPI's wheel holds libnccl.so.2 alone."""
    named = scratch / "nccl"
    named.mkdir()
    library = min(Path(folder).glob("libnccl.so*"))
    (named / "libnccl.so").symlink_to(library)
    return str(named)


def num_jobs() -> int:
    """Compilers to run at once: one a core, as far as the memory reaches."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_COMPILER))


def build_environment(
    target: Target, environment: Mapping[str, str], scratch: Path
) -> dict[str, str]:
    """Environment of the compilation in `scratch`, without what an outer `make` left behind."""
    inherited = {key: value for key, value in environment.items() if key not in _MAKE_VARIABLES}
    wanted = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_LOCAL_VERSION": target.local_version,
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{num_jobs()}",
    }
    if target.kind == "nccl":
        nvcc = find_nvcc(environment)
        # Shared, as torch has it, so that both load one NCCL.
        wanted |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
        wanted |= find_nccl(environment) or {}
        if "HOROVOD_NCCL_LIB" in wanted:
            wanted["HOROVOD_NCCL_LIB"] = link_nccl(wanted["HOROVOD_NCCL_LIB"], scratch)
        wanted |= {"HOROVOD_CUDA_HOME": str(nvcc.parents[1])} if nvcc else {}
    return inherited | wanted
