"""Runs on emulated nodes: one process builds the nodes and forks their ranks."""
