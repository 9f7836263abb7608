"""A finished study as one file, and back: a Workflow Run RO-Crate in a deterministic zip.

`python -m pipeline archive` packs it, `unpack` checks one and lays its records beside the results
that were measured here, `verify` says whether what was rebuilt from them has the same bytes. No
torch: an archive is made and read on a laptop.
"""
