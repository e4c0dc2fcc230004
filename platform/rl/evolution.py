"""Search among a policy's weights by trying them out: evolution with an adapted covariance.

A policy gradient has to find out which of a thousand decisions mattered. In a long stream of jobs
hardly any did by itself, and the noise of the others hides it. A change of weights changes all
decisions alike and is judged by the whole episode, so its effect does not drown as episodes get
longer; the price is that few weights can be searched at a time. So: a gradient first, for what to
look at, then this, for how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

Floats = NDArray[np.float64]


class CovarianceSearch:
    """CMA-ES: Hansen, The CMA Evolution Strategy: A Tutorial (2016), with its default constants.

    `tell` takes costs of a noisy function, as long as all candidates met the same noise.
    """

    def __init__(self, mean: Floats, spread: float, population: int) -> None:
        size = len(mean)
        self.mean, self.spread, self.generation = mean, spread, 0
        self.covariance = np.eye(size)
        self.path, self.spread_path = np.zeros(size), np.zeros(size)
        self.population = population
        # Eq. 49: the better half counts, by the logarithm of its rank.
        ranks = np.log((population + 1) / 2) - np.log(np.arange(1, population // 2 + 1))
        self.weights = ranks / ranks.sum()
        self.mass = 1 / float((self.weights**2).sum())  # mu_eff, eq. 8

    def ask(self, rng: np.random.Generator) -> Floats:
        """(population, size) candidates, eq. 38 to 40."""
        lengths, vectors = self._axes()
        draws = rng.standard_normal((self.population, len(self.mean)))
        return np.asarray(self.mean + self.spread * (draws * lengths) @ vectors.T)

    def tell(self, candidates: Floats, costs: Floats) -> None:
        """Move towards the better ones, and stretch the search along the way that was taken."""
        size, mass = len(self.mean), self.mass
        best = np.argsort(costs, kind="stable")[: len(self.weights)]
        steps = (candidates[best] - self.mean) / self.spread
        step = self.weights @ steps
        self.mean = self.mean + self.spread * step  # eq. 42
        self.generation += 1
        # Step size: longer while steps go the same way, eq. 43 and 44.
        memory = (mass + 2) / (size + mass + 5)
        damping = 1 + 2 * max(0.0, np.sqrt((mass - 1) / (size + 1)) - 1) + memory
        lengths, vectors = self._axes()
        whitened = vectors @ ((vectors.T @ step) / lengths)
        self.spread_path = (1 - memory) * self.spread_path
        self.spread_path += np.sqrt(memory * (2 - memory) * mass) * whitened
        usual = np.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))
        long = float(np.linalg.norm(self.spread_path)) / usual
        settled = 1 - (1 - memory) ** (2 * self.generation)
        steady = float(long / np.sqrt(settled) < 1.4 + 2 / (size + 1))  # h_sigma
        self.spread *= float(np.exp(memory / damping * (long - 1)))
        # Covariance, eq. 45 and 47, without its negative weights.
        fade = (4 + mass / size) / (size + 4 + 2 * mass / size)
        self.path = (1 - fade) * self.path + steady * np.sqrt(fade * (2 - fade) * mass) * step
        one = 2 / ((size + 1.3) ** 2 + mass)
        many = min(1 - one, 2 * (mass - 2 + 1 / mass) / ((size + 2) ** 2 + mass))
        lost = one * (1 - steady) * fade * (2 - fade)
        self.covariance = (1 - one - many + lost) * self.covariance
        self.covariance += one * np.outer(self.path, self.path)
        self.covariance += many * (steps.T * self.weights) @ steps

    def _axes(self) -> tuple[Floats, Floats]:
        """Lengths and directions of the search's ellipsoid."""
        values, vectors = np.linalg.eigh(self.covariance)
        return np.sqrt(np.maximum(values, 1e-20)), vectors


class WeightSearch:
    """The search over some of a network's weights, in units of how large each table's are."""

    def __init__(
        self,
        weights: Mapping[str, NDArray[Any]],
        patterns: Sequence[str],
        spread: float,
        population: int,
    ) -> None:
        """`patterns` choose tables by name, as file names are chosen: score_*.weight."""
        self.first = {name: np.array(table) for name, table in weights.items()}
        self.names = [
            name for name in self.first if any(fnmatchcase(name, each) for each in patterns)
        ]
        if not self.names:
            known = ", ".join(self.first)
            raise InputError(
                f"no weights are called {' or '.join(patterns)}; expected some of {known}"
            )
        self.scale = {
            name: float(np.sqrt(np.mean(self.first[name] ** 2))) or 1.0 for name in self.names
        }
        size = sum(self.first[name].size for name in self.names)
        self.search = CovarianceSearch(np.zeros(size), spread, population)

    def candidates(self, rng: np.random.Generator) -> tuple[Floats, list[dict[str, NDArray[Any]]]]:
        """What is tried next: as points, and as weights."""
        points = self.search.ask(rng)
        return points, [self.weights_at(point) for point in points]

    def mean(self) -> dict[str, NDArray[Any]]:
        """The weights found so far."""
        return self.weights_at(self.search.mean)

    def weights_at(self, point: Floats) -> dict[str, NDArray[Any]]:
        changed, start = dict(self.first), 0
        for name in self.names:
            table = self.first[name]
            moved = point[start : start + table.size].reshape(table.shape) * self.scale[name]
            changed[name] = (table + moved).astype(table.dtype)
            start += table.size
        return changed


def relative_costs(costs: Floats) -> Floats:
    """(candidates,) of (candidates, sequences): how each compares with the others, on average.

    A heavy sequence costs all candidates ten times more; it is one voice all the same.
    """
    centred = costs - costs.mean(axis=0)
    return np.asarray((centred / (costs.std(axis=0) + 1e-12)).mean(axis=1))
