"""Gymnasium environment of stream scaling."""

from typing import Any

from loadmaster.envs.episode_env import EpisodeEnv
from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.actions import action_space
from loadmaster.envs.stream_scaling.episode import EpisodeResult, build_setup
from loadmaster.envs.stream_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.stream_scaling.jobs import Job
from loadmaster.envs.stream_scaling.observation import blank_observation, observation_space
from loadmaster.envs.stream_scaling.rewards import reward_sum
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.state import RESTARTS


class StreamScalingEnv(EpisodeEnv[EpisodeRunner]):
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

    def __init__(self, custom_job: Job | None = None, **settings: Any) -> None:
        self.settings = build_settings(StreamScalingSettings, settings)
        self.setup = build_setup(self.settings, custom_job)
        blank = blank_observation(self.setup.tables, self.setup.job.levels, self.settings.history)
        self.observation_space = observation_space(blank)
        self.action_space = action_space(len(self.setup.job.tasks))
        self._reward_unit = float(self.settings.decide_every_min)

    def result(self) -> EpisodeResult:
        """The outcome so far."""
        return self.runner.result("environment")

    def _start(self, seed: int) -> EpisodeRunner:
        return EpisodeRunner(self.settings, self.setup, seed)

    def _reward_so_far(self) -> float:
        return float(reward_sum(self.settings, self.runner.episode.state.sums))

    def _info(self) -> dict[str, Any]:
        restarts = int(self.runner.episode.state.clock[RESTARTS])
        return {"minute": self.runner.minute, "restarts": restarts}
