"""What a run will need, by arithmetic alone: no torch is loaded and nothing is started."""
