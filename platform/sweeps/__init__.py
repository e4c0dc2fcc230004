"""Sweeps as data: a YAML file says what to search and how; Ray Tune does it."""
