"""SURE behind HTTP: its schemas, and the way from a state to tables."""
