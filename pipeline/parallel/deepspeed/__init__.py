"""DeepSpeed: whether it can be used here, its engine, and its optimisation step."""
