#!/usr/bin/env python3
"""TEST ONLY: a stand-in for the `singularity` command on machines that have none.

It runs what Snakemake calls (`--version`, `exec` with its options) in namespaces of the kernel, and
keeps to what Apptainer does: the image is read-only, the home, the working folder, /tmp and the
host's own names are mounted, the caller stays who he is, the image sets PATH and its environment.
Images: an unpacked folder or a squashfs file.

Who calls as root needs nothing else. For others the kernel must allow user namespaces, and as only
root may mount squashfs, a file is unpacked once into a cache folder (SINGULARITY_CACHEDIR).
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

VERSION = "singularity version 3.11.99-standin"
HOST_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/passwd", "/etc/group", "/etc/localtime")
HOST_FOLDERS = ("/proc", "/sys", "/dev", "/tmp", "/var/tmp")
# The image wins over the host.
ENTER = (
    'for file in /.singularity.d/env/*.sh; do [ ! -f "$file" ] || . "$file"; done; exec env "$@"'
)


def fatal(message: str) -> NoReturn:
    """End as Apptainer ends when it cannot start a container."""
    print(f"FATAL:   {message}", file=sys.stderr)
    sys.exit(255)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Arguments of `exec`: those that Snakemake and the launchers write."""
    parser = argparse.ArgumentParser(prog="singularity exec", allow_abbrev=False)
    parser.add_argument("--home", default=os.environ.get("HOME", "/root"))
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--pwd", default=str(Path.cwd()))
    parser.add_argument("--nv", action="store_true")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    if not args.command:
        fatal("exec needs an image and a command")
    return args


def mounts(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Source on the host, place in the image, and `rw` or `ro`, parents before children."""
    source, _, place = args.home.partition(":")
    wanted = {folder: (folder, "rw") for folder in HOST_FOLDERS}
    here = str(Path.cwd())
    wanted |= {here: (here, "rw"), place or source: (source, "rw")}
    for bind in ",".join(args.bind).split(","):
        if bind:
            first, *rest = bind.split(":")
            wanted[rest[0] if rest else first] = (first, "ro" if rest[1:] == ["ro"] else "rw")
    for place, (source, _) in wanted.items():
        if not Path(source).exists():
            fatal(f"container creation failed: mount {source}->{place} error: no such file")
    ordered = sorted(wanted.items(), key=lambda item: Path(item[0]).parts)
    return [(source, place, mode) for place, (source, mode) in ordered]


def environment(args: argparse.Namespace) -> dict[str, str]:
    """The command's environment before the image's own scripts have their say."""
    inherited = {name: os.environ[name] for name in os.environ if name != "LD_LIBRARY_PATH"}
    source, _, place = args.home.partition(":")
    return inherited | {
        "HOME": place or source,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SINGULARITY_CONTAINER": str(Path(args.image).resolve()),
        "SINGULARITY_NAME": Path(args.image).name,
    }


def unpacked(image: Path) -> Path:
    """The folder of a squashfs file for a caller who may not mount it, unpacked once."""
    own = os.environ.get("SINGULARITY_CACHEDIR")
    base = Path(own) if own else Path.home() / ".cache" / "singularity-standin"
    base.mkdir(parents=True, exist_ok=True)
    status = image.stat()
    key = f"{image}:{status.st_size}:{status.st_mtime_ns}:{os.getuid()}"
    folder = base / hashlib.sha256(key.encode()).hexdigest()[:16]
    with (base / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if not folder.is_dir():
            print("INFO:    Converting image to a folder", file=sys.stderr)
            work = Path(tempfile.mkdtemp(dir=base))
            # device files are root's alone to make; the host's /dev is mounted there anyway
            quiet = ["-quiet", "-no-progress", "-no-xattrs"]
            target = ["-dest", f"{work}/root", "-excludes", str(image), "dev"]
            command = ["unsquashfs", *quiet, *target]
            if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
                fatal(f"while extracting {image}: unsquashfs failed")
            Path(work, "root").chmod(0o755)
            os.replace(work / "root", folder)
            work.rmdir()
    return folder


def execute(args: argparse.Namespace) -> NoReturn:
    """Start a second copy of this program inside new namespaces."""
    image = Path(args.image)
    if not image.exists():
        fatal(f"could not open image {image.absolute()}: failed to retrieve path: no such file")
    if args.nv and not list(Path("/dev").glob("nvidia*")):
        print("INFO:    Could not find any nv files on this host!", file=sys.stderr)
    is_root = os.getuid() == 0
    image = image.resolve()
    plan = {
        "image": str(image if image.is_dir() or is_root else unpacked(image)),
        "mounts": mounts(args),
        "pwd": args.pwd,
        "command": args.command,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "environment": environment(args),
    }
    # Only inside a namespace of his own may a user mount; there he is root for a moment.
    namespaces = ["--mount"] if is_root else ["--user", "--map-root-user", "--mount"]
    inside = [sys.executable, __file__, "--inside", json.dumps(plan)]
    os.execvp("unshare", ["unshare", *namespaces, "--propagation", "private", *inside])


def mount(*arguments: str) -> None:
    """Mount, or end like Apptainer does."""
    done = subprocess.run(["mount", *arguments], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        fatal(f"container creation failed: mount {' '.join(arguments)}: {done.stderr.strip()}")


def lay(source: Path | None, target: Path, places: list[tuple[str, ...]]) -> None:
    """Show the read-only folder `source` under `target`, with empty `places` where it has none.

    Apptainer's underlay: a folder that lacks a place is made anew on a temporary file system, and
    its entries are mounted there one by one.
    """
    below: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in places:
        below.setdefault(first, []).append(tuple(rest))
    for entry in sorted(source.iterdir()) if source else ():
        shown = target / entry.name
        missing = [rest for rest in below.pop(entry.name, []) if not entry.joinpath(*rest).exists()]
        if entry.is_symlink():
            shown.symlink_to(entry.readlink())
        elif missing:
            shown.mkdir()
            lay(entry, shown, missing)
        else:
            shown.mkdir() if entry.is_dir() else shown.touch()
            mount("--bind", str(entry), str(shown))
            mount("--options", "remount,bind,ro", str(shown))
    for name, rests in below.items():
        (target / name).mkdir()
        if any(rests):
            lay(None, target / name, [rest for rest in rests if rest])


def run_inside(plan: dict[str, object]) -> NoReturn:
    """Within the namespaces: build the root, then become the command."""
    image = Path(str(plan["image"]))
    binds: list[list[str]] = plan["mounts"]  # type: ignore[assignment]
    # the new root must not hide what is mounted into it
    used = [image, *(Path(source) for source, _, _ in binds)]
    empty = [Path("/mnt"), Path("/media"), Path("/srv")]
    base = next(path for path in empty if not any(u.is_relative_to(path) for u in used))
    mount("--types", "tmpfs", "--options", "mode=755", "standin", str(base))
    if not image.is_dir():
        (base / "image").mkdir()
        mount("--types", "squashfs", "--options", "loop,ro", str(image), str(base / "image"))
        image = base / "image"
    root = base / "root"
    root.mkdir()
    lay(image, root, [Path(place).parts[1:] for _, place, _ in binds])
    for host in HOST_FILES:
        if Path(host).exists() and (root / host[1:]).is_file():
            mount("--bind", host, str(root / host[1:]))
    for source, place, mode in binds:
        shown = root / place[1:]
        if not Path(source).is_dir() and shown.is_dir():
            shown.rmdir()
            shown.touch()
        mount("--rbind", source, str(shown))
        if mode == "ro":
            mount("--options", "remount,bind,ro", str(shown))
    mount("--options", "remount,bind,ro", str(base))
    command = ["unshare"]
    if plan["uid"] != 0:
        command += ["--user", f"--map-user={plan['uid']}", f"--map-group={plan['gid']}"]
    command += [f"--root={root}", f"--wd={plan['pwd']}"]
    arguments: list[str] = plan["command"]  # type: ignore[assignment]
    program = shutil.which("unshare") or "/usr/bin/unshare"
    variables: dict[str, str] = plan["environment"]  # type: ignore[assignment]
    os.execve(program, [*command, "/bin/sh", "-c", ENTER, "sh", *arguments], variables)


def main(arguments: list[str]) -> None:
    """Do what the command line asks."""
    while arguments and arguments[0] in ("--quiet", "-q", "--silent", "-s", "--debug"):
        arguments = arguments[1:]
    match arguments:
        case ["--version" | "version"]:
            print(VERSION)
        case ["--inside", plan]:
            run_inside(json.loads(plan))
        case ["exec", *rest]:
            execute(parse(rest))
        case _:
            fatal(f"the stand-in does not know: singularity {' '.join(arguments[:1])}")


if __name__ == "__main__":
    main(sys.argv[1:])
