"""One self-contained HTML page on a study: `python -m pipeline page`.

Flow: `runs` (every run with its outcome and the end of its log) and `page` (verdicts, parity,
figures, tables, environment) -> `page.html.j2`, which Jinja2 fills with every value escaped.
"""
