"""From a run spec to ranks and back to a record.

`run.py` starts the launchers and follows them, `torchrun.py` makes their commands and clears the
run's folder, `outcome.py` judges how they ended, also by their log, and makes the record.
`preloaded.py` keeps processes that have loaded what a run needs and fork it.
`emulated/` forks the ranks of emulated nodes, `slurm/` is what an allocation of a cluster needs. No
torch is imported here but by the ranks.
"""
