"""Commands: `people` has what people type, `stages` what the workflow calls.

A command is a function of its arguments that returns the exit status. Its docstring begins with its
summary and has an example between backticks. Everything else is imported when it runs, so that
`figure` never pays for torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from pipeline import options

Declare = Callable[[argparse.ArgumentParser], object]
"""Adds one argument, or some that belong together, to a parser."""


@dataclass
class Command:
    """A command's purpose, an example of it, its arguments and the function that it runs."""

    summary: str
    example: str
    arguments: tuple[Declare, ...]
    run: Callable[[argparse.Namespace], int]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare them."""
        for declare in self.arguments:
            declare(parser)


def command(commands: dict[str, Command], *arguments: Declare) -> Callable[..., Any]:
    """Enter the decorated function in `commands` under its name, with its arguments."""

    def enter(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        summary, _, rest = str(run.__doc__).partition("\n")
        summary = summary.strip().rstrip(".")
        name = run.__name__
        commands[name] = Command(
            summary[0].lower() + summary[1:], rest.split("`")[1], arguments, run
        )
        return run

    return enter


def option(*names: str, **settings: Any) -> Declare:
    """An argument as `add_argument` takes it."""
    return lambda parser: parser.add_argument(*names, **settings)


def arguments_of(owner: str, *words: str) -> Declare:
    """Arguments that an owner, `module` or `module:name`, declares; it is imported when it does."""
    return lambda parser: resolve_name(owner).add_arguments(parser, *words)


def one_of(*choices: Declare, required: bool = False) -> Declare:
    """Arguments that exclude each other."""

    def declare(parser: argparse.ArgumentParser) -> None:
        group: Any = parser.add_mutually_exclusive_group(required=required)
        for choice in choices:
            choice(group)

    return declare


SITE = option("--site", type=options.path, help="site file of a cluster, workflow/site.yaml")
STUDY = option("--study", type=options.study, required=True, help=options.STUDY)
STUDY_OR_RESULTS = one_of(
    option("--study", type=options.study, help=options.STUDY),
    option("--results", type=options.folder, help="folder results/<study>"),
    required=True,
)
