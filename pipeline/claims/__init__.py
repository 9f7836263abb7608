"""Published sentences tested on the metrics: `python -m pipeline claims`.

Flow: `load` (a closed YAML file -> claims) -> `worlds` (which cells at which world a test compares,
and whether they may be compared) -> `quantities` (what was measured there, with its interval) ->
`kinds` (one function a kind of test -> effect) -> `judge` (effect against what the sentence says ->
verdict). Nothing here trains, and nothing imports torch.
"""
