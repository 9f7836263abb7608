"""The container image of a run: the digest that it must have, and the command that enters it.

`make image` writes `images/samestep.sif` and, beside it, `images/samestep.json` with the digest of
its content. The same digest stands in a file of the image, so a process inside knows it by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.documents import read_made
from pipeline.errors import LaunchError
from pipeline.machine.site import NO_RUNTIME, PYXIS, Site
from pipeline.study.spec import RunSpec

DIGEST_FILE = Path("/etc/samestep-image-digest")
RUNTIMES = ("apptainer", "singularity")
BUILD = "run `make image`"


def digest_from_within() -> str | None:
    """Digest of the image that this process runs in; None on a host."""
    return DIGEST_FILE.read_text(encoding="utf-8").strip() if DIGEST_FILE.is_file() else None


def required_digest(spec: RunSpec, image: Path | None) -> str | None:
    """The digest that every rank must find within; None where the run may be on the host.

    Raises LaunchError where the image file and the study disagree, or the image is missing.
    """
    if image is None:
        return spec.image_digest
    locked = locked_digest(image)
    if spec.image_digest not in (None, locked):
        raise LaunchError(
            f"{spec.run_id}: the study is for image {spec.image_digest}, {image} is {locked}; "
            "build that image again or change the study's image_digest"
        )
    return locked


def locked_digest(image: Path) -> str:
    """The digest that the file beside the image states; raises LaunchError without it."""
    return str(facts(image)["image_digest"])


def facts(image: Path) -> dict[str, Any]:
    """Facts that `make image` has written beside an image; raises LaunchError without it.

    In `versions`, `unmet` are locked packages that do not work with the base's own torch or NumPy
    (training needs none of them), `strategies` the reasons why cells are unsupported inside, or
    None.
    """
    lock = image.with_suffix(".json")
    # Inside, the file itself may be out of sight: often it is a link into a store of images.
    if digest_from_within() is None and not image.exists():
        raise LaunchError(f"there is no image {image}; {BUILD}")
    try:
        stated = read_made(lock, "", LaunchError, "make image")
        return {"image_digest": stated["image_digest"], "versions": {}, **stated}
    except (LaunchError, KeyError, TypeError):
        raise LaunchError(f"image {image} has no readable {lock.name} beside it; {BUILD}") from None


def check_inside(required: str | None) -> None:
    """Raise LaunchError unless this process is inside the required image."""
    inside = digest_from_within()
    if required in (None, inside):
        return
    here, fix = f"this one is {inside}", f"{BUILD} or change the study's image_digest"
    if inside is None:
        here = "this process is on the host"
        fix = "start it with `--use-singularity` or a profile that sets it"
    raise LaunchError(f"the run must be inside image {required}, {here}; {fix}")


def enter(
    image: Path,
    site: Site,
    *,
    device: str,
    folders: Iterable[Path],
    variables: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The start of a command that runs inside `image`, with `folders` at their own paths.

    `variables` are set there over the image's own. The project's folder is home and working folder,
    so that the user's own home does not count; `--nv` brings the GPUs' driver in. For pyxis it is
    options of `srun`. Raises LaunchError without a runtime, or for an image that it cannot read.
    """
    here = Path.cwd()
    outside = {str(path) for path in folders if not path.is_relative_to(here)}
    mounts = sorted({*outside, *site.mounts})
    if site.runtime == NO_RUNTIME:
        raise LaunchError(
            f"the run is to be inside {image} and the site file has `runtime: none`; leave out "
            "--image or name a runtime there"
        )
    if site.runtime == PYXIS:
        if facts(image).get("format") == "sif":
            raise LaunchError(
                f"{image} is a SIF, which pyxis cannot read; build it by Docker or Buildah "
                "(BUILDER=docker), which makes squashfs"
            )
        pairs = [path if ":" in path else f"{path}:{path}" for path in (str(here), *mounts)]
        return (
            f"--container-image={image.resolve()}", f"--container-mounts={','.join(pairs)}",
            f"--container-workdir={here}", "--no-container-mount-home",
            *site.options, *site.inside(variables or {}),
        )  # fmt: skip
    runtime = next((name for name in RUNTIMES if shutil.which(name)), None)
    if runtime is None:
        raise LaunchError(
            f"neither {' nor '.join(RUNTIMES)} is on the PATH; install Apptainer, or load its "
            "module by a line of `before` in workflow/site.yaml"
        )
    return (
        runtime, "exec", *(["--nv"] if device == "cuda" else []),
        "--home", str(here), "--pwd", str(here), *(["--bind", ",".join(mounts)] if mounts else []),
        *site.options, str(image), *site.inside(variables or {}),
    )  # fmt: skip
