"""Build the container image and pack it into one file that `snakemake --use-singularity` runs.

    python3 -m envs.build_image [--force]          (or `make image`)

Needs the standard library only, so it works before `.venv` exists. It takes the first builder that
works here (Docker, Buildah, Apptainer), builds the Dockerfile or envs/samestep.def, and leaves

    images/samestep.sif     squashfs, which Apptainer runs, or the SIF that it built by itself
    images/samestep.json    what is in it: digests, versions, base image, commit

Both appear by a rename, so a failed build leaves the last image as it was. Where nothing that the
image is made of has changed since, there is nothing to do. Variables: IMAGE (current or apex),
BASE_IMAGE (another base), BUILDER (docker, buildah, apptainer), BUILD_OPTIONS (further options of
the builder's `build`), PIP_ARGS (options of `pip install` and `pip download` inside, so one that
both know, such as an index). PIP_ARGS stands in the image's history: a token belongs into a
pip.conf or netrc that BUILD_OPTIONS mounts instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.build_horovod import locked, sha256_of, stop
from envs.image.builders import BUILDERS, Apptainer, Builder, ImageError, Recipe
from pipeline.machine.source import provenance

_26_06 = "sha256:abd110b23600e877173dafc3078385b7c13ddacd7e0c6a6acb0a864586d59622"
BASES = {
    # By digest alone: some builders refuse a tag beside it.
    "current": f"nvcr.io/nvidia/pytorch@{_26_06}",
    "apex": "nvcr.io/nvidia/pytorch:25.04-py3",
}
"""Base of each of the two images: for `current` the tag 26.06-py3, for `apex` one with Apex."""

BASE_IMAGE = BASES["current"]
SOURCES = (
    *("Dockerfile", ".dockerignore", "envs", "pipeline"),
    *("pyproject.toml", "README.md", "LICENSE"),
)
"""Sources of an image; a change of any file below makes it stale."""

IMAGE = "samestep.sif"
FACTS = "samestep.json"
LOG = "build.log"
DIGEST_FILE = "/etc/samestep-image-digest"
VERSIONS_FILE = "/opt/samestep/versions.json"


def choose(wanted: str) -> Builder:
    """The builder called `wanted`, or the first that works; raises ImageError naming packages."""
    builders: list[Builder] = [make() for make in BUILDERS]
    names = [builder.name for builder in builders]
    if wanted and wanted not in names:
        raise ImageError(f"BUILDER={wanted} is unknown; expected one of {', '.join(names)}")
    reasons = []
    for builder in builders:
        if wanted in ("", builder.name):
            reason = builder.refusal()
            if reason is None:
                return builder
            reasons.append(f"{builder.name} {reason}")
    raise ImageError(
        f"nothing here can build an image: {'; '.join(reasons)}; install one of them "
        "(Debian: `apt-get install buildah squashfs-tools`, or docker.io with docker-buildx; "
        "Apptainer: apptainer.org)"
    )


def check_packer(builder: Builder) -> None:
    """Raise ImageError, before minutes of building, when nothing can make the one file."""
    if isinstance(builder, Apptainer) or shutil.which("mksquashfs"):
        return
    raise ImageError(
        "mksquashfs is not installed, which makes the image file; install it (Debian: `apt-get "
        "install squashfs-tools`), or set BUILDER=apptainer, which needs none"
    )


def inputs_digest(root: Path, *settings: str) -> str:
    """SHA-256 over everything that decides what is in the image: SOURCES and the settings."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for name in SOURCES:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                content = sha256_of(path)
                digest.update(f"{path.relative_to(root)}\0{content}\0".encode())
    return f"sha256:{digest.hexdigest()}"


def git_commit(root: Path) -> str | None:
    """The checkout's commit, with `-dirty` where its source was changed; None without git."""
    source = provenance(root)
    dirty = "" if source["git_dirty"] is False else "-dirty"
    return f"{source['git_commit']}{dirty}" if source["git_commit"] else None


def is_current(folder: Path, inputs: str) -> bool:
    """True where the image file in `folder` was made from `inputs` and is still whole."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    image = folder / IMAGE
    return (
        facts.get("inputs_sha256") == inputs
        and image.is_file()
        and facts.get("file_sha256") == f"sha256:{sha256_of(image)}"
    )


def build(folder: Path, builder: Builder, recipe: Recipe, inputs: str) -> dict[str, Any]:
    """Make the image file and its facts below `folder`, and return the facts."""
    image, facts_file = folder / IMAGE, folder / FACTS
    temporary = [path.with_name(f".{path.name}.new") for path in (image, facts_file)]
    try:
        oci_digest: str | None = None
        if isinstance(builder, Apptainer):
            form = "sif"
            builder.build_file(temporary[0], recipe)
        else:
            form = "squashfs"
            oci_digest = builder.build(recipe)
            builder.pack(temporary[0], recipe)
        facts = {
            "image_digest": builder.read(DIGEST_FILE).strip(),
            "oci_digest": oci_digest,
            "file_sha256": f"sha256:{sha256_of(temporary[0])}",
            "file_bytes": temporary[0].stat().st_size,
            "format": form,
            "base_image": recipe.base_image,
            "base_digest": builder.base_digest(recipe),
            "builder": builder.name,
            "git_commit": recipe.git_commit or None,
            "inputs_sha256": inputs,
            "versions": json.loads(builder.read(VERSIONS_FILE)),
        }
        temporary[1].write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        temporary[0].chmod(0o644)
        for made, final in zip(temporary, (image, facts_file), strict=True):
            os.replace(made, final)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    return facts


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the environment's variables beside them."""
    parser = argparse.ArgumentParser(description="Build the container image into one file.")
    parser.add_argument("--folder", type=Path, default=Path("images"), help="where the files go")
    parser.add_argument("--force", action="store_true", help="also when nothing has changed")
    args = parser.parse_args(argv)
    for name in ("image", "base_image", "builder", "build_options", "pip_args"):
        setattr(args, name, os.environ.get(name.upper(), ""))
    args.image = args.image or "current"
    if args.image not in BASES:
        parser.error(f"IMAGE={args.image} is unknown; expected one of {', '.join(BASES)}")
    args.base_image = args.base_image or BASES[args.image]
    return args


def run(args: argparse.Namespace) -> None:
    """Build unless the image is current; raises ImageError."""
    root = Path.cwd()
    try:
        options = tuple(shlex.split(args.build_options))
    except ValueError as error:
        raise ImageError(f"BUILD_OPTIONS={args.build_options}: {error}") from error
    inputs = inputs_digest(root, args.base_image, args.pip_args, *options)
    folder = args.folder.resolve()
    with locked(folder):
        image = args.folder / IMAGE
        if not args.force and is_current(folder, inputs):
            print(f"{image} is up to date")
            return
        builder = choose(args.builder)
        check_packer(builder)
        log = folder / LOG
        log.unlink(missing_ok=True)
        commit = git_commit(root) or ""
        recipe = Recipe(args.base_image, commit, args.pip_args, options, log)
        print(f"image: {builder.name} builds from {args.base_image}; its log is {log}", flush=True)
        facts = build(folder, builder, recipe, inputs)
    megabytes = facts["file_bytes"] / 1e6
    print(f"{image} ({facts['format']}, {megabytes:.0f} MB) holds {facts['image_digest']}")


def main(argv: Sequence[str] | None = None) -> int:
    """Build; exit status 2 and one line when it cannot be done."""
    if sys.version_info < (3, 11):  # noqa: UP036  (the host's own, before .venv)
        version = sys.version.split()[0]
        print(f"error: Python {version}, expected 3.11 or later; set PYTHON=", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, stop)
    try:
        run(parse(argv))
    except ImageError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
