"""Training: the one loop, its clock, the sampler of memory and utilisation, and the launcher.

`python -m pipeline train` (cli.py) is the launcher: it imports no torch, starts the ranks through
torchrun (launcher.py), follows their step files (progress.py) and writes the record (outcome.py).
Each rank is a worker (worker.py) that runs the loop (loop.py) and leaves its part below `ranks/`.
"""
