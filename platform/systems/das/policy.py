"""DAS's network as a policy: greedy episodes, and the reasons of its decisions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.das.compiled import is_supported
from loadmaster.models.das.network import DasNetwork, batch_of_one
from loadmaster.platform.systems.das.explain import Moment, explanation
from loadmaster.platform.systems.das.rollout import Player
from loadmaster.platform.systems.policies import Explanation
from loadmaster.platform.systems.sampling import spread


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
        settings = settings.model_copy(update=self.habits)
        sitting = EpisodeRunner(settings, seed, workload, record)
        cluster = sitting.episode.cluster
        if is_supported(self.network.settings, len(cluster.rack)):
            Player(self.network, settings, cluster).play(sitting)
        else:
            self._run_slowly(sitting)
        return sitting.result()

    def _run_slowly(self, sitting: EpisodeRunner) -> None:
        """Where the compiled loop does not serve: the same episode."""
        while sitting.advance_to_decision():
            actions = self.network.decide(shown_in(sitting)).actions
            sitting.decide(actions.priority[0].numpy(), actions.affinity[0].numpy())

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
        while sitting.advance_to_decision():
            moment = self.consider(sitting)
            yield moment
            sitting.decide(moment.priorities.mean[0].numpy(), moment.placements.mean()[0].numpy())

    def sit(
        self,
        settings: GpuSchedulingSettings,
        seed: int,
        workload: Workload,
        *,
        record: bool = False,
    ) -> EpisodeRunner:
        """The episode before its first decision, seen as the policy is used to."""
        return EpisodeRunner(settings.model_copy(update=self.habits), seed, workload, record)

    def consider(self, sitting: EpisodeRunner) -> Moment:
        """What both agents think of the decision that is asked for."""
        observation = shown_in(sitting)
        with torch.no_grad():
            priorities, placements = self.network(observation)
        counts = sitting.desk.counts
        return Moment(
            sitting.episode, sitting.state, int(counts[on.MOMENT]),
            sitting.desk.shown[: counts[on.SHOWN]], observation, priorities, placements,
        )  # fmt: skip


def shown_in(sitting: EpisodeRunner) -> dict[str, Tensor]:
    """A batch of one, without rows that are not in use; it holds until the next one."""
    return batch_of_one(sitting.view, int(sitting.desk.counts[on.SHOWN]))
