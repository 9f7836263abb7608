"""From validated run records to one tidy table: `python -m pipeline metrics`.

Flow: `collect` (records of a study, none missing, none invalid) -> `runs` (what one run says) ->
`cells` (what the repeats of a cell say together: intervals, speedup, efficiency) and `parity`
(does each cell compute the same training) -> `table` (one validated Parquet file).
`comparison` is the rule of equal work that figures and tables obey. Nothing here imports torch.
"""
