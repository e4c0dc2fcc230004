"""An episode step by step: the environment, and policies that decide outside compiled code."""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.actions import apply_action
from loadmaster.envs.pod_scaling.episode import (
    EpisodeResult,
    Setup,
    build_episode,
    episode_result,
)
from loadmaster.envs.pod_scaling.observation import Observation, blank_observation, observe
from loadmaster.envs.pod_scaling.settings import (
    STEP_INTERVALS,
    WARM_UP_STEPS,
    PodScalingSettings,
)
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import (
    HORIZON,
    NOW,
    OOMS,
    RESTARTS,
    SimConstants,
    SimState,
)


@compiled
def warm_up(constants: SimConstants, state: SimState) -> None:
    """Simulate the steps before the first decision, which do not count."""
    advance(constants, state, WARM_UP_STEPS * STEP_INTERVALS)
    state.sums[:] = 0
    state.clock[RESTARTS] = state.clock[OOMS] = 0


@compiled
def decide_and_advance(
    constants: SimConstants, state: SimState, action: NDArray[np.float32]
) -> bool:
    """Act and simulate a control step; whether the action is legal."""
    legal = apply_action(constants, state, action)
    advance(constants, state, STEP_INTERVALS)
    return legal


class EpisodeRunner:
    """Runs the episode of `seed`; `view` is the observation, which `decide` overwrites."""

    def __init__(self, settings: PodScalingSettings, setup: Setup, seed: int) -> None:
        self.settings, self.setup, self.seed = settings, setup, seed
        self.episode = build_episode(settings, setup, seed)
        warm_up(setup.constants, self.episode.state)
        self.view: Observation = blank_observation()
        observe(setup.constants, self.episode.state, self.view)

    @property
    def step(self) -> int:
        """Control steps since the first decision."""
        return int(self.episode.state.clock[NOW]) // STEP_INTERVALS - WARM_UP_STEPS

    @property
    def over(self) -> bool:
        clock = self.episode.state.clock
        return bool(clock[NOW] >= clock[HORIZON])

    def decide(self, action: NDArray[np.float32]) -> bool:
        """Act, and simulate until the next decision; whether the action is legal."""
        legal = decide_and_advance(self.setup.constants, self.episode.state, action)
        observe(self.setup.constants, self.episode.state, self.view)
        return legal

    def result(self, policy: str) -> EpisodeResult:
        """The outcome so far."""
        return episode_result(self.episode.state, self.episode.application, policy, self.seed)
