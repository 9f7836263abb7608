"""Target of a Horovod wheel, its place in the cache, and the settings of its compilation.

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
        "set(CMAKE_UNITY_BUILD ON)\n"
        "set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)",
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
    # Compiled for a CUDA torch alone. The driver's library is named by what the driver installs:
    # the plain name comes with development packages.
    (
        "horovod/torch/cuda_util.cc",
        'dlopen("libcuda.so", RTLD_LAZY)',
        'dlopen("libcuda.so.1", RTLD_LAZY)',
    ),
    # Kernels for a torch of the old C++ ABI, which nothing links.
    (
        "horovod/common/ops/cuda/CMakeLists.txt",
        "add_library(compatible_horovod_cuda_kernels ",
        "add_library(compatible_horovod_cuda_kernels EXCLUDE_FROM_ALL ",
    ),
    # One architecture of each generation, which the others of it run too: six of CUDA 13's twelve.
    (
        "cmake/build_utils.py",
        "    cc_list_env = os.environ.get('HOROVOD_BUILD_CUDA_CC_LIST')\n",
        "    cc_list_env = os.environ.get('HOROVOD_BUILD_CUDA_CC_LIST')\n"
        "    if cc_list_env is None:\n"
        "        return default_flags + ['-arch=all-major']\n",
    ),
)
"""File, text that stands in it exactly once, text that replaces it."""

SYSTEM_NVCC = Path("/usr/local/cuda/bin/nvcc")
SYSTEM_NCCL = ("/usr", "/usr/local", "/usr/local/cuda")
"""Places of NVIDIA's own packages and images."""

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
    """Torch and kind of a wheel; equal targets share one wheel."""

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
    home = os.environ.get("HOME") or Path(__file__).parents[1]  # a user without an entry has none
    base = os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache")
    return Path(os.environ.get("SAMESTEP_CACHE") or Path(base, "samestep"))


def torch_folder() -> Path:
    """Folder of the installed torch, found without importing it; raises BuildError without one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed; run `make setup` first")
    return Path(spec.origin).parent


def read_target(environment: Mapping[str, str]) -> Target:
    """Target for the installed torch: `nccl` beside CUDA and NCCL, else `gloo`."""
    version = re.search(r"__version__\s*=\s*'([^']+)'", _torch_version())
    if version is None:
        raise BuildError("torch/version.py names no version; reinstall torch")
    nccl = has_cuda(environment) and missing_nccl(environment) is None
    return Target(version.group(1), "nccl" if nccl else "gloo")


def _torch_version() -> str:
    return (torch_folder() / "version.py").read_text(encoding="utf-8")


def has_cuda(environment: Mapping[str, str]) -> bool:
    """True where torch is built for CUDA and the CUDA compiler is there."""
    cuda = re.search(r"^cuda\b[^=]*=\s*'", _torch_version(), re.MULTILINE)
    return cuda is not None and find_nvcc(environment) is not None


def find_nvcc(environment: Mapping[str, str]) -> Path | None:
    """The CUDA compiler that Horovod and torch would find, or None."""
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"):
        nvcc = Path(environment.get(name) or "/nonexistent") / "bin" / "nvcc"
        if nvcc.is_file():
            return nvcc
    program = shutil.which("nvcc", path=environment.get("PATH"))
    return Path(program) if program else SYSTEM_NVCC if SYSTEM_NVCC.is_file() else None


def find_nccl(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that lead Horovod's CMake to NCCL's header and library; raises BuildError.

    What the variables of Horovod name comes first, then the NCCL that torch brought with it from
    PyPI, so that both load the same library, then the system's.
    """
    given = environment.get("HOROVOD_NCCL_HOME")
    homes = [given] if given else []
    homes += [str(torch_folder().parent / "nvidia" / "nccl"), *SYSTEM_NCCL]
    libraries = ("lib", "lib64", f"lib/{platform.machine()}-linux-gnu")
    sought = (
        ("HOROVOD_NCCL_INCLUDE", "nccl.h", ("include",)),
        ("HOROVOD_NCCL_LIB", "libnccl.so*", libraries),
    )
    variables = {}
    for variable, name, below in sought:
        given = environment.get(variable)
        folders = [given] if given else []
        folders += [f"{home}/{folder}" for home in homes for folder in below]
        there = next((folder for folder in folders if any(Path(folder).glob(name))), None)
        if there is None:
            raise BuildError(
                f"NCCL's {name} is in none of {', '.join(folders)}; set {variable} to its folder"
            )
        variables[variable] = there
    return variables


def missing_nccl(environment: Mapping[str, str]) -> str | None:
    """The part of NCCL that is not found, with the folders searched, or None."""
    try:
        find_nccl(environment)
    except BuildError as error:
        return str(error)
    return None


def build_environment(
    target: Target, environment: Mapping[str, str], scratch: Path
) -> dict[str, str]:
    """Environment of the compilation in `scratch`, without what an outer `make` left behind."""
    inherited = {key: value for key, value in environment.items() if key not in _MAKE_VARIABLES}
    # Compilers to run at once: one a core, as far as the memory reaches.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_COMPILER))
    wanted = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_LOCAL_VERSION": target.local_version,
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{jobs}",
    }
    nvcc = find_nvcc(environment)
    if target.kind == "nccl" and nvcc is not None:
        # Shared, as torch has it, so that both load one NCCL.
        wanted |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
        nccl = find_nccl(environment)
        # If torch has loaded no NCCL yet, the library is found where it was linked.
        rpath = f"-Wl,-rpath,{nccl['HOROVOD_NCCL_LIB']}"
        wanted["LDFLAGS"] = f"{environment.get('LDFLAGS', '')} {rpath}".strip()
        # CMake looks for a plain name; PyPI's wheel holds libnccl.so.2 alone.
        (scratch / "nccl").mkdir()
        library = min(Path(nccl["HOROVOD_NCCL_LIB"]).glob("libnccl.so*"))
        (scratch / "nccl/libnccl.so").symlink_to(library)
        wanted |= nccl | {"HOROVOD_NCCL_LIB": str(scratch / "nccl")}
        # torch's own look for the toolkit knows the second name only
        wanted |= dict.fromkeys(("HOROVOD_CUDA_HOME", "CUDA_HOME"), str(nvcc.parents[1]))
    return inherited | wanted
