"""Published sentences tested on the metrics: `python -m pipeline claims`.

Flow: `load` (a closed YAML file -> claims) -> `worlds` (the study as tests ask it) -> `choose`
(which cells at which world a test compares, and whether they may be compared) -> `quantities` (what
was measured there, one value per run) -> `kinds` and `over_nodes` (one function per kind of test ->
`found`, an effect with its interval) -> `decide` (effect against what the sentence says, and one
error rate for a study) -> `judge` (all worlds -> verdict). Nothing here trains, and nothing imports
torch.
"""
