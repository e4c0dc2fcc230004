"""Comparison of policies on the same seeds: figures, tables and charts."""
