"""Search over some of a policy's weights with CMA-ES, by the cost of whole episodes.

In a long stream of jobs few single decisions change the return, and the policy gradient drowns in
noise. A change of weights changes all decisions, so its effect does not shrink with the episode's
length. Only few weights can be searched: train by gradient first, then refine the last layers.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

Floats = NDArray[np.float64]


class WeightSearch:
    """CMA-ES over the tables that match `patterns`, in units of each table's root mean square.

    A pattern `TABLE/ROW` matches one row of a table, counted from 0. Costs may be noisy as long as
    all candidates of a generation share the noise. Pickling keeps the whole state of the search: a
    restored one continues exactly.
    """

    def __init__(
        self,
        weights: Mapping[str, NDArray[Any]],
        patterns: Sequence[str],
        spread: float,
        population: int,
    ) -> None:
        """`spread` is the initial standard deviation; patterns are those of file names."""
        import cma

        self.first = {name: np.array(table) for name, table in weights.items()}
        masks = {name: _searched(name, table, patterns) for name, table in self.first.items()}
        self.masks = {name: mask for name, mask in masks.items() if mask.any()}
        if not self.masks:
            known = ", ".join(self.first)
            raise InputError(
                f"no weights are called {' or '.join(patterns)}; expected some of {known}"
            )
        self.scale = {
            name: float(np.sqrt(np.mean(self.first[name] ** 2))) or 1.0 for name in self.masks
        }
        size = sum(int(mask.sum()) for mask in self.masks.values())
        self._normal = _NormalSource()
        options = {"popsize": population, "randn": self._normal, "seed": np.nan, "verbose": -9}
        self._strategy = cma.CMAEvolutionStrategy(np.zeros(size), spread, options)

    @property
    def spread(self) -> float:
        """The current step size."""
        return float(self._strategy.sigma)

    def ask(self, rng: np.random.Generator) -> list[Floats]:
        """Points of the next generation, drawn by `rng`."""
        self._normal.rng = rng
        return [np.asarray(point) for point in self._strategy.ask()]

    def tell(self, points: Sequence[Floats], costs: Floats) -> None:
        """Update mean, step size and covariance by the candidates' costs."""
        self._strategy.tell(list(points), costs.tolist())

    def mean_weights(self) -> dict[str, NDArray[Any]]:
        """Weights at the centre of the search."""
        return self.weights_at(self._strategy.mean)

    def weights_at(self, point: Floats) -> dict[str, NDArray[Any]]:
        """All tables, with the searched weights moved to `point`."""
        changed, start = dict(self.first), 0
        for name, mask in self.masks.items():
            table, size = self.first[name], int(mask.sum())
            moved = np.zeros(table.shape)
            moved[mask] = point[start : start + size] * self.scale[name]
            changed[name] = (table + moved).astype(table.dtype)
            start += size
        return changed


def _searched(name: str, table: NDArray[Any], patterns: Sequence[str]) -> NDArray[np.bool_]:
    """Which weights of a table match a pattern."""

    def matches(whole: str) -> bool:
        return any(fnmatchcase(whole, each) for each in patterns)

    mask = np.full(table.shape, matches(name))
    for row in range(len(table) if table.ndim else 0):
        mask[row] |= matches(f"{name}/{row}")
    return mask


class _NormalSource:
    """Standard normal draws from a generator that is set before each generation."""

    rng: np.random.Generator

    def __call__(self, *shape: int) -> Floats:
        return self.rng.standard_normal(shape)

    def __getstate__(self) -> dict[str, Any]:
        return {}


def relative_costs(costs: Floats) -> Floats:
    """(candidates,) of (candidates, sequences): mean of the costs standardised per sequence.

    Heavy sequences cost all candidates more; each sequence gets the same weight.
    """
    centred = costs - costs.mean(axis=0)
    return np.asarray((centred / (costs.std(axis=0) + 1e-12)).mean(axis=1))
