"""Logged transitions: episodes, their description, and arrays to learn from.

`platform/rl/transition_files.py` reads and writes them as Parquet (docs/transitions.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError, counted
from loadmaster.models.ddpg.settings import CONTEXT_ID
from loadmaster.platform.rl.replay import Minibatches

Floats = NDArray[np.float32]
PolicyActions = Callable[[Floats, Floats | None], Floats]  # observations, contexts -> actions
TOLERANCE = 1e-5  # beyond -1 and 1, of actions in float32


class Quantity(NamedTuple):
    """A number of an observation or of an action."""

    name: str
    unit: str = ""


@dataclass(frozen=True)
class Description:
    """The system that was observed, and the columns of its observations and actions."""

    system: str
    observation: tuple[Quantity, ...]
    action: tuple[Quantity, ...]
    context: int = 0  # numbers of a context vector; 0: none

    @classmethod
    def unnamed(cls, system: str, observation: int, action: int, context: int = 0) -> Description:
        """Columns that have a number for a name."""
        observed, acted = (
            tuple(Quantity(str(place)) for place in range(size)) for size in (observation, action)
        )
        return cls(system, observed, acted, context)

    def check_same(self, expected: Description) -> None:
        """Raise InputError with the first difference from `expected`."""
        if self.system != expected.system:
            raise InputError(
                f"transitions of the system {self.system!r}; expected {expected.system!r}"
            )
        for kind in ("observation", "action"):
            mine, others = getattr(self, kind), getattr(expected, kind)
            if len(mine) != len(others):
                raise InputError(
                    f"{kind}s of {counted(len(mine), 'number')}; expected {len(others):,}"
                )
            for place, (one, other) in enumerate(zip(mine, others, strict=True)):
                if one != other:
                    raise InputError(
                        f"number {place} of an {kind} is {one.name!r} in {one.unit!r}; expected "
                        f"{other.name!r} in {other.unit!r}"
                    )
        if self.context != expected.context:
            raise InputError(
                f"contexts of {counted(self.context, 'number')}; expected {expected.context:,}"
            )


class Episode(NamedTuple):
    """T consecutive transitions of one application."""

    observations: Floats  # (T + 1, observation); (T, observation) if the episode terminated
    actions: Floats  # (T, action) between -1 and 1
    rewards: NDArray[np.float64]  # (T,)
    application: str = ""
    number: int = 0  # unique within the application
    first_step: int = 0  # of the environment's episode
    contexts: Floats | None = None  # (T, context)

    @property
    def terminated(self) -> bool:
        return len(self.observations) == len(self.rewards)

    @property
    def label(self) -> str:
        of = f" of {self.application!r}" if self.application else ""
        return f"episode {self.number:,}{of}"

    def check(self, description: Description) -> None:
        """Raise InputError for shapes, numbers that are not finite, and actions out of bounds."""
        steps, rows = len(self.rewards), len(self.observations)
        if not steps or rows not in (steps, steps + 1) or self.first_step < 0:
            raise InputError(
                f"{self.label} has {counted(steps, 'reward')} and "
                f"{counted(rows, 'observation')}; expected at least one transition, and a final "
                "observation unless it terminated"
            )
        widths: dict[str, tuple[NDArray[Any], int, int]] = {
            "observations": (self.observations, rows, len(description.observation)),
            "actions": (self.actions, steps, len(description.action)),
            "rewards": (self.rewards[:, None], steps, 1),
        }
        if description.context or self.contexts is not None:
            contexts = np.empty((0, 0)) if self.contexts is None else self.contexts
            widths["contexts"] = (contexts, steps, description.context)
        for name, (table, count, width) in widths.items():
            if table.shape != (count, width):
                raise InputError(
                    f"{name} of {self.label} have the shape {table.shape}; expected "
                    f"{(count, width)}"
                )
            if not np.isfinite(table).all():
                row = int(np.flatnonzero(~np.isfinite(table).all(1))[0])
                raise InputError(
                    f"{name} of {self.label} at step {self.first_step + row:,} are not finite; "
                    "expected numbers"
                )
        largest = float(np.abs(self.actions).max())
        if largest > 1 + TOLERANCE:
            raise InputError(
                f"an action of {self.label} has the number {largest:g}; expected -1 to 1"
            )


@dataclass(frozen=True)
class Transitions:
    """All transitions of a log in memory, episode by episode."""

    description: Description
    applications: tuple[str, ...]  # by number
    observations: Floats  # (N, observation)
    actions: Floats
    rewards: NDArray[np.float64]  # (N,)
    next_observations: Floats
    terminated: NDArray[np.bool_]  # the episode ended: no value follows
    episodes: NDArray[np.int64]  # (N,) numbered from 0 over all applications
    steps: NDArray[np.int32]  # of the environment's episode
    application: NDArray[np.int64]  # (N,) number of the application
    contexts: Floats | None = field(default=None)  # (N, context)

    @classmethod
    def of_episodes(cls, episodes: Iterable[Episode], description: Description) -> Transitions:
        """Arrays of checked episodes. Raises InputError if there is none."""
        found = list(episodes)
        if not found:
            raise InputError("no transitions; expected at least one episode")
        for episode in found:
            episode.check(description)
        lengths = [len(episode.rewards) for episode in found]
        names = tuple(sorted({episode.application for episode in found}))
        number = {name: place for place, name in enumerate(names)}

        def joined(part: Callable[[Episode], NDArray[Any]]) -> NDArray[Any]:
            return np.concatenate([part(episode) for episode in found])

        def repeated(values: Sequence[int]) -> NDArray[np.int64]:
            return np.repeat(np.array(values, np.int64), lengths)

        return cls(
            description,
            names,
            observations=joined(lambda e: e.observations[: len(e.rewards)]),
            actions=joined(lambda e: e.actions),
            rewards=joined(lambda e: e.rewards),
            next_observations=joined(_next_observations),
            terminated=joined(
                lambda e: np.arange(len(e.rewards)) == (len(e.rewards) - 1 if e.terminated else -1)
            ),
            episodes=repeated(range(len(found))),
            steps=joined(
                lambda e: np.arange(e.first_step, e.first_step + len(e.rewards), dtype=np.int32)
            ),
            application=repeated([number[episode.application] for episode in found]),
            contexts=joined(lambda e: np.asarray(e.contexts)) if description.context else None,
        )

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Rows of the first transitions of the episodes, and N."""
        return np.flatnonzero(np.diff(self.episodes, prepend=-1, append=-1))

    @property
    def mean_reward(self) -> float:
        """Mean of the episodes' mean rewards per step: the value of the logged behaviour."""
        starts = self.starts
        sums = np.add.reduceat(self.rewards, starts[:-1])
        return float((sums / np.diff(starts)).mean())

    def draw(self, shape: tuple[int, ...], seed: int) -> Minibatches:
        """Transitions drawn uniformly and independently; the same seed draws the same ones.

        The integer column CONTEXT_ID of a log with contexts is the row of `contexts`.
        """
        return self.take(self.draw_rows(shape, seed))

    def draw_rows(self, shape: tuple[int, ...], seed: int) -> NDArray[np.int64]:
        """Rows of transitions, drawn uniformly and independently by the seed."""
        return np.random.default_rng(seed).integers(len(self), size=shape)

    def take(self, rows: NDArray[np.int64]) -> Minibatches:
        """The transitions of these rows."""
        return Minibatches(
            observations=self.observations[rows],
            actions=self.actions[rows],
            rewards=self.rewards[rows].astype(np.float32),
            next_observations=self.next_observations[rows],
            terminated=self.terminated[rows].astype(np.float32),
            integers={} if self.contexts is None else {CONTEXT_ID: rows},
        )


def _next_observations(episode: Episode) -> Floats:
    """(T, observation); the last of an episode that terminated is repeated, and not used."""
    rows = np.arange(1, 1 + len(episode.rewards))
    return episode.observations[np.minimum(rows, len(episode.observations) - 1)]
