"""Cost of a training step on hardware that is not here: seconds and memory, from its shape.

`points` reads and writes rows of `job`s, `predict` is the model: `computation`, `communication`,
`schedule` and `memory`, with the constants of `constants.json`; `score` holds it against what was
published. Strategies say by `traffic` what they send. No torch.
"""
