"""A run on emulated nodes; a command of its own that takes the worker's arguments.

    python -m pipeline.launch.emulated.start --spec FILE --tokens DIR --out DIR

A preloaded process does it where there is one, else this one. A module of its own: who asks the
preloaded process must not import what that process has.
"""

from __future__ import annotations

import sys

from pipeline.launch.emulated import preloaded


def main() -> int:
    """Have a preloaded process do it, where there is one, else do it here."""
    done = preloaded.ask(sys.argv[1:])
    if done is not None:
        return done
    from pipeline.launch.emulated.build import run_here

    return run_here()


if __name__ == "__main__":
    sys.exit(main())
