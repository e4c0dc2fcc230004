"""Gymnasium environment of stream scaling."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.actions import action_space, apply_action
from loadmaster.envs.stream_scaling.episode import (
    Episode,
    EpisodeResult,
    build_episode,
    build_setup,
    episode_result,
)
from loadmaster.envs.stream_scaling.jobs import Job
from loadmaster.envs.stream_scaling.observation import (
    blank_observation,
    observation_space,
    observe,
)
from loadmaster.envs.stream_scaling.rewards import reward_sum
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

ObservationDict = dict[str, NDArray[Any]]


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


class StreamScalingEnv(gymnasium.Env[ObservationDict, NDArray[np.float32]]):
    """Set the parallelism of every task of a streaming job.

    ## Description
    A job is a DAG of tasks, each with some instances. Records arrive at its sources by the minute
    and flow through bounded buffers; a task whose buffers are full holds up those before it. Any
    change of the parallelism restarts the whole job: it stops for a while, and then repeats what
    came since its last checkpoint. `semantics="paper"` has unbounded queues instead, and every
    decision restarts the job for a minute.

    ## Action
    N + 1 numbers from -1 to 1 for N tasks. If the first is not above 0, the job goes on unchanged.
    Else each task with p instances gets p * max_factor^a of them, rounded, where a is its number,
    within the limits of the task, its chain and the job. With `semantics="paper"` it gets
    p + int(a * p).
    An action with NaN changes nothing; `info["legal"]` is then False.

    ## Observation
    `snapshots`, `times`, `tasks`, `edges` and `restart` (see `observation.py`): metrics of all
    tasks in the last `history` minutes, and the job's graph.

    ## Reward
    (1 - lambda) * utilisation - lambda * latency / latency_scale_min, where lambda is
    `latency_weight`, as a mean over the minutes until the next decision. Latency is the time from
    source to sink; in a job that is stuck, the age of the records that wait.

    ## Episode end
    Truncated after `minutes`.

    ## Arguments
    Those of `StreamScalingSettings`, e.g. `StreamScalingEnv(job="large-2", history=240)`, or
    `custom_job=` with a `Job`.

    ## Version history
    v0: first release.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, custom_job: Job | None = None, **settings: Any) -> None:
        self.settings = build_settings(StreamScalingSettings, settings)
        self.setup = build_setup(self.settings, custom_job)
        self._view = blank_observation(
            self.setup.tables, self.setup.job.levels, self.settings.history
        )
        tasks = len(self.setup.job.tasks)
        self.observation_space = observation_space(self._view)
        self.action_space = action_space(tasks)
        self._plan = np.zeros(tasks, np.int64)
        self._episode: Episode | None = None
        self._seed = 0
        self._rewarded = 0.0
        self._over = True

    @property
    def max_factor(self) -> float:
        """See `apply_action`."""
        return 0.0 if self.settings.published else self.settings.max_factor

    @property
    def episode(self) -> Episode:
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("no episode was started: call reset() first")
        return self._episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start the episode of `seed`; without one, of the next number of the generator."""
        super().reset(seed=seed)
        self._seed = seed if seed is not None else int(self.np_random.integers(1 << 31))
        self._episode = build_episode(self.settings, self.setup, self._seed)
        warm_up(self.setup.tables, self._episode.constants, self._episode.state)
        self._rewarded, self._over = 0.0, False
        return self._observation(), {"seed": self._seed, **self._info()}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[ObservationDict, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("no episode is in progress: call reset() first")
        episode = self.episode
        legal = decide_and_advance(
            self.setup.tables, episode.constants, episode.state, np.asarray(action, np.float32),
            self.max_factor, self.settings.decide_every_min, self._plan,
        )  # fmt: skip
        clock = episode.state.clock
        self._over = bool(clock[MINUTE] >= clock[HORIZON])
        total = float(reward_sum(self.settings, episode.state.sums))
        reward = (total - self._rewarded) / self.settings.decide_every_min
        self._rewarded = total
        return self._observation(), reward, False, self._over, {"legal": legal, **self._info()}

    def result(self) -> EpisodeResult:
        """The outcome so far."""
        return episode_result(self.settings, self.episode.state, "environment", self._seed)

    def _observation(self) -> ObservationDict:
        """Copy the tables, which every step overwrites."""
        episode = self.episode
        view = self._view
        observe(self.setup.tables, episode.state, episode.week_minute, view, len(view.times))
        return {name: table.copy() for name, table in self._view._asdict().items()}

    def _info(self) -> dict[str, Any]:
        clock = self.episode.state.clock
        return {"minute": int(clock[MINUTE]) - WARM_UP_MIN, "restarts": int(clock[RESTARTS])}
