"""`python -m pipeline clean --study smoke --confirm=yes`: remove results/<study>."""

from __future__ import annotations

import argparse
import shutil

from pipeline import options

SUMMARY = "remove the results of one study, measured runs included"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--confirm", default="", help="`yes`, since runs cannot be brought back")


def run(args: argparse.Namespace) -> int:
    """Remove the folder that the study names, and nothing that a symlink points to."""
    from pipeline.errors import SamestepError
    from pipeline.study.load import results_folder

    folder = results_folder(args.study)
    if folder.is_symlink():
        raise SamestepError(f"{folder} is a symlink to {folder.readlink()}; remove it by hand")
    if not folder.is_dir():
        raise SamestepError(f"there is no {folder}, so nothing to remove")
    if args.confirm != "yes":
        raise SamestepError(f"this removes {folder} and its measured runs; add CONFIRM=yes")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise SamestepError(
            f"could not remove {folder}: {error.strerror or error} ({error.filename}); "
            "fix the permissions"
        ) from error
    print(f"removed {folder}")
    return 0
