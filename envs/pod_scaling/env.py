"""Gymnasium environment of pod scaling."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.pod_scaling.actions import action_space
from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.episode import EpisodeResult, build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.observation import observation_space
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import OOMS, RESTARTS, SUM_REWARD
from loadmaster.envs.settings import build_settings

ObservationDict = dict[str, NDArray[Any]]


class PodScalingEnv(gymnasium.Env[ObservationDict, NDArray[Any]]):
    """Set the replicas, the CPU limit and the memory limit of an application's pods.

    ## Description
    Requests to an application, drawn by the seed, arrive at its pods and share their CPU. A pod
    below one core is throttled by its quota, one without enough memory is killed and restarts. New
    pods take time to start, and may wait for a new node. Sizes change in place, or by eviction
    within a disruption budget; less memory always takes a restart. Metrics are 15 to 60 seconds
    old.

    ## Action
    CPU limit, memory limit and replicas. Each is a number from -1 to 1, a place between the bounds
    of the settings, of CPU and memory on a logarithmic scale. With `actions="discrete"` each is a
    number from 0 to 4 for a factor of 0.5, 0.8, 1, 1.25 or 2; replicas change by one at least. A
    size that differs by less than `resize_tolerance` stays. An action with NaN changes nothing;
    `info["legal"]` is then False.

    ## Observation
    `state`: limits, replicas, the use of resources, SLO preservation, load and its change (see
    `observation.py`).

    ## Reward
    slo_weight * SP * 2 + use_weight * (CPU use + memory use), with SP = min(SLO / p99, 1), of the
    last 60 seconds.

    ## Episode end
    Truncated after `steps` control steps of 60 seconds.

    ## Arguments
    Those of `PodScalingSettings`, e.g. `PodScalingEnv(application="test", load="low")`, or
    `applications=` with a tuple of `Application`.

    ## Version history
    v0: first release.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, applications: tuple[Application, ...] = (), **settings: Any) -> None:
        self.settings = build_settings(PodScalingSettings, settings)
        self.setup = build_setup(self.settings, applications)
        self.observation_space = observation_space()
        self.action_space = action_space(self.settings)
        self._runner: EpisodeRunner | None = None
        self._rewarded = 0.0

    @property
    def runner(self) -> EpisodeRunner:
        if self._runner is None:
            raise gymnasium.error.ResetNeeded("no episode was started: call reset() first")
        return self._runner

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start the episode of `seed`; without one, of the next number of the generator."""
        super().reset(seed=seed)
        chosen = seed if seed is not None else int(self.np_random.integers(1 << 31))
        self._runner, self._rewarded = EpisodeRunner(self.settings, self.setup, chosen), 0.0
        application = self._runner.episode.application.name
        return self._observation(), {"seed": chosen, "application": application, **self._info()}

    def step(
        self, action: NDArray[Any]
    ) -> tuple[ObservationDict, float, bool, bool, dict[str, Any]]:
        if self._runner is None or self._runner.over:
            raise gymnasium.error.ResetNeeded("no episode is in progress: call reset() first")
        runner = self._runner
        legal = runner.decide(np.asarray(action, np.float32))
        total = float(runner.episode.state.sums[SUM_REWARD])
        reward = total - self._rewarded
        self._rewarded = total
        return self._observation(), reward, False, runner.over, {"legal": legal, **self._info()}

    def result(self) -> EpisodeResult:
        """The outcome so far."""
        return self.runner.result("environment")

    def _observation(self) -> ObservationDict:
        """Copy the tables, which every step overwrites."""
        return {name: table.copy() for name, table in self.runner.view._asdict().items()}

    def _info(self) -> dict[str, Any]:
        clock = self.runner.episode.state.clock
        return {
            "step": self.runner.step,
            "restarts": int(clock[RESTARTS]),
            "ooms": int(clock[OOMS]),
        }
