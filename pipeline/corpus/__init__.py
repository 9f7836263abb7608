"""Text to token shards with a manifest, and shards to batches.

Flow: `sources` (documents) -> `text_store` (text as Arrow on disk) -> `tokenisers` ->
`encode` (in parallel, into `shards`) -> `manifest`; `build` runs them in order and `cli` is
`python -m pipeline tokens`. Training reads the result through `batches`, which needs numpy only.
"""
