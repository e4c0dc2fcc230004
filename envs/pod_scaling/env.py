"""Gymnasium environment of pod scaling."""

from typing import Any

from loadmaster.envs.episode_env import EpisodeEnv
from loadmaster.envs.pod_scaling.actions import action_space
from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.episode import EpisodeResult, build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.observation import observation_space
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import OOMS, RESTARTS, SUM_REWARD
from loadmaster.envs.settings import build_settings


class PodScalingEnv(EpisodeEnv[EpisodeRunner]):
    """Set the replicas, the CPU limit and the memory limit of an application's pods.

    ## Description
    Requests to an application, drawn by the seed, arrive at its pods and share their CPU. A pod
    below one core is throttled by its quota, one without enough memory is killed and restarts. New
    pods take time to start, and may wait for a new node. Sizes change in place, or by eviction
    within a disruption budget; less memory always takes a restart. Metrics are 15 to 60 seconds
    old.

    ## Action
    CPU limit, memory limit and replicas. Each is a number from -1 to 1, a place between the bounds
    of the settings on a logarithmic scale. With `actions="discrete"` each is a
    number from 0 to 4 for a factor of 0.5, 0.8, 1, 1.25 or 2; replicas change by one at least. A
    size that differs by less than `resize_tolerance` stays. An action with NaN changes nothing;
    `info["legal"]` is then False.

    ## Observation
    `state`: limits, replicas, the use of resources, SLO preservation and slack, load and its change
    (see `observation.py`).

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

    def __init__(self, applications: tuple[Application, ...] = (), **settings: Any) -> None:
        self.settings = build_settings(PodScalingSettings, settings)
        self.setup = build_setup(self.settings, applications)
        self.observation_space = observation_space()
        self.action_space = action_space(self.settings)

    def result(self) -> EpisodeResult:
        """The outcome so far."""
        return self.runner.result("environment")

    def _start(self, seed: int) -> EpisodeRunner:
        return EpisodeRunner(self.settings, self.setup, seed)

    def _reward_so_far(self) -> float:
        return float(self.runner.episode.state.sums[SUM_REWARD])

    def _first_info(self) -> dict[str, Any]:
        return {"application": self.runner.episode.application.name}

    def _info(self) -> dict[str, Any]:
        clock = self.runner.episode.state.clock
        return {
            "step": self.runner.step,
            "restarts": int(clock[RESTARTS]),
            "ooms": int(clock[OOMS]),
        }
