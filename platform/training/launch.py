"""Former place of `loop.launch`."""

from loadmaster.platform.training.loop import launch

__all__ = ["launch"]
