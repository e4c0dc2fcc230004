"""Former place of `trainer.starting_weights`."""

from loadmaster.platform.training.trainer import starting_weights

__all__ = ["starting_weights"]
