"""Parts that strategies share: the group of ranks, the optimisation step, its state.

One folder for each backend that needs more than torch.
"""
