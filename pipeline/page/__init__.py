"""One self-contained HTML page on a study: `python -m pipeline page`.

`page` puts verdicts, parity, figures, tables, environment and every run with the end of its log
into `page.html.j2`, which Jinja2 fills with every value escaped; `index` is the page of all claims.
"""
