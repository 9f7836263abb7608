"""One file per subcommand of `python -m pipeline`: its arguments and what it prints.

A command has SUMMARY, `add_arguments(parser)` and `run(args) -> int`. Nothing imports a command.
"""
