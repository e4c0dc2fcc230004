"""Rollouts in compiled loops and learning from groups with one input, on RLlib."""
