"""Former place of `line_of`."""

from loadmaster.serving.decisions.request import line_of

__all__ = ["line_of"]
