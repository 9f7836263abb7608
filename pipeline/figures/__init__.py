"""One file per figure; `python -m pipeline figure NAME` draws it as PDF, SVG and PNG.

A figure is a sibling file with a module-level `CAPTION` (a plain string), `COMPARES` (the fields
of equal work that it is about) and `draw(table) -> Figure`; one on claims says `NEEDS = "verdicts"`
and draws these too, `draw(table, verdicts)`; one that only a study with conditions has says
`NEEDS = "conditions"`, and one on profiled runs `NEEDS = "profile"`. The Snakefile asks for
`captions()` when it is parsed, so the files are read, not imported: no seaborn for a dry run.
"""

from pipeline.catalogue import Catalogue

__all__ = ["captions", "catalogue", "names", "needing_verdicts"]

catalogue = Catalogue("figure", __name__, __path__[0])
captions = catalogue.captions
names = catalogue.names
needing_verdicts = catalogue.needing_verdicts
