"""Facts about the machine that a process runs on: cores, addresses, processes, locks, image."""
