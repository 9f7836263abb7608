"""One file per table; `python -m pipeline table NAME` writes it as LaTeX, Markdown, CSV, HTML.

A table is a sibling file with a module-level `CAPTION`, `COMPARES`, `build(table) -> DataFrame` of
raw numbers (the CSV) and `show(frame) -> DataFrame` of text (all other formats). A table of claims
says `NEEDS = "verdicts"` and gets these too, `build(table, verdicts)`; one that only a study with
conditions has says `NEEDS = "conditions"`, one on profiled runs `NEEDS = "profile"`, one on runs in
real time `NEEDS = "real_time"`, and one on layouts of several axes `NEEDS = "layouts"`.
"""

from pipeline.catalogue import Catalogue

__all__ = ["captions", "catalogue", "names", "needing_verdicts"]

catalogue = Catalogue("table", __name__, __path__[0])
captions = catalogue.captions
names = catalogue.names
needing_verdicts = catalogue.needing_verdicts
