"""Samestep: re-run studies of parallel pre-training so that every strategy takes the same step.

The flow, which is also the order of the folders:
corpus -> tokens -> run (cell x nodes x repeat) -> record -> metrics -> figures | tables -> paper.
`python -m pipeline --help` lists one subcommand per stage.
"""

__version__ = "0.2.0"
