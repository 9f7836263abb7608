"""Commands: `people` has what people type, `stages` what the workflow calls.

A command is a function of its arguments that returns the exit status, or None for 0. Its docstring
begins with its summary and has an example between backticks. Everything else is imported when it
runs, so that `figure` never pays for torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from pipeline import options

Declare = Callable[[Any], object]
"""Adds one argument, or some that belong together, to a parser or to a group of one."""

Run = Callable[[argparse.Namespace], int | None]


@dataclass
class Command:
    """A command's purpose, an example of it, its arguments and the function that it runs."""

    summary: str
    example: str
    add_arguments: Declare
    run: Run


def command(commands: dict[str, Command], *arguments: Declare) -> Callable[..., Any]:
    """Enter the decorated function in `commands` under its name, with its arguments."""

    def enter(run: Run) -> Run:
        summary, _, rest = str(run.__doc__).partition("\n")
        summary = summary[0].lower() + summary[1:].rstrip(".")
        commands[run.__name__] = Command(summary, rest.split("`")[1], together(*arguments), run)
        return run

    return enter


def option(name: str, kind: Callable[[str], Any], help: str, **settings: Any) -> Declare:
    """An argument whose text `kind` reads, str any; `settings` are those of `add_argument`."""
    settings |= {"help": help} if kind is str else {"help": help, "type": kind}
    return lambda parser: parser.add_argument(name, **settings)


def needed(name: str, kind: Callable[[str], Any], help: str) -> Declare:
    """An option that must be given."""
    return option(name, kind, help, required=True)


def flag(name: str, help: str) -> Declare:
    """An option without a value."""
    return lambda parser: parser.add_argument(name, action="store_true", help=help)


def arguments_of(owner: str, *words: str) -> Declare:
    """Arguments that an owner, `module` or `module:name`, declares; it is imported when it does."""
    # With a colon an import that fails is an ImportError that names the missing package.
    whole = owner if ":" in owner else f"{owner}:"
    return lambda parser: resolve_name(whole).add_arguments(parser, *words)


def together(*arguments: Declare) -> Declare:
    """Several arguments, one after the other."""

    def declare(parser: Any) -> None:
        for argument in arguments:
            argument(parser)

    return declare


def one_of(*choices: Declare, required: bool = False) -> Declare:
    """Arguments that exclude each other."""
    declare = together(*choices)
    return lambda parser: declare(parser.add_mutually_exclusive_group(required=required))


SITE = option("--site", options.path, "site file of a cluster, workflow/site.yaml")
STUDY = needed("--study", options.study, options.STUDY)
