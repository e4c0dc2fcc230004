"""DAS's rollouts: whole episodes in a compiled loop, or many clusters stepped together.

The loop is several times as fast. Where it does not serve (models/das/kernel.py), one forward
pass in torch decides for both agents of all clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.rewards import reference_scales, total_reward
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.sitting import Sitting
from loadmaster.envs.gpu_scheduling.vector import GpuSchedulingVectorEnv
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.kernel import serves
from loadmaster.models.das.network import DasNetwork
from loadmaster.platform.rllib.film import Rows
from loadmaster.platform.rllib.recording import Assignment, Recording, RolloutEngine, Verdict
from loadmaster.platform.rllib.vector_engine import VectorEngine
from loadmaster.platform.rollouts.das_loop import reel_for
from loadmaster.platform.rollouts.das_recording import COST, Player, figures_of

QUEUE = Rows(
    mask="job_mask",
    tables=frozenset({"jobs", "job_mask", "heeded", "held", "rack_held"}),
    actions=frozenset({ORDERING, PLACEMENT}),
)


def das_engine(settings: GpuSchedulingSettings) -> RolloutEngine:
    """A `RolloutEngine` for DasModule."""
    return DasEngine(settings)


class DasEngine:
    """The faster of two engines that a network can be run with; both record the same."""

    def __init__(self, settings: GpuSchedulingSettings) -> None:
        self.settings, self.workload = settings, load_workload(settings)
        self._machines = len(build_cluster(settings).rack)

    def roll_out(self, module: Any, assignments: Sequence[Assignment]) -> list[Recording]:
        return self._for(module.network).roll_out(module, assignments)

    def judge(self, module: Any, seeds: Sequence[int]) -> list[Verdict]:
        return self._for(module.network).judge(module, seeds)

    def _for(self, network: DasNetwork) -> RolloutEngine:
        return self.loop if serves(network.settings, self._machines) else self.vector

    @cached_property
    def loop(self) -> RolloutEngine:
        return LoopEngine(self.settings, self.workload)

    @cached_property
    def vector(self) -> RolloutEngine:
        return vector_engine(self.settings, self.workload)


class LoopEngine:
    """One episode after the other, simulator and both agents in one compiled loop."""

    def __init__(self, settings: GpuSchedulingSettings, workload: Workload) -> None:
        self.settings, self.workload = settings, workload
        self._scales = reference_scales(settings, workload)
        self._cluster = build_cluster(settings)
        self._reel = reel_for(settings, self._cluster)

    def roll_out(self, module: Any, assignments: Sequence[Assignment]) -> list[Recording]:
        player = self._player(module)
        return [player.record(self._sit(own.sequence), own, self._scales) for own in assignments]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[Verdict]:
        player, verdicts = self._player(module), []
        for seed in seeds:
            sitting = self._sit(seed)
            decisions = player.play(sitting)
            loss = -float(total_reward(self.settings, self._scales, sitting.desk.sums))
            verdicts.append(Verdict(figures_of(sitting.result())[COST], decisions, loss))
        return verdicts

    def _player(self, module: Any) -> Player:
        return Player(module.network, self.settings, self._cluster, self._reel)

    def _sit(self, seed: int) -> Sitting:
        return Sitting(self.settings, seed, self.workload)


def vector_engine(settings: GpuSchedulingSettings, workload: Workload) -> VectorEngine:
    plain = settings.model_dump()

    def make(count: int, horizon_s: float | None) -> GpuSchedulingVectorEnv:
        return GpuSchedulingVectorEnv(count, workload, copy=False, **plain)

    return VectorEngine(make, outcome, COST, QUEUE)


def outcome(envs: GpuSchedulingVectorEnv, index: int) -> Mapping[str, float]:
    """Of an episode that has just ended."""
    return figures_of(envs.result(index))
