"""Emulated nodes on Debian's own kernel: netem, and a user without rights.

It runs in a virtual machine over this machine's files, and has control groups of version 2 alone,
netem and namespaces for everybody, as a current desktop has. The processor is emulated (no KVM):
right for what a kernel does, wrong for times. The guest reads this machine's root folder below an
overlay, so nothing that it writes lasts. It needs the packages `qemu-system-x86 busybox-static cpio
kmod`; the kernel is downloaded and not installed.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.programs import ran
from tests.system import in_nodes

USER = "65534"
"""Debian's `nobody`: in no group, owner of nothing."""

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / ".cache" / "debian-kernel"
PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "modprobe", "depmod", "apt-get", "dpkg")
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "veth", "bridge", "sch_netem", "sch_tbf")
SECONDS = 600

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
while read module; do insmod /modules/$module; done </order
mkdir -p /low /up
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /low
mount -t tmpfs none /up; mkdir /up/upper /up/work
mount -t overlay -o lowerdir=/low,upperdir=/up/upper,workdir=/up/work none /new
for place in proc:proc sysfs:sys devtmpfs:dev tmpfs:run; do
    mount -t ${place%:*} none /new/${place#*:}
done
mkdir -p /new/dev/shm; mount -t tmpfs none /new/dev/shm
mount -t cgroup2 none /new/sys/fs/cgroup
ip link set lo up
cp /script /bin/busybox /new/run/
# Not chroot, in which nobody may make a user namespace.
exec switch_root /new /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root /bin/sh -c \
    'bash /run/script; echo "guest-exit $?"; /run/busybox poweroff -f'
"""


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")


def why_missing() -> str | None:
    """Reason why the machine cannot start, or None; puts Debian's kernel into the cache."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return (
            f"no {', '.join(absent)}; "
            "install qemu-system-x86 busybox-static cpio kmod on a Debian system"
        )
    if (KERNEL / "boot").is_dir():
        return None
    depends = _run(["apt-cache", "depends", "linux-image-amd64"]).stdout.split()
    name = next((word for word in depends if word.startswith("linux-image-6")), None)
    if name is None:
        return "apt-cache knows no kernel; run apt-get update"
    KERNEL.parent.mkdir(parents=True, exist_ok=True)
    if _run(["apt-get", "download", name], cwd=KERNEL.parent).returncode:
        return f"apt-get cannot download {name}; run apt-get update"
    package = next(KERNEL.parent.glob("linux-image-*.deb"))
    new = KERNEL.with_name("debian-kernel.new")
    shutil.rmtree(new, ignore_errors=True)
    _must(["dpkg", "-x", package, new])
    package.unlink()
    _must([_program("depmod"), "-b", new, _version(new)])
    new.rename(KERNEL)
    return None


def _version(kernel: Path) -> str:
    return next((kernel / "lib/modules").iterdir()).name


def run_in_guest(script: str, folder: Path) -> str:
    """Run a shell script as root in the guest; what it wrote to the console.

    `folder` is an empty one for the guest's start. Raises AssertionError unless the script ended
    with 0.
    """
    _make_initrd(script, folder)
    kernel = next((KERNEL / "boot").glob("vmlinuz-*"))
    command: list[str | Path] = [
        *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "3072"),
        *("-nographic", "-no-reboot", "-kernel", kernel, "-initrd", folder / "init.gz"),
        *("-append", "console=ttyS0 quiet panic=1"),
        "-virtfs",
        "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]
    done = ran(command, stdin=subprocess.DEVNULL, timeout=SECONDS)
    console = done.stdout.replace("\r", "")
    assert "guest-exit 0" in console, console[-4000:] + done.stderr
    return console


def _make_initrd(script: str, folder: Path) -> None:
    """The guest's first files: busybox, modules in their order, the way into the host's root."""
    root = folder / "init-root"
    for name in ("bin", "proc", "sys", "dev", "modules", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy(str(_program("busybox")), root / "bin" / "busybox")
    (root / "script").write_text(script, encoding="utf-8")
    (root / "init").write_text(INIT, encoding="utf-8")
    (root / "init").chmod(0o755)
    files: list[Path] = []
    for module in MODULES:
        show = [_program("modprobe"), "-d", KERNEL, "-S", _version(KERNEL), "--show-depends"]
        lines = (line.split() for line in _must([*show, module]).splitlines())
        files += [Path(line[1]) for line in lines if line[0] == "insmod"]
    order = list(dict.fromkeys(files))
    for file in order:
        shutil.copy(file, root / "modules")
    (root / "order").write_text("".join(f"{file.name}\n" for file in order), encoding="utf-8")
    names = "\n".join(str(path.relative_to(root)) for path in [root, *root.rglob("*")])
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    (folder / "init.gz").write_bytes(packed.stdout)


def _run(command: Sequence[object], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return ran([str(part) for part in command], cwd=cwd)


def _must(command: Sequence[object]) -> str:
    done = _run(command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_user_without_rights_gets_nodes_and_a_link_with_a_delay(tmp_path: Path) -> None:
    """A training as such a user, on this machine's kernel, is in `test_as_nobody.py`."""
    if reason := why_missing():
        pytest.skip(reason)
    ask = f"{shlex.quote(sys.executable)} -m tests.system.in_nodes delay"
    user = f"setpriv --reuid {USER} --regid {USER} --clear-groups env HOME=/run/user"
    # An interpreter may lie in /root, the checkout anywhere.
    open_the_way = 'chmod a+rx /root; path=$PWD; while [ "$path" != / ]; do chmod a+rx "$path"; '
    open_the_way += 'path=$(dirname "$path"); done'
    lines = (f"cd {shlex.quote(str(ROOT))}", "mkdir -m 777 /run/user", open_the_way, "echo")
    console = run_in_guest("\n".join([*lines, f"{user} {ask}\n"]), tmp_path)
    (line,) = [line for line in console.splitlines() if line.startswith("{")]
    seen = json.loads(line)
    assert seen["reason"] is None
    assert seen["seconds"] >= 2 * in_nodes.DELAY_US / 1e6
