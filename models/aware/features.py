"""What actor, critics and encoder read of a step: the observation, and estimates of the rule."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.observation import (
    LOAD_UNIT,
    STATE_COLUMNS,
    Observation,
    observe,
)
from loadmaster.envs.pod_scaling.state import (
    CPU,
    CPU_S,
    IO_S,
    MEMORY,
    MEMORY_MIB,
    REPLICAS,
    REQUEST_MIB,
    SLO_S,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.models.aware.estimates import SURGE, VARIANCE, W, forecast_of
from loadmaster.models.aware.plan_choice import Margins
from loadmaster.models.aware.pod_model import MEMORY_IO_S, full_memory, mean_memory
from loadmaster.models.aware.settings import Inputs

OBSERVED = len(STATE_COLUMNS)
ESTIMATED = (
    "log cpu time", "io share of slo", "cpu share of slo", "log idle memory", "log request memory",
    "io by memory", "forecast load", "deviation", "forecast use", "memory use", "full memory",
    "surge", "reports",
)  # fmt: skip
FEATURES = OBSERVED + len(ESTIMATED)
# Of these, the forecast of the load, and what the present allocation yields at it.
FORECAST = ("forecast load", "deviation", "forecast use", "memory use", "full memory")
# Rewards that networks learn from: near 0, so that small differences count.
REWARD_CENTRE, REWARD_UNIT = 1.4, 0.2
MOST_FEATURE = np.float32(1e3)  # reached by states of the service far from any application
_MOST_REPORTS = 50.0  # weight of the memory's regression after many reports


@compiled
def write_features(
    constants: SimConstants,
    state: SimState,
    estimates: Floats,
    app: Floats,
    row: NDArray[np.float32],
) -> None:
    """Write the FEATURES of a step; `app` is the application by the estimates."""
    observe(constants, state, Observation(row[:OBSERVED]))
    forecast, plan = forecast_of(estimates), state.plan
    place = OBSERVED
    row[place] = 0.3 * (math.log(app[CPU_S]) + 3.0)
    row[place + 1] = app[IO_S] / app[SLO_S]
    row[place + 2] = app[CPU_S] / app[SLO_S]
    row[place + 3] = 0.5 * (math.log(app[MEMORY_MIB]) - 5.0)
    row[place + 4] = 0.3 * (math.log(app[REQUEST_MIB]) - 1.5)
    row[place + 5] = app[MEMORY_IO_S] / app[SLO_S]
    row[place + 6] = math.log1p(forecast.rate) / LOAD_UNIT
    row[place + 7] = 3.0 * math.sqrt(estimates[VARIANCE])
    row[place + 8] = min(forecast.rate * app[CPU_S] / (plan[CPU] * plan[REPLICAS]), 3.0)
    mean = mean_memory(constants, app, forecast, plan[REPLICAS], plan[CPU])
    row[place + 9] = min(mean / plan[MEMORY], 3.0)
    row[place + 10] = min(full_memory(constants, app) / plan[MEMORY], 3.0)
    row[place + 11] = estimates[SURGE]
    row[place + 12] = estimates[W] / _MOST_REPORTS
    for column in range(FEATURES):
        row[column] = min(max(row[column], -MOST_FEATURE), MOST_FEATURE)


class FeatureParameters(NamedTuple):
    """The application by the estimates, as features have it."""

    cpu_s: float
    io_s: float
    slo_s: float
    idle_mib: float
    request_mib: float
    memory_io_s: float
    reports: float  # weight of those that memory was estimated from

    @classmethod
    def of(cls, row: NDArray[Any]) -> "FeatureParameters":
        """Read what `write_features` wrote."""
        own = row[OBSERVED:].astype(np.float64)
        cpu_s = math.exp(own[0] / 0.3 - 3.0)
        slo_s = cpu_s / max(own[2], 1e-9)
        return cls(
            cpu_s,
            own[1] * slo_s,
            slo_s,
            idle_mib=math.exp(2.0 * own[3] + 5.0),
            request_mib=math.exp(own[4] / 0.3 + 1.5),
            memory_io_s=own[5] * slo_s,
            reports=own[12] * _MOST_REPORTS,
        )


def input_mask(inputs: Inputs) -> NDArray[np.float32]:
    """(FEATURES,) 1 for those that the networks read, else 0."""
    known = {"all": ESTIMATED, "forecast": FORECAST, "published": ()}[inputs]
    return np.array([1.0] * OBSERVED + [float(name in known) for name in ESTIMATED], np.float32)


@compiled
def margins_of(base: Floats, reach: Floats, action: NDArray[np.float32]) -> Margins:
    """The rule's margins, changed by an action from -1 to 1."""
    return Margins(
        base[0] * math.exp(reach[0] * action[0]),
        base[1] * math.exp(reach[1] * action[1]),
        base[2] * math.exp(reach[2] * action[2]),
        base[3] * math.exp(reach[3] * action[3]),
        base[4] * math.exp(reach[4] * action[4]),
        base[5] * math.exp(reach[5] * action[5]),
    )
