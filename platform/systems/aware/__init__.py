"""AWARE: training, rollouts, evaluation and benchmark."""
