"""The process that runs a system's policy."""
