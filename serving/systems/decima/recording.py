"""The former place of `state_of`."""

from __future__ import annotations

from loadmaster.serving.systems.decima.examples import state_of

__all__ = ["state_of"]
