"""Every option of every command x every class of wrong value, and files that are no documents."""

import argparse
import os
import shutil
from pathlib import Path

import pytest

from pipeline.__main__ import ALL, _Parser
from pipeline.options import new_file
from tests.hostile.entries import Laid
from tests.hostile.entry import call, refusal

NO_PATHS = ("", " ", "a\0b", "a" * 300, "a/" * 3000, "fifo", "loop", "file/below")
PATHS = (*NO_PATHS, "none/such", "~/none", "$(touch made)", "-rf", "\udcff", "none\n")
"""What is absent cannot be read, but may be where it is written: that takes `NO_PATHS` alone."""

NUMBERS = ("", "-1", "0.5", "nan", "1e3", "9" * 30, "٣", "1 000", "0x10", "--", "one")
WORDS = ("", "nothing", "a\nb", "\ud800", "-1", "nan", "9" * 400 + "GiB")


@pytest.fixture(autouse=True)
def odd_files(here: Path) -> None:
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")
    Path("file").write_text("text")


def parser_of(stage: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=stage)
    ALL[stage].add_arguments(parser)
    return parser


def actions(stage: str) -> list[argparse.Action]:
    known = parser_of(stage)._actions
    return [action for action in known if not isinstance(action, argparse._HelpAction)]


def wrong_values(action: argparse.Action) -> tuple[str, ...]:
    if action.nargs == 0:
        return ()
    named = getattr(action.type, "__name__", "")
    if named == "number":
        return NUMBERS
    if named in ("new_file", "new_folder"):
        return NO_PATHS
    return PATHS if named in ("path", "study", "file", "folder") else WORDS


def good(laid: Laid, action: argparse.Action) -> list[str]:
    """A value that may be, so that the other option's is what is wrong."""
    values = {
        "study": laid.study, "metrics": laid.metrics, "runs": laid.results / "runs",
        "figures": laid.results / "figures", "tables": laid.results / "tables",
        "results": laid.results, "one": laid.results, "other": laid.results,
        "spec": laid.record("spec.json"), "tokens": laid.results / "tokens",
    }  # fmt: skip
    if action.choices:
        return [str(next(iter(action.choices)))]
    return [str(values.get(action.dest, "0" if action.dest == "repeat" else "out"))]


@pytest.mark.parametrize("stage", ALL)
def test_every_option(laid: Laid, here: Path, stage: str) -> None:
    known = actions(stage)
    for action in known:
        for value in wrong_values(action):
            given: list[str] = []
            for other in known:
                flags = other.option_strings
                if other is action:
                    given += [f"{flags[0]}={value}"] if flags else [value]
                elif other.required and other.option_strings:
                    given += [other.option_strings[0], *good(laid, other)]
                elif other.required:
                    given += good(laid, other)
            # Some words are right for it.
            free = action.dest == "scheduler"
            status, said = call(here, stage, *given, may_leave=free)
            assert status == 2 or free or action.type is None, (given, status, said)


WRITTEN = {
    ("new_file", "path"), ("new_file", "study"), ("new_file", "file"), ("new_file", "folder"),
    ("new_folder", "folder"), ("new_folder", "path"), ("new_folder", "study"),
}  # fmt: skip
"""Types of two options of which the first must not name what the second does."""


def line_of(laid: Laid, stage: str, given: dict[str, list[str]]) -> list[str]:
    """A command with these values, and the rest of what it requires."""
    words: list[str] = []
    for action in actions(stage):
        flags = action.option_strings[:1]
        if action.dest in given:
            words += [*flags, *given[action.dest]]
        elif action.required:
            words += [*flags, *good(laid, action)]
    for group in parser_of(stage)._mutually_exclusive_groups:
        one_of = {action.dest: action for action in group._group_actions}
        if group.required and not one_of.keys() & given.keys():
            words += ["--study", *good(laid, one_of["study"])]
    return words


def test_what_is_written_is_none_of_what_is_read(laid: Laid, here: Path) -> None:
    wrong, both = [], here / "both"
    known = [(stage, actions(stage)) for stage in ALL]
    pairs = [(stage, out, read) for stage, own in known for out in own for read in own]
    for stage, out, read in pairs:
        made, kind = (getattr(one.type, "__name__", "") for one in (out, read))
        if (made, kind) not in WRITTEN or not read.option_strings:
            continue
        if kind == "folder" or "folder" in made:
            (both / "below").mkdir(parents=True)
            (both / "below/kept").write_text("precious")
        else:
            both.write_text("precious")
        written = both / "below/kept" if out.type is new_file and kind == "folder" else both
        given = {out.dest: [str(written)], read.dest: [str(both)]}
        status, said = call(here, stage, *line_of(laid, stage, given))
        if status != 2 or "would be changed" not in said:
            wrong.append((stage, out.dest, read.dest, status, said))
        shutil.rmtree(both) if both.is_dir() else both.unlink()
    assert not wrong, wrong


@pytest.mark.parametrize("out", ["a", "a/new", "b/tables"])
def test_what_is_compared_stays_as_it_is(laid: Laid, here: Path, out: str) -> None:
    for name in ("a", "b"):
        shutil.copytree(laid.results, here / name)
    assert "would be changed" in refusal(here, "compare", "a", "b", "--out", out)


FILES = {"empty": b"", "text": b"text", "PAR1": b"PAR1" * 9, "zip": b"PK\x05\x06" + b"\0" * 18}


@pytest.mark.parametrize("kind", [*FILES, "fifo", "folder", "device", "missing"])
def test_tables_and_archives_that_are_none(laid: Laid, here: Path, kind: str) -> None:
    given: Path = {"fifo": here / "fifo", "folder": here, "device": Path("/dev/zero")}.get(
        kind, here / f"given-{kind}"
    )
    if kind in FILES:
        given.write_bytes(FILES[kind])
    refusal(here, "unpack", "--archive", given, "--into", "out")
    refusal(here, "table", "status", "--metrics", given, "--out", "out")
    study = ("--study", laid.study, "--metrics", given, "--out", "out/file")
    claims = Path(__file__).parents[2] / "workflow/config/bai2022/claims.yaml"
    refusal(here, "claims", "--claims", claims, *study)
    refusal(here, "strategies", "--readme", given)
