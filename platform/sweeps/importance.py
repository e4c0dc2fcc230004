"""Importance of searched settings: the share of the results' variation that each explains alone.

The values of the trials are replaced by their ranks, so that outliers and diverged trials (the
worst rank) do not dominate. Ranks are fitted by least squares on one setting at a time: a quadratic
of a number (of its logarithm where it is searched in the logarithm), which has room for an optimum
inside the range, or a level for each category. The importance is the adjusted R², which is about 0
for a setting without effect. Its interval is a bootstrap over trials, shifted by the bootstrap's
bias. A permutation test gives the probability that the ranks in random order would make any
setting look as important.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from loadmaster.platform.sweeps.records import Record
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.space import Dimension

METHOD = (
    "Adjusted R² of the trials' ranks fitted on one setting at a time: a quadratic of a number, a "
    "level for each category. Whiskers: 95% bootstrap interval."
)
MIN_TRIALS = 10  # fewer leave too little beside the three coefficients of a quadratic
RESAMPLES = 500  # of the bootstrap
SHUFFLES = 1000  # of the permutation test
SIGNIFICANT = 0.05

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Importance:
    """Share of the variation of the ranks that one setting explains."""

    name: str
    share: float
    low: float  # 95% interval
    high: float
    chance: float  # probability of such a share of any setting without effects

    @property
    def evident(self) -> bool:
        return self.chance < SIGNIFICANT


def importances(sweep: Sweep, records: Sequence[Record]) -> tuple[list[Importance], str]:
    """Importance of each setting, and a note on its limits; no importances if there is no evidence.

    Trials that failed or are under way do not count.
    """
    counted = [r for r in records if r.state in ("finished", "stopped", "diverged")]
    counted = [record for record in counted if record.value is not None]
    if sweep.settings.scheduler.pbt:
        return [], "PBT changes settings during a trial, so a result belongs to no single setting."
    if len(counted) < MIN_TRIALS:
        return [], f"Too few trials: {len(counted)} ended with a result of {MIN_TRIALS}."
    values = np.array([record.value for record in counted], dtype=np.float64)
    if len(np.unique(values)) == 1:
        return [], "All trials have the same result."
    designs = {
        dimension.name: _design(
            dimension, [record.parameters[dimension.name] for record in counted]
        )
        for dimension in sweep.space.dimensions
    }
    notes = [f"{len(counted)} trials."]
    if any(record.state == "stopped" for record in counted):
        notes.append("Trials that were stopped early count with their best value until then.")
    if sweep.settings.searcher.optuna:
        notes.append("Optuna drew more trials where earlier ones were good.")
    return explained(designs, stats.rankdata(values), np.random.default_rng(0)), " ".join(notes)


def explained(
    designs: Mapping[str, Array], ranks: Array, random: np.random.Generator
) -> list[Importance]:
    """The importance of each setting, given by its design matrix [trials, coefficients]."""
    shuffled = random.permuted(np.tile(ranks, (SHUFFLES, 1)), axis=1).T  # [trials, shuffles]
    by_chance = np.max([_adjusted_r2(design, shuffled) for design in designs.values()], axis=0)
    rows = random.integers(len(ranks), size=(RESAMPLES, len(ranks)))
    found = []
    for name, design in designs.items():
        share = _adjusted_r2(design, ranks[:, None])[0]
        again = np.array([_adjusted_r2(design[row], ranks[row, None])[0] for row in rows])
        interval = np.quantile(again, (0.025, 0.975)) - (again.mean() - share)
        chance = (1 + int(np.sum(by_chance >= share - 1e-12))) / (1 + SHUFFLES)
        low, high = np.clip(interval, 0.0, 1.0).tolist()
        found.append(Importance(name, max(0.0, float(share)), low, high, chance))
    return found


def _design(dimension: Dimension, drawn: Sequence[Any]) -> Array:
    """[trials, coefficients]: a constant, and the terms of one setting."""
    constant = np.ones(len(drawn))
    if not dimension.numeric:
        places = [dimension.arguments.index(value) for value in drawn]
        levels = [np.equal(places, place) for place in sorted(set(places))[1:]]
        return np.column_stack([constant, *levels]).astype(np.float64)
    x = np.array([math.log(v) if dimension.kind == "loguniform" else v for v in drawn], float)
    x = (x - x.mean()) / (x.std() or 1.0)
    return np.column_stack([constant, x, x**2])


def _adjusted_r2(design: Array, targets: Array) -> Array:
    """Adjusted R² of each column of targets [trials, columns]."""
    u, s, _ = np.linalg.svd(design, full_matrices=False)
    u = u[:, s > 1e-9 * s[0]]  # an orthonormal basis; levels or terms may coincide
    trials, coefficients = u.shape
    centred = targets - targets.mean(axis=0)
    total = np.sum(centred**2, axis=0)
    if trials <= coefficients or not total.all():
        return np.zeros(targets.shape[1])
    unexplained = 1 - np.sum((u.T @ centred) ** 2, axis=0) / total
    adjusted: Array = 1 - unexplained * (trials - 1) / (trials - coefficients)
    return adjusted
