"""Whether a retrained policy is better than the one that serves: what `loadmaster retrain` leaves.

The command writes it and the service reads it; neither imports the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.serving.system import Record

FILE, BUNDLE = "verdict.json", "bundle"  # in a retraining's folder
Interval = tuple[float | None, float | None]  # None: too few sequences to tell


class PolicyScore(Record):
    """One of the two, and its metric."""

    name: str
    version: str  # first 12 digits of its weights' sha256
    folder: str
    mean: float | None
    ci95: Interval


class ComparisonResult(Record):
    """Two policies on the same sequences, which neither has learnt from."""

    system: str
    metric: str
    unit: str
    lower_is_better: bool
    sequences: int
    first_seed: int
    environment: dict[str, Any]  # its settings, where they are not the defaults
    candidate: PolicyScore
    serving: PolicyScore
    difference_percent: float | None  # of the candidate's metric from the serving one's
    ci95: Interval  # of that
    better: bool  # beyond chance: the interval lies on the good side of 0


def read_comparison(folder: Path) -> ComparisonResult:
    """The one a retraining left in its folder."""
    file = folder / FILE
    try:
        return ComparisonResult.model_validate_json(file.read_bytes())
    except OSError as fault:
        raise InputError(
            f"cannot read {file}: {fault.strerror}; expected a folder that the service and the "
            "cluster share"
        ) from None
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file} is damaged: {where}: {first['msg']}") from None
