"""Tables of a study: `python -m pipeline table NAME` writes LaTeX, Markdown and CSV.

A table is a declaration in `declared`: caption, columns, and what it needs of a study. Its raw
numbers (the CSV) come from a function of `rows`, its text from its columns or from a function of
`texts`; `write` makes the files. The workflow asks for the declarations, which import no pandas.
"""

from pipeline.catalogue import Catalogue
from pipeline.tables.declared import TABLES

__all__ = ["TABLES", "catalogue"]

catalogue = Catalogue(
    "table",
    {name: one.caption for name, one in TABLES.items()},
    {name: one.needs for name, one in TABLES.items() if one.needs},
)
