"""The workloads an episode can draw its jobs from."""
