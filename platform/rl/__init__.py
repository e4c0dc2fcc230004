"""What we add to RLlib: rollouts in compiled loops, and learning from groups with one input."""
