"""Hyperparameter sweeps: a YAML file defines them, Ray Tune runs them."""
