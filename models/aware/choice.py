"""What AWARE remembers of an application, and what a decision consists of."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling.state import Floats
from loadmaster.models.aware.estimates import ESTIMATE_COLUMNS, new_estimates
from loadmaster.models.aware.plan_choice import Margins
from loadmaster.models.aware.pod_model import Forecast

Singles = NDArray[np.float32]


class Remembered(NamedTuple):
    """What is known of an application: estimates, and the embedding of its trajectories."""

    estimates: Floats  # (ESTIMATE_COLUMNS,)
    embedding: Singles  # (embedding,), zeros: none yet

    def copied(self) -> "Remembered":
        """The same, for an episode that may change it."""
        return Remembered(self.estimates.copy(), self.embedding)

    def packed(self) -> Singles:
        """As single precision numbers; an estimate takes two of them, its value and the rest."""
        value = self.estimates.astype(np.float32)
        rest = (self.estimates - value).astype(np.float32)
        return np.concatenate([value, rest, self.embedding])


def nothing_known(embedding: int) -> Remembered:
    return Remembered(new_estimates(), np.zeros(embedding, np.float32))


def memory_format(embedding: int) -> str:
    """Name of the layout of packed memory."""
    return f"aware-{ESTIMATE_COLUMNS}-{embedding}"


def unpack(memory: Singles | None, embedding: int) -> Remembered:
    """What `Remembered.packed` returned; anything else counts as nothing known."""
    if memory is None or memory.shape != (2 * ESTIMATE_COLUMNS + embedding,):
        return nothing_known(embedding)
    value, rest = memory[:ESTIMATE_COLUMNS], memory[ESTIMATE_COLUMNS : 2 * ESTIMATE_COLUMNS]
    return Remembered(value.astype(np.float64) + rest, memory[2 * ESTIMATE_COLUMNS :].copy())


class PodDecision(NamedTuple):
    """A plan, what it was chosen by, and the reward that is expected of it."""

    plan: Floats  # cores, MiB, replicas
    action: Singles  # of the actor
    margins: Margins | None  # None where the actor sets plans
    features: Singles
    app: Floats  # estimated application
    forecast: Forecast
    expected: float
