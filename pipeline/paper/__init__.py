"""The manuscript and what is generated for it: `python -m pipeline paper`.

Flow: `numbers` and `facts` (every number of the text, as numbers.json) -> `manuscript` (Jinja2
fills `paper/manuscript.md`; an unknown name is an error) -> `export` (pandoc and typst make PDF and
LaTeX).
"""
