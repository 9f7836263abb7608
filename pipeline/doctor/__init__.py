"""Examination of this machine, and ways to get what is missing: `python -m pipeline doctor`."""
