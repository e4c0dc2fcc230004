"""Training runs: configuration, loop, trackers, files."""
