"""An episode step by step: the environment, and policies that decide outside compiled code."""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.stream_scaling.actions import apply_action
from loadmaster.envs.stream_scaling.episode import (
    EpisodeResult,
    Setup,
    build_episode,
    episode_result,
)
from loadmaster.envs.stream_scaling.observation import Observation, blank_observation, observe
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import advance
from loadmaster.envs.stream_scaling.state import (
    HORIZON,
    MINUTE,
    RESTARTS,
    Ints,
    JobTables,
    SimConstants,
    SimState,
)


@compiled
def warm_up(job: JobTables, constants: SimConstants, state: SimState) -> None:
    """Simulate the minutes before the first decision, which do not count."""
    advance(job, constants, state, WARM_UP_MIN)
    state.sums[:] = 0
    state.clock[RESTARTS] = 0


@compiled
def decide_and_advance(
    job: JobTables,
    constants: SimConstants,
    state: SimState,
    action: NDArray[np.float32],
    max_factor: float,
    minutes: int,
    plan: Ints,
) -> bool:
    """Act and simulate so many minutes, or until the episode ends; whether the action is legal."""
    legal = apply_action(job, constants, state, action, max_factor, plan)
    advance(job, constants, state, minutes)
    return legal


class EpisodeRunner:
    """Runs the episode of `seed`; `view` is the observation, which `decide` overwrites."""

    def __init__(
        self, settings: StreamScalingSettings, setup: Setup, seed: int, record: bool = False
    ) -> None:
        """`record`: keep the parallelism of every minute."""
        self.settings, self.setup, self.seed = settings, setup, seed
        self.episode = build_episode(settings, setup, seed)
        warm_up(setup.tables, self.episode.constants, self.episode.state)
        self.view: Observation = blank_observation(setup.tables, setup.job.levels, settings.history)
        self._plan = np.zeros(len(setup.job.tasks), np.int64)
        self._trace = np.zeros((settings.minutes, len(self._plan)), np.int64) if record else None
        self._observe(settings.history)

    @property
    def minute(self) -> int:
        """Minutes since the first decision."""
        return int(self.episode.state.clock[MINUTE]) - WARM_UP_MIN

    @property
    def over(self) -> bool:
        clock = self.episode.state.clock
        return bool(clock[MINUTE] >= clock[HORIZON])

    @property
    def parallelism(self) -> Ints:
        return self.episode.state.parallelism

    def decide(self, action: NDArray[np.float32]) -> bool:
        """Act, and simulate until the next decision; whether the action is legal."""
        settings, (constants, state, _) = self.settings, self.episode
        before = self.minute
        legal = decide_and_advance(
            self.setup.tables, constants, state, action, settings.action_factor,
            settings.decide_every_min, self._plan,
        )  # fmt: skip
        if self._trace is not None:
            self._trace[before : self.minute] = state.parallelism
        self._observe(self.minute - before)
        return legal

    def result(self, policy: str) -> EpisodeResult:
        """The outcome so far."""
        return episode_result(self.settings, self.episode.state, policy, self.seed, self._trace)

    def _observe(self, new: int) -> None:
        episode = self.episode
        observe(self.setup.tables, episode.state, episode.week_minute, self.view, new)
