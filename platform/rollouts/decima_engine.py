"""Decima's engine: simulator and network in one compiled loop, an episode a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.platform.rllib.recording import Assignment, Recording, Verdict
from loadmaster.platform.rollouts.decima import run_episode
from loadmaster.platform.rollouts.decima_recording import blank_tape, record_rollout
from loadmaster.platform.rollouts.reel import Reel


class DecimaEngine:
    """A `RolloutEngine` for DecimaModule."""

    def __init__(self, settings: DagSchedulingSettings) -> None:
        self.settings = settings
        self.workload = load_workload(settings)
        self.reel = Reel(blank_tape)

    def roll_out(self, module: Any, assignments: Sequence[Assignment]) -> list[Recording]:
        return [
            record_rollout(
                module.network,
                self._settings_for(assignment),
                assignment.sequence,
                self.workload,
                assignment.luck,
                assignment.keep,
                self.reel,
            )
            for assignment in assignments
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[Verdict]:
        results = [
            run_episode(module.network, self.settings, seed, self.workload) for seed in seeds
        ]
        makespan = self.settings.objective == "makespan"
        costs = [result.makespan_s if makespan else result.mean_jct_s for result in results]
        return [
            Verdict(cost, result.decisions, cost)
            for cost, result in zip(costs, results, strict=True)
        ]

    def _settings_for(self, assignment: Assignment) -> DagSchedulingSettings:
        if assignment.horizon_s is None:
            return self.settings
        return self.settings.model_copy(update={"horizon_s": assignment.horizon_s})
