"""One self-contained HTML page on a study: `python -m pipeline page`.

`page` puts verdicts, parity, figures, tables, environment and every run with the end of its log
into `page.html.j2`, which Jinja2 fills with every value escaped; `index` is the page of all claims.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
"""Templates of the page and of the index, in which all text is escaped."""
