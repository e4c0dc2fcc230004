"""SURE: per-task autoscaling of streaming jobs by sampled subgraphs (IJCAI 2022)."""
