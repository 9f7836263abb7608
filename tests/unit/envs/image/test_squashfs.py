import os
import shutil
import subprocess
from pathlib import Path

import pytest

from envs.image.squashfs import environment_script, pack_command, write_environment
from tests.programs import ran


def sourced(folder: Path, variables: list[str], **caller: str) -> dict[str, str]:
    """The environment after a shell with the caller's variables has read the script."""
    script = folder / "environment.sh"
    script.write_text(environment_script(variables))
    command = ["/bin/sh", "-c", '. "$1"; exec /usr/bin/env -0', "sh", str(script)]
    done = ran(command, env=caller, check=True)
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)


@pytest.mark.parametrize(
    "value", ["plain", "two words", "it's", '$(touch x) `id` "q" \\', "a=b", ""]
)
def test_values_arrive_as_they_are(tmp_path: Path, value: str) -> None:
    assert sourced(tmp_path, [f"NAME={value}"])["NAME"] == value


def test_the_image_decides_over_the_host(tmp_path: Path) -> None:
    variables = ["PATH=/opt/samestep/bin:/usr/bin", "CUDA_HOME=/usr/local/cuda", "EMPTY=x"]
    host = {"PATH": "/host/bin:/usr/bin", "CUDA_HOME": "/host", "EMPTY": ""}
    shown = sourced(tmp_path, variables, **host)
    assert shown["PATH"] == "/opt/samestep/bin:/usr/bin"
    assert (shown["CUDA_HOME"], shown["EMPTY"]) == ("/usr/local/cuda", "x")


def test_it_lies_where_apptainer_reads_it(tmp_path: Path) -> None:
    """And sets what the caller gives after a script of exactly the last name, never without one."""
    folder = write_environment(["A=b"], tmp_path)
    first, last = sorted((folder / "env").iterdir())
    assert (folder.name, first.name, last.name) == (
        ".singularity.d", "10-docker2singularity.sh", "99-base.sh",
    )  # fmt: skip
    assert (first.read_text(), last.read_text()) == (environment_script(["A=b"]), "#!/bin/sh\n")
    assert last.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(not shutil.which("mksquashfs"), reason="Debian package squashfs-tools")
def test_equal_folders_are_packed_into_equal_bytes(tmp_path: Path) -> None:
    """Whenever their files were made, and in whatever order."""
    packed = []
    for place, names in enumerate((("a", "b"), ("b", "a"))):
        folder = tmp_path / str(place)
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name * 100_000)
            os.utime(folder / name, (place, place))
        command = pack_command(".", tmp_path / f"{place}.sif")
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        packed.append((tmp_path / f"{place}.sif").read_bytes())
    assert packed[0] == packed[1]
