"""Published figures, one JSON file per study, each number with its source: `load(id)`.

The files hold facts that others have published and nothing that was measured here, and figures give
them a marker of their own. What a number means, its unit, where it stands and how it was read is
said beside it (`pipeline/schemas/reference.schema.json`).
"""

from pipeline.reference.load import Number, Reference, ids, load

__all__ = ["Number", "Reference", "ids", "load"]
