"""One file per figure; `python -m pipeline figure NAME` draws it as PDF, SVG and PNG.

A figure is a sibling file with a module-level `CAPTION` (a plain string), `COMPARES` (the fields
of equal work that it is about) and `draw(results) -> Figure`; one that only a study with conditions
has says `NEEDS = "conditions"`, and one on profiled runs `NEEDS = "profile"`. The Snakefile asks
for the catalogue when it is parsed, so the files are read, not imported: no seaborn for a dry run.
"""

from pipeline.catalogue import of_folder

catalogue = of_folder("figure", __path__[0])
