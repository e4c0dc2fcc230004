"""An episode step by step, for policies that decide outside compiled code."""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.env import decide_and_advance, warm_up
from loadmaster.envs.stream_scaling.episode import (
    EpisodeResult,
    Setup,
    build_episode,
    episode_result,
)
from loadmaster.envs.stream_scaling.observation import Observation, blank_observation, observe
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.state import HORIZON, MINUTE, Ints


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

    def decide(self, action: NDArray[np.float32]) -> None:
        """Act, and simulate until the next decision."""
        settings, (constants, state, _) = self.settings, self.episode
        before, factor = self.minute, 0.0 if settings.published else settings.max_factor
        decide_and_advance(
            self.setup.tables, constants, state, action, factor, settings.decide_every_min,
            self._plan,
        )  # fmt: skip
        if self._trace is not None:
            self._trace[before : self.minute] = state.parallelism
        self._observe(self.minute - before)

    def result(self, policy: str) -> EpisodeResult:
        """The outcome so far."""
        return episode_result(self.settings, self.episode.state, policy, self.seed, self._trace)

    def _observe(self, new: int) -> None:
        episode = self.episode
        observe(self.setup.tables, episode.state, episode.week_minute, self.view, new)
