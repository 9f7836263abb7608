"""Cost of a training step on hardware that is not here: seconds and memory, from its shape.

`points` reads and writes rows, `predict` is the model: `shape` (operators), `computation`,
`communication`, `schedule` and `memory`, with the constants of `constants.json`. No torch.
"""
