"""Comparison of a retrained policy with the serving one.

`loadmaster retrain` writes it to a file, and the service reads that.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadmaster.envs.errors import InputError
from loadmaster.serving.system import Record

COMPARISON_FILE, BUNDLE_FOLDER = "verdict.json", "bundle"  # in a retraining's folder
ConfidenceInterval = tuple[float | None, float | None]  # None: too few sequences


class PolicyScore(Record):
    """One of the two policies and its metric."""

    name: str
    version: str  # first 12 digits of its weights' sha256
    folder: str
    mean: float | None
    ci95: ConfidenceInterval


class ComparisonResult(Record):
    """Result of two policies on the same sequences, none of them used in training."""

    system: str
    metric: str
    unit: str
    lower_is_better: bool
    sequences: int
    first_seed: int
    environment: dict[str, Any]  # settings that differ from the defaults
    candidate: PolicyScore
    serving: PolicyScore
    difference: float | None = None  # of the candidate's metric from the serving one's
    difference_percent: float | None  # None: percentages of this metric mean nothing
    ci95: ConfidenceInterval  # of difference_percent, or of difference where there is none
    better: bool  # significantly: the interval lies on the better side of 0

    @property
    def difference_text(self) -> str:
        """In percent where that means something; empty if unknown."""
        if self.difference_percent is not None:
            return f"{self.difference_percent:+.1f}%"
        return "" if self.difference is None else f"{self.difference:+.4g}"


def read_comparison(folder: Path) -> ComparisonResult:
    """Read the comparison in a retraining's folder."""
    file = folder / COMPARISON_FILE
    try:
        return ComparisonResult.model_validate_json(file.read_bytes())
    except OSError as fault:
        raise InputError(
            f"cannot read {file}: {fault.strerror}; expected a folder shared by the service and "
            "the cluster"
        ) from None
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file} is damaged: {where}: {first['msg']}") from None
