"""The locks hold hashes of every package but torch, and set-up lets pip check them."""

import re
from pathlib import Path

import pytest

from envs.image.lock import read_lock

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["requirements", "validator", "deepspeed", "axe"])
def test_every_package_but_torch_has_hashes(name: str) -> None:
    text = (ROOT / "envs" / f"{name}.lock").read_text(encoding="utf-8")
    pins = read_lock(text)
    without = [package for package, pin in pins.items() if not pin.hashes]
    assert pins and without == (["torch"] if name == "requirements" else [])
    assert text.count("--hash=sha256:") == sum(len(pin.hashes) for pin in pins.values())


def test_set_up_and_image_install_by_hash() -> None:
    for script in ("setup.sh", "image/2-packages.sh"):
        text = (ROOT / "envs" / script).read_text(encoding="utf-8")
        installs = re.findall(r"^ *install (.*)$", text, re.MULTILINE)
        assert [line for line in installs if "--require-hashes" not in line] == ['"$torch"']
