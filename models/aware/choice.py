"""What AWARE remembers of an application, and what a decision consists of."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling.state import Floats
from loadmaster.models.aware.encoder import Trajectory
from loadmaster.models.aware.estimates import ESTIMATE_COLUMNS, new_estimates
from loadmaster.models.aware.features import REWARD_CENTRE, REWARD_UNIT
from loadmaster.models.aware.plan_choice import Margins
from loadmaster.models.aware.pod_model import Forecast

Singles = NDArray[np.float32]
MEMORY_FORMAT = f"aware-{ESTIMATE_COLUMNS}"  # name of the layout of packed estimates


class Remembered(NamedTuple):
    """What is known of an application: estimates, and the embedding of its trajectories."""

    estimates: Floats  # (ESTIMATE_COLUMNS,)
    embedding: Singles  # (embedding,), zeros: none yet

    def copied(self) -> "Remembered":
        """The same, for an episode that may change it."""
        return Remembered(self.estimates.copy(), self.embedding)

    def packed(self) -> Singles:
        """The estimates in single precision, each as two numbers: its value and the rest."""
        value = self.estimates.astype(np.float32)
        rest = (self.estimates - value).astype(np.float32)
        return np.concatenate([value, rest])


def nothing_known(embedding: int) -> Remembered:
    return Remembered(new_estimates(), np.zeros(embedding, np.float32))


def unpack(packed: Singles | None, embedding: Singles | None, size: int) -> Remembered:
    """What is known by packed estimates and an embedding of `size`.

    Either counts as nothing known if it is None or of another size.
    """
    known = nothing_known(size)
    if packed is not None and packed.shape == (2 * ESTIMATE_COLUMNS,):
        value, rest = packed[:ESTIMATE_COLUMNS], packed[ESTIMATE_COLUMNS:]
        known = known._replace(estimates=value.astype(np.float64) + rest)
    if embedding is not None and embedding.shape == (size,):
        known = known._replace(embedding=embedding)
    return known


def trajectory_of(features: Singles, actions: Singles, rewards: Floats) -> Trajectory:
    """Input of the encoder: masked features (steps, FEATURES), actions and the steps' rewards."""
    scaled = (rewards - REWARD_CENTRE) / REWARD_UNIT
    return np.concatenate([features, actions, scaled[:, None]], 1).astype(np.float32)


class PodDecision(NamedTuple):
    """A plan, what it was chosen by, and the reward that is expected of it."""

    plan: Floats  # cores, MiB, replicas
    action: Singles  # of the actor
    margins: Margins | None  # None where the actor sets plans
    features: Singles
    app: Floats  # estimated application
    forecast: Forecast
    expected: float
