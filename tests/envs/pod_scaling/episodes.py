"""Episodes for tests: an application with round numbers under a constant load."""

from typing import Any

import numpy as np

from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.episode import Setup, build_episode, build_setup
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.state import NOW, SimState
from loadmaster.envs.settings import build_settings

PLAIN = Application("plain", cpu_s=0.1, io_s=0.0, memory_mib=100, request_mib=1, slo_s=1.0)


def setting(
    application: Application | None = PLAIN, /, **values: Any
) -> tuple[PodScalingSettings, Setup]:
    """Settings and setup; the load is 10 requests a second, constant, unless given."""
    settings = build_settings(PodScalingSettings, {"workload": "toy", "steps": 10, **values})
    return settings, build_setup(settings, (application,) if application else ())


def start(application: Application | None = PLAIN, /, seed: int = 0, **values: Any) -> Any:
    """Setup and state of an episode before its first interval."""
    settings, setup = setting(application, **values)
    return setup, build_episode(settings, setup, seed).state


def last_step(state: SimState) -> Any:
    return state.outcome[int(state.clock[NOW]) // STEP_INTERVALS - 1]


def set_load(state: SimState, requests: Any, begin: int = 0) -> None:
    """Have these requests in each interval from `begin` on, which is the first of a step."""
    state.arrivals[begin:] = requests
    by_step = state.arrivals.reshape(-1, STEP_INTERVALS).sum(axis=1)
    state.rates[:] = by_step / (STEP_INTERVALS * INTERVAL_S)


def set_level(state: SimState) -> None:
    """Report the p99 itself instead of that of the few requests of a step."""
    state.levels[:] = np.log(100)
