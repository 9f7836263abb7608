"""Published sentences tested on the metrics: `python -m pipeline claims`.

Flow: `load` (a closed YAML file -> claims) -> `worlds` (the study as tests ask it, and which cells
at which world may be compared) -> `quantities` (what was measured there, one value per run) ->
`kinds` (one function per kind of test -> an effect with its interval) -> `decide` (effect against
what the sentence says, and one error rate for a study) -> `judge` (all worlds -> verdict) ->
`write`. Nothing here trains, and nothing imports torch.
"""
