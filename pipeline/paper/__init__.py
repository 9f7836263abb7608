"""The manuscript and what is generated for it: `python -m pipeline paper`.

Flow: `numbers` (every number and fact of the text, as numbers.json) -> `manuscript` (Jinja2 fills
`paper/manuscript.md`; an unknown name is an error) -> `export` (pandoc and typst make PDF
and LaTeX).
"""
