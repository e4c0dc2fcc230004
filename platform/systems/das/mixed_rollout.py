"""DAS's rollouts over a mixture of settings, for training by evolution.

Episodes are those of `rollout.LoopEngine`; a sequence belongs to one of the settings.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutSpec
from loadmaster.platform.systems.das.rollout import LoopEngine
from loadmaster.platform.training.mixture import Mixture

REFERENCE = "predicted-speed-price"  # to which costs are relative, without a guide


class MixedEngine:
    """`RolloutEngine` of several settings, through which sequences take turns.

    Costs are relative to those of a rule on the same sequence.
    """

    def __init__(self, settings: Sequence[GpuSchedulingSettings]) -> None:
        self._mixture = Mixture([LoopEngine(one) for one in settings], rule_cost)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        return [
            recording
            for spec in assignments
            for recording in self._mixture.member(spec.sequence).roll_out(module, [spec])
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        return [self._judge(module, seed) for seed in seeds]

    def _judge(self, module: Any, seed: int) -> EpisodeScore:
        engine = self._mixture.member(seed)
        runner, decisions = engine.run(module.network, seed, *engine.prepare(module.network))
        cost = self._mixture.relative_cost(seed, mixed_cost(engine.settings, runner.result()))
        return EpisodeScore(cost, decisions, cost)

    def baseline_cost(self, name: str, seed: int) -> float:
        """Relative cost of a baseline."""
        cost = rule_cost(self._mixture.member(seed), seed, name)
        return self._mixture.relative_cost(seed, cost)


def rule_cost(engine: LoopEngine, seed: int, rule: str | None = None) -> float:
    """Cost of a rule in the setting of an engine; without one, of that which DAS starts from."""
    settings = engine.settings
    result = run_episode(rule or settings.guide or REFERENCE, settings, seed, engine.workload)
    return mixed_cost(settings, result)


def mixed_cost(settings: GpuSchedulingSettings, result: EpisodeResult) -> float:
    """Geometric mean of completion time and fee, by their weights.

    So the ratio of two costs is the mean of both ratios, whatever their scales.
    """
    fee = float(result.fee.mean())
    if fee <= 0 or settings.fee_weight == 0:
        return result.mean_jct_s
    weights = [settings.jct_weight, settings.fee_weight]
    return float(np.exp(np.average(np.log([result.mean_jct_s, fee]), weights=weights)))
