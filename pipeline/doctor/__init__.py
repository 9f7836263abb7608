"""What this machine can run, and how to get what is missing: `python -m pipeline doctor`."""
