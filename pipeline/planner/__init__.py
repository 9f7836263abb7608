"""Needs of a run, by arithmetic alone: no torch is loaded and nothing is started."""
