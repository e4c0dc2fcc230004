"""What learns from rollouts."""
