"""The locks hold hashes of every package but torch, and set-up lets pip check them."""

import re
from pathlib import Path

import pytest

from envs.image.lock import read_lock
from tests.programs import ran

ROOT = Path(__file__).parents[3]
SCRIPT = (ROOT / "envs" / "lock.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["requirements", "validator", "deepspeed", "axe"])
def test_every_package_but_torch_has_hashes(name: str) -> None:
    text = (ROOT / "envs" / f"{name}.lock").read_text(encoding="utf-8")
    pins = read_lock(text)
    without = [package for package, pin in pins.items() if not pin.hashes]
    assert pins and without == (["torch"] if name == "requirements" else [])
    assert text.count("--hash=sha256:") == sum(len(pin.hashes) for pin in pins.values())


def test_torch_loses_local_tag_and_hashes_as_the_lock_is_made(tmp_path: Path) -> None:
    """The filter of envs/lock.sh by itself: pip-compile needs an index."""
    (program,) = re.findall(r"awk '(.*?)'", SCRIPT, re.DOTALL)
    made = (
        "numpy==2.4.6 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via torch\n"
        "torch==2.13.0+cpu \\\n    --hash=sha256:cc\n    # via -r envs/requirements.in\n"
        "tqdm==4.70.1 \\\n    --hash=sha256:dd\n"
    )
    done = ran(["awk", program], input=made, check=True)
    assert done.stdout == made.replace("+cpu \\\n    --hash=sha256:cc", "")


def test_set_up_and_image_install_by_hash() -> None:
    for script in ("setup.sh", "image/2-packages.sh"):
        text = (ROOT / "envs" / script).read_text(encoding="utf-8")
        installs = re.findall(r"^ *install (.*)$", text, re.MULTILINE)
        assert [line for line in installs if "--require-hashes" not in line] == ['"$torch"']
