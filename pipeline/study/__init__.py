"""What a study is: its file, its run specs, in which order they run, and their profiled runs."""
