"""Decima: a graph network that scores stages and parallelism limits (SIGCOMM 2019)."""
