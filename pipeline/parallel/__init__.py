"""Parts that strategies share: the group of ranks, the optimisation step, its state."""
