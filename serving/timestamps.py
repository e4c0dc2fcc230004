"""Format and parse times."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from loadmaster.envs.errors import InputError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def iso(time: float) -> str:
    """Format seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")


def parse_timestamp(text: str, option: str, now: float) -> float:
    """Parse `2026-05-01`, `2026-05-01T12:30` (UTC if it names no zone) or an age before `now`, such
    as `90m`, to seconds since 1970. `option` is the command-line option, for the error."""
    ago = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if ago:
        return now - int(ago[1]) * UNITS_S[ago[2]]
    try:
        parsed = datetime.fromisoformat(text.strip())
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InputError(
            f"{option} {text!r} is no moment; expected 2026-05-01, 2026-05-01T12:30 (UTC) or "
            "an age such as 90m, 6h or 2d"
        ) from None
