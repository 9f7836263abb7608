"""From validated run records to one tidy table: `python -m pipeline metrics`.

Flow: `build` (records of a study, none missing, none invalid) -> `runs` (what one run says) ->
`cells` (what the repeats of a cell say together: intervals, speedup, efficiency), `parity` (does
each cell compute the same training) and `contrasts` (which cell is faster) -> `table` (one
validated Parquet file). `emulation` says how far emulated times may be off. All later rooms read
the table by one object, `results.Results`; `headline` puts it in sentences. Nothing here imports
torch; the rule of equal work is that of `pipeline.study.equal_work`.
"""
