"""Benchmarks of `loadmaster bench`."""
