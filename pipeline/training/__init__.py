"""The inside of a rank: the worker, the one loop, its clock, phases, sampler, checkpoints.

`pipeline.launch` starts the workers (worker.py); each runs the loop (loop.py) and leaves its part
below `ranks/`.
"""
