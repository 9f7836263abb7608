"""Runs over the nodes of a SLURM cluster: the resources they ask for, their place, their end."""
