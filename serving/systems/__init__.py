"""Systems of the decision service."""
