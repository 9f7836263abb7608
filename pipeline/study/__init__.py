"""Studies: their files, run specs, the order of the runs, and profiled runs."""
