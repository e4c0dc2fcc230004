"""The former place of `spread`."""

from __future__ import annotations

from loadmaster.platform.systems.policies import spread

__all__ = ["spread"]
