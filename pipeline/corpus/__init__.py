"""Text to token shards with a manifest, and shards to batches.

Flow: `sources` (documents) -> `text_store` (text as Arrow on disk) -> `tokenisers` ->
`encode` (by threads) -> shards and their `manifest`; `build` runs them in order. Training reads the
result through `batches`, which needs numpy only.
"""
