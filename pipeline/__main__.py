"""The only command line of Samestep: `python -m pipeline COMMAND ...`, or `samestep COMMAND ...`.

What a command needs is imported when it runs: `figure` never pays for torch. The exit status is 0,
1 where one found a difference or an unmet requirement, 2 for an error of the input or the machine,
70 for a bug of this program, and 128 and the signal's number for a signal.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import tempfile
import traceback
from io import TextIOWrapper
from itertools import takewhile
from typing import Any, NoReturn

from pipeline import options
from pipeline.commands.people import COMMANDS
from pipeline.commands.stages import STAGES
from pipeline.errors import SamestepError
from pipeline.machine import inherited
from pipeline.machine.processes import interrupt_on_sigterm

ALL = {**COMMANDS, **STAGES}
BUG = 70  # EX_SOFTWARE of sysexits.h


class _Parser(argparse.ArgumentParser):
    """Errors are one line and go the way of all others."""

    def error(self, message: str) -> NoReturn:
        """Raise SamestepError."""
        raise SamestepError(f"{message}; see {self.prog} --help")

    def refuse_misspelt(self, words: list[str]) -> None:
        """The error on an option that is none; argparse would first miss the one that is meant."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in takewhile("--".__ne__, words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                near = difflib.get_close_matches(name, known, 1)
                use = near[0] if near else f"one of {', '.join(known)}"
                self.error(f"no option {name[:60]}; use {use}")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """The values of an argument; `--option=--`, which Python 3.11 takes as [], is refused."""
        if action.option_strings and "--" in arg_strings:
            self.error(f"argument {action.option_strings[0]}: '--' is no value; give one")
        return super()._get_values(action, arg_strings)


def main(argv: list[str]) -> int:
    """Run one stage; whatever goes wrong becomes one line on stderr and an exit status."""
    try:
        status = _run(argv)
        # What cannot be printed (a full disk, a reader that is gone) is found here and not at exit.
        sys.stdout.flush()
        return status
    except SamestepError as error:
        return _fail(str(error))
    except KeyboardInterrupt as error:
        print("interrupted", *error.args, file=sys.stderr)
        return 128 + int(signal.SIGTERM if error.args else signal.SIGINT)
    except BrokenPipeError:
        # Python would print a warning when it flushes what it still has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print("interrupted: who read the output closed it", file=sys.stderr)
        return 128 + signal.SIGPIPE
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}; fix the path, its permissions or the disk")
    except MemoryError:
        return _fail("out of memory; give the command more, or a smaller study or file")
    except RecursionError as error:
        return _fail(f"nested too deep ({error}); give a plainer file;", _save(error))
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "pipeline":
            return _bug(argv, error)
        return _fail(
            f"{error}: {sys.executable} is not the Python of this project, or set-up did not end; "
            "use .venv/bin/python, which `make setup` makes"
        )
    except Exception as error:
        return _bug(argv, error)


def _bug(argv: list[str], error: Exception) -> int:
    what = f"{type(error).__name__}: {str(error)[:300]}"
    _fail(f"{argv[:1]} has a bug ({what}); please report it with", _save(error))
    return BUG


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "--help-stages"):
        of_workflow = argv[:1] == ["--help-stages"]
        print("usage: python -m pipeline COMMAND ... (or samestep COMMAND ...)\n")
        for name, one in (STAGES if of_workflow else COMMANDS).items():
            print(f"  {name:10s} {one.summary}")
        other = "--help lists what people type" if of_workflow else "--help-stages lists the rest"
        print(f"\nCOMMAND --help has its options and an example; {other}.")
        return 0
    name, *rest = argv
    if name not in ALL:
        near = difflib.get_close_matches(name, ALL) or COMMANDS
        raise SamestepError(f"unknown command {name[:60]!r}; use one of {', '.join(near)}")
    stage = ALL[name]
    parser = _Parser(
        prog=f"python -m pipeline {name}",
        description=stage.summary,
        epilog=f"example: {stage.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    stage.add_arguments(parser)
    parser.refuse_misspelt(rest)
    args = parser.parse_args(rest)
    options.check_written(parser, args)
    return stage.run(args) or 0


def _fail(text: str, *further: str) -> int:
    # A path may hold a line end; an error is one line that can be read, whatever was given.
    words = " ".join([text, *further]).split()
    short = (w if len(w) <= 500 else f"{w[:200]}...{w[-200:]}" for w in words)
    print("error:", " ".join(short), file=sys.stderr)
    return 2


def _save(error: BaseException) -> str:
    """Write the traceback to a file, for whoever mends the bug; returns the words that name it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="samestep-traceback-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError as fault:
        return f"its traceback, which could not be saved ({fault.strerror})"
    return f"its traceback in {file.name}"


def program() -> int:
    """Run `main` with the arguments of this process, in the environment of a stage."""
    # One that the caller closed (`2>&-`) would be the number of the next file that is opened, and
    # what a library prints would stand in that.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    inherited.begin()
    if isinstance(sys.stdout, TextIOWrapper):  # labels and paths, whatever the locale
        sys.stdout.reconfigure(errors="backslashreplace")
    interrupt_on_sigterm()
    # Pools end their processes by this signal, which is no fault of them.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(program())
