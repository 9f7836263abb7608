"""A study while it runs: `python -m pipeline watch` and the one line of `make paper`.

Flow: `state` (what the records below `results/<study>` say: ended runs, time left, what is made
next) -> `show` (one line, or the matrix of cells x nodes) and `follow` (starts the workflow with
its log in a file, and prints that line). It reads the results folder only, so it may be asked on
any machine that sees that folder.
"""
