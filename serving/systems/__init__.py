"""Systems the decision service knows."""
