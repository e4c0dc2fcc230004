"""Learned systems: registration, training, rollouts, evaluation, replay and benchmarks."""
