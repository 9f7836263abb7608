"""From a run spec to ranks and back to a record.

`run.py` starts the launchers and follows them, `torchrun.py` makes their commands, `outcome.py`
judges how they ended and makes the record. `fork_server.py` keeps processes that have loaded what a
run needs, `waiting.py` is the one of the stage itself. `emulated/` forks the ranks of emulated
nodes, `slurm/` is what an allocation of a cluster needs. No torch is imported here but by the
ranks.
"""
