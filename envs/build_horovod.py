"""Build the real Horovod against the installed torch, once, and install it into this environment.

    python -m envs.build_horovod [--strict] [--retry] [--compile-only]

PyPI holds Horovod as a source archive only, and that archive does not know a torch that wants
C++17 or later. This script fetches it by its hash, applies `horovod_target.PATCHES`, builds a
wheel with Gloo (and NCCL where a CUDA toolkit and NCCL stand beside a CUDA torch) and keeps it in
`${SAMESTEP_CACHE:-${XDG_CACHE_HOME:-~/.cache}/samestep}/wheels`, keyed by torch, Python, platform
and kind. A second call is a no-op that imports no torch.

Where it cannot be built the reason goes to `horovod-unsupported.txt` in the environment's folder
and the exit status is 0 (1 with `--strict`): runs of that strategy are then recorded as
`unsupported` with this reason, and everything else continues. A compilation that failed is not
tried again for the same key unless `--retry` is given; a download that failed is.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from envs.horovod_target import (
    PATCHES,
    SDIST_SHA256,
    VERSION,
    BuildError,
    Target,
    build_environment,
    cache_folder,
    has_cuda,
    missing_nccl,
    read_target,
)

UNSUPPORTED_FILE = "horovod-unsupported.txt"
LOG_FILE = "horovod-build.log"


def installed_version() -> str | None:
    """Version of the installed Horovod, or None."""
    try:
        return importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_tools(environment: Mapping[str, str]) -> None:
    """Raise BuildError naming each missing build tool and the command that installs them."""
    path = environment.get("PATH")
    compilers = environment.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    there = {
        ("cmake", "cmake"): shutil.which("cmake", path=path),
        (f"a C++ compiler ({', '.join(compilers)})", "g++"): any(
            shutil.which(compiler, path=path) for compiler in compilers
        ),
        ("Python.h", "python3-dev"): Path(sysconfig.get_path("include"), "Python.h").is_file(),
    }
    missing = [names for names, is_there in there.items() if not is_there]
    if missing:
        tools, packages = zip(*missing, strict=True)
        raise BuildError(
            f"its build needs {', '.join(tools)}; on Debian `apt-get install "
            f"{' '.join(packages)}`, then `make setup`"
        )


def run_logged(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    label: str,
    name: str = "horovod",
) -> bool:
    """Run `command` with its output in `log`; True on success. Its children die with us."""
    started = time.monotonic()
    with log.open("ab") as stream:
        child = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip
        try:
            while True:
                try:
                    return child.wait(timeout=60) == 0
                except subprocess.TimeoutExpired:
                    print(f"{name}: {label}, {time.monotonic() - started:.0f} s", flush=True)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def fetch_sdist(work: Path, log: Path, environment: Mapping[str, str]) -> Path:
    """The verified source archive, from the cache or by pip; raises BuildError."""
    cached = cache_folder() / "wheels" / f"horovod-{VERSION}.tar.gz"
    if cached.is_file() and sha256_of(cached) == SDIST_SHA256:
        return cached
    # pip checks the hash before it runs any of the archive's code
    listing = work / "horovod.txt"
    listing.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
    options = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--require-hashes"]
    # words as the shell parts them where the other packages are installed
    given = environment.get("PIP_ARGS", "").split()
    pip = [sys.executable, "-m", "pip", "download", *given, *options]
    command = [*pip, "--dest", str(work), "--requirement", str(listing)]
    if not run_logged(command, log, environment, label="downloading"):
        raise BuildError(f"horovod {VERSION} could not be downloaded: {last_error(log)}")
    fetched = work / cached.name
    if sha256_of(fetched) != SDIST_SHA256:
        raise BuildError(f"{fetched.name} has another SHA-256 than {SDIST_SHA256}")
    os.replace(fetched, cached)
    return cached


def patch(source: Path) -> None:
    """Apply PATCHES; raises BuildError where a text does not stand exactly once."""
    for name, old, new in PATCHES:
        path = source / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise BuildError(f"{name} holds {old.strip()!r} {text.count(old)} times, expected once")
        path.write_text(text.replace(old, new), encoding="utf-8")


def build_wheel(target: Target, log: Path, environment: Mapping[str, str]) -> Path:
    """The cached wheel of `target`, built if needed; raises BuildError."""
    folder = target.wheel_folder
    ready = sorted(folder.glob("horovod-*.whl"))
    if ready:
        return ready[0]
    check_tools(environment)
    with scratch_folder() as work:
        with tarfile.open(fetch_sdist(work, log, environment)) as tar:
            # Debian 12's 3.11.2 has no filters yet; the hash vouches for the archive there.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            tar.extractall(work)  # noqa: S202
        source = work / f"horovod-{VERSION}"
        patch(source)
        print(f"horovod: building {target.full_version} (2 to 5 minutes)", flush=True)
        options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(work)]
        command = [sys.executable, "-m", "pip", "wheel", "--verbose", *options, str(source)]
        compilation = build_environment(target, environment, work)
        if not run_logged(command, log, compilation, label="building"):
            raise BuildError(
                f"horovod {VERSION} does not build against torch {target.torch} ({target.kind}): "
                f"{last_error(log)}",
                lasting=True,
            )
        built = next(work.glob("horovod-*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(built, folder / built.name))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A build folder beside the wheels, so that the finished wheel is moved by a rename.

    Always of one name, because the compiler writes it into the library: equal sources then give
    equal bytes. Called under the lock only: what a killed build left there is removed first.
    """
    folder = cache_folder() / "wheels" / "build"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in `folder`; the kernel drops the lock of a killed one."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def install(wheel: Path, target: Target, log: Path, environment: Mapping[str, str]) -> None:
    """Install the wheel and load its library once; raises BuildError."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall"]
    if not run_logged([*pip, str(wheel)], log, environment, label="installing"):
        raise BuildError(f"{wheel.name} could not be installed: {last_error(log)}")
    check = f"import horovod.torch as hvd; assert hvd.{target.kind}_built()"
    if not run_logged([sys.executable, "-c", check], log, environment, label="loading"):
        wheel.unlink()
        raise BuildError(f"{wheel.name} does not load: {last_error(log)}", lasting=True)


def last_error(log: Path) -> str:
    """The line of the log that most likely says what went wrong."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if re.search(r"error\b[:\s]", line, re.IGNORECASE)]
    compiler = [line for line in errors if re.search(r"(fatal |CMake |#)error|error: ", line)]
    return (compiler or errors or lines or ["no output"])[0][:300]


def ensure(environment: Mapping[str, str], *, retry: bool, compile_only: bool = False) -> str:
    """Make Horovod importable and return its version; raises BuildError with the reason.

    `compile_only` leaves the wheel in the cache, for a call that comes when pip has ended.
    """
    target = read_target(environment)
    if installed_version() == target.full_version:
        return target.full_version
    reason_file, log = Path(sys.prefix, UNSUPPORTED_FILE), Path(sys.prefix, LOG_FILE)
    earlier = remembered_failure(reason_file, target)
    if earlier and not retry:
        raise BuildError(earlier, lasting=True)
    with locked(cache_folder() / "wheels"):
        log.unlink(missing_ok=True)
        wheel = build_wheel(target, log, environment)
        if not compile_only:
            install(wheel, target, log, environment)
    return target.full_version


def remembered_failure(reason_file: Path, target: Target) -> str | None:
    """Reason of an earlier failed compilation of the same target, or None."""
    try:
        reason, *details = reason_file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ValueError):
        return None
    return reason if f"lasting: {target.full_version}" in details else None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stop(signum: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exit that still ends the compilers."""
    sys.exit(128 + signum)


def main(argv: Sequence[str] | None = None) -> int:
    """Build and install; exit status 0 also when unsupported, unless `--strict`."""
    parser = argparse.ArgumentParser(description="Build and install Horovod for this torch.")
    parser.add_argument("--strict", action="store_true", help="exit 1 when it cannot be built")
    parser.add_argument("--retry", action="store_true", help="compile again after a failure")
    parser.add_argument("--compile-only", action="store_true", help="install nothing")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, stop)
    reason_file = Path(sys.prefix, UNSUPPORTED_FILE)
    try:
        try:
            version = ensure(os.environ, retry=args.retry, compile_only=args.compile_only)
        except OSError as fault:  # a folder that is read-only, full or has no locks
            place, reason = fault.filename or cache_folder() / "wheels", fault.strerror or fault
            raise BuildError(
                f"{place}: {reason}; set XDG_CACHE_HOME to a folder on a disk with room and locks"
            ) from fault
    except BuildError as error:
        lines = [str(error)]
        if error.lasting:  # it holds for this target
            lines.append(f"lasting: {read_target(os.environ).full_version}")
        temporary = reason_file.with_suffix(".tmp")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(temporary, reason_file)
        if args.compile_only:  # the call that installs says so
            return 0
        print(f"warning: no Horovod here: {error}", file=sys.stderr)
        print("warning: its runs will be recorded as unsupported, all others run", file=sys.stderr)
        if error.lasting:
            print(
                f"warning: the build log is {Path(sys.prefix, LOG_FILE)}; try again with "
                f"`{sys.executable} -m envs.build_horovod --retry`",
                file=sys.stderr,
            )
        return 1 if args.strict else 0
    reason_file.unlink(missing_ok=True)
    nccl = missing_nccl(os.environ) if has_cuda(os.environ) else None
    if nccl and not args.compile_only:
        print(f"warning: Horovod has Gloo alone, for runs on the CPU: {nccl}", file=sys.stderr)
    print(f"horovod {version} is {'compiled' if args.compile_only else 'installed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
