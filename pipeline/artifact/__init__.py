"""Artifact description, checklist and self-check of badges: `python -m pipeline artifact`."""
