"""A typed client of the decision service."""
