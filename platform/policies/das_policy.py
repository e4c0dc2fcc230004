"""DAS's network as a policy: greedy episodes, and the reasons of its decisions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.desk import new_desk, to_next_decision
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, build_episode
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.observation import blank_observation, observe
from loadmaster.envs.gpu_scheduling.rewards import published_terms
from loadmaster.envs.gpu_scheduling.rollout import result_of
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import new_state, with_more_trace
from loadmaster.models.das.network import DasNetwork
from loadmaster.platform.policies import Explanation
from loadmaster.platform.policies.das_moment import Moment
from loadmaster.platform.policies.das_reasons import explanation
from loadmaster.platform.policies.moments import spread

ROWS = ("jobs", "job_mask", "heeded", "held", "rack_held")  # tables with a row for each job


class DasPolicy:
    """Takes the mean of every priority and affinity.

    It looks at as many jobs and past decisions as when it learnt, and preempts if it did so then:
    that is part of the policy, not of the problem.
    """

    def __init__(self, network: DasNetwork, learnt_in: GpuSchedulingSettings) -> None:
        self.network = network.eval()
        self.habits = {
            name: getattr(learnt_in, name) for name in ("max_queue", "history", "preempt")
        }

    def run(
        self,
        settings: GpuSchedulingSettings,
        seed: int,
        workload: Workload,
        *,
        record: bool = False,
    ) -> EpisodeResult:
        sitting = self.sit(settings, seed, workload, record=record)
        while sitting.to_next_decision():
            actions = self.network.decide(sitting.observation()).actions
            sitting.decide(actions.priority[0], actions.affinity[0])
        return sitting.result()

    def explain(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload, moments: int
    ) -> tuple[Explanation, ...]:
        walk = enumerate(self.walk(settings, seed, workload))
        wanted = spread([count for count, moment in walk if moment.has_choice], moments)
        walk = enumerate(self.walk(settings, seed, workload))
        return tuple(explanation(moment, count) for count, moment in walk if count in wanted)

    def walk(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload
    ) -> Iterator[Moment]:
        """The episode of `run`, decision by decision; a moment holds until the next one."""
        sitting = self.sit(settings, seed, workload)
        while sitting.to_next_decision():
            moment = self.consider(sitting)
            yield moment
            sitting.decide(moment.priorities.mean[0], moment.placements.mean()[0])

    def sit(
        self,
        settings: GpuSchedulingSettings,
        seed: int,
        workload: Workload,
        *,
        record: bool = False,
    ) -> Sitting:
        """The episode before its first decision, seen as the policy is used to."""
        return Sitting(settings.model_copy(update=self.habits), seed, workload, record)

    def consider(self, sitting: Sitting) -> Moment:
        """What both agents think of the decision that is asked for."""
        observation = sitting.observation()
        with torch.no_grad():
            priorities, placements = self.network(observation)
        counts = sitting.desk.counts
        return Moment(
            sitting.episode, sitting.state, int(counts[on.MOMENT]),
            sitting.desk.shown[: counts[on.SHOWN]], observation, priorities, placements,
        )  # fmt: skip


class Sitting:
    """An episode under way, without the rewards that only learners need."""

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
        self.desk = new_desk(settings, *self.episode[:2])
        self._view = blank_observation(settings.max_queue, self.episode.cluster, settings.history)
        self._terms = published_terms(settings, self.episode.cluster)

    def to_next_decision(self) -> bool:
        """False: the episode is over."""
        cluster, jobs, _ = self.episode
        while (status := to_next_decision(self.state, cluster, jobs, self.desk)) == at.GROW_TRACE:
            self.state = with_more_trace(self.state)
        if status != at.DECIDE:
            return False
        observe(self.state, cluster, jobs, self.desk, self._view)
        return True

    def observation(self) -> dict[str, Tensor]:
        """A batch of one, without rows that are not in use; it holds until the next one."""
        used = self.desk.counts[on.SHOWN]
        return {
            name: torch.from_numpy(table[:used] if name in ROWS else table).unsqueeze(0)
            for name, table in self._view._asdict().items()
        }

    def decide(self, priority: Tensor, affinity: Tensor) -> None:
        """Of the jobs shown (Q,), and of each to every machine (Q, M)."""
        cluster, jobs, _ = self.episode
        apply_action(
            self.state, cluster, jobs, self.desk, self._terms,
            priority.contiguous().numpy(), affinity.contiguous().numpy(),
        )  # fmt: skip

    def result(self) -> EpisodeResult:
        return result_of(self.state, self.episode.cluster, self.episode.jobs, "das", self.seed)
