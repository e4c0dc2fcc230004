"""An episode of GPU scheduling under way, decision by decision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.decision_state import advance_to_decision, new_decision_state
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, build_episode
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.observation import blank_observation, observe
from loadmaster.envs.gpu_scheduling.rewards import published_terms
from loadmaster.envs.gpu_scheduling.rollout import episode_result
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import new_state, with_more_trace


class EpisodeRunner:
    """Whoever decides: the tables of an episode, and how to go on in it."""

    def __init__(
        self,
        settings: GpuSchedulingSettings,
        seed: int,
        workload: Workload,
        record: bool = False,
    ) -> None:
        self.seed = seed
        self.episode = build_episode(settings, seed, workload)
        self.state = new_state(settings, *self.episode, record=record)
        self.desk = new_decision_state(settings, *self.episode[:2])
        self.view = blank_observation(settings.max_queue, self.episode.cluster, settings.history)
        self.terms = published_terms(settings, self.episode.cluster)

    def lengthen_trace(self) -> None:
        self.state = with_more_trace(self.state)

    def advance_to_decision(self) -> bool:
        """False: the episode is over."""
        cluster, jobs, _ = self.episode
        while (
            status := advance_to_decision(self.state, cluster, jobs, self.desk)
        ) == at.GROW_TRACE:
            self.lengthen_trace()
        if status != at.DECIDE:
            return False
        observe(self.state, cluster, jobs, self.desk, self.view)
        return True

    def decide(self, priority: NDArray[np.float32], affinity: NDArray[np.float32]) -> None:
        """Of the jobs shown (Q,), and of each to every machine (Q, M)."""
        cluster, jobs, _ = self.episode
        apply_action(
            self.state, cluster, jobs, self.desk, self.terms,
            np.ascontiguousarray(priority), np.ascontiguousarray(affinity),
        )  # fmt: skip

    def result(self) -> EpisodeResult:
        return episode_result(self.state, self.episode.cluster, self.episode.jobs, "das", self.seed)
