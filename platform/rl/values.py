"""Advantages and targets from a critic that sees what all agents see.

Both kinds of critic learn from the same recursion. V judges the moment; its errors are the
advantage. Q judges the moment and what everybody did; the advantage is what it says of that, less
what it says of other actions the policy might have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.platform.rl.advantages import Rollout

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Decay:
    """How much less a reward counts that comes later."""

    gamma: float = 1.0  # a decision later
    per_s: float = 0.0  # by exp(-per_s * seconds)
    gae_lambda: float = 1.0  # how far errors of the critic are passed back, a decision
    memory_s: float | None = None  # and by exp(-seconds / memory_s)


class Legs(NamedTuple):
    """A rollout, from each of its K kept decisions to the next, or to the end."""

    reward: Floats  # (K,) discounted to the leg's beginning
    fade: Floats  # (K,) what the value at the leg's end counts at its beginning
    trace: Floats  # (K,) what is passed back over the leg


def legs_of(rollout: Rollout, kept: NDArray[np.int64], decay: Decay) -> Legs:
    steps = np.diff(np.append(kept, len(rollout.reward)))
    times = np.append(rollout.time_s, rollout.end_s)
    seconds = np.diff(np.append(times[kept], rollout.end_s))
    leg = np.repeat(np.arange(len(kept)), steps)  # of every decision from the first kept one on
    first = kept[0] if len(kept) else len(rollout.reward)
    since = np.arange(first, len(rollout.reward)) - kept[leg]
    elapsed = times[first:-1] - times[kept][leg]
    # A reward counts from where its own decision was made.
    worth = rollout.reward[first:] * decay.gamma**since * np.exp(-decay.per_s * elapsed)
    fade = decay.gamma**steps * np.exp(-decay.per_s * seconds)
    trace = decay.gae_lambda**steps * np.ones(len(kept))
    if decay.memory_s is not None:
        trace = trace * np.exp(-seconds / decay.memory_s)
    return Legs(np.bincount(leg, worth, len(kept)).astype(np.float64), fade, trace)


def errors_ahead(legs: Legs, judged: Floats, promised: Floats) -> Floats:
    """(K,) the critic's errors from each decision on, faded.

    `judged` (K,) is what it said of the decision; `promised` (K + 1,) what it says of a moment
    whatever is decided then, 0 where nothing follows. For V the two are the same, and this is the
    generalised advantage of Schulman et al. (2016), eq. 16. For Q, judged + this is the target of
    Munos et al. (2016), Retrace, eq. 4, of decisions that are the policy's own; with lambda 0 it
    is r + gamma * promised, the plain TD target.
    """
    error = legs.reward + legs.fade * promised[1:] - judged
    found, following = np.zeros(len(error)), 0.0
    for step in range(len(error) - 1, -1, -1):
        following = error[step] + legs.fade[step] * legs.trace[step] * following
        found[step] = following
    return found


class Yardstick:
    """Running mean and spread of what a critic is to learn, so that it learns numbers of about one.

    Returns grow a hundredfold while a policy learns, and differ between workloads by as much.
    """

    MEMORY = 0.9

    def __init__(self) -> None:
        self.weight, self.mean, self.square = 0.0, 0.0, 0.0

    def take_in(self, values: Floats) -> None:
        now, keep = 1 - self.MEMORY, self.MEMORY
        self.weight = keep * self.weight + now
        self.mean = keep * self.mean + now * float(values.mean())
        self.square = keep * self.square + now * float((values**2).mean())

    @property
    def centre(self) -> float:
        return self.mean / self.weight if self.weight else 0.0

    @property
    def spread(self) -> float:
        if not self.weight:
            return 1.0
        return float(np.sqrt(max(self.square / self.weight - self.centre**2, 1e-8)))

    def standard(self, values: Floats) -> NDArray[np.float32]:
        return np.asarray((values - self.centre) / self.spread, np.float32)

    def real(self, standard: NDArray[np.float32]) -> Floats:
        return np.asarray(standard, np.float64) * self.spread + self.centre


def explained(values: Sequence[Floats], targets: Sequence[Floats]) -> float:
    """The share of the targets' variance that the values know of: 1 is all, 0 none."""
    target = np.concatenate(targets)
    left = target - np.concatenate(values)
    return float(1 - left.var() / (target.var() + 1e-12))
