"""Former place of `rollout.batches_with`."""

from loadmaster.platform.rl.rollout import batches_with

__all__ = ["batches_with"]
