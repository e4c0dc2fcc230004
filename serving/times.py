"""Moments as the service tells them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(time: float) -> str:
    """A moment, in seconds since 1970, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
