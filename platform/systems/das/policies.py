"""Bundles of DAS for evaluation and lists. Torch and numba are imported only by `load`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.das.settings import trained_on, training_settings
from loadmaster.platform.systems.policies import Explanation, Options
from loadmaster.platform.systems.sampling import spread

if TYPE_CHECKING:
    from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
    from loadmaster.envs.gpu_scheduling.jobs import Workload
    from loadmaster.models.bundle import Bundle
    from loadmaster.models.das.explain import ExplainedDecision
    from loadmaster.models.das.policy import DasPolicy
    from loadmaster.models.manifest import Manifest
    from loadmaster.platform.systems.policies import Policies

# Settings that count least in `distance`.
MINOR_SETTINGS = ("workload", "arrivals", "backfill", "interference", "jct_weight", "fee_weight")
HEADINGS = {"job": "job that goes first", "machine": "machine it fills first"}


class EvaluationPolicy:
    """A `DasPolicy` with the methods that `loadmaster evaluate` uses."""

    def __init__(self, policy: DasPolicy) -> None:
        self.policy = policy

    def run(
        self,
        settings: GpuSchedulingSettings,
        seed: int,
        workload: Workload,
        *,
        record: bool = False,
    ) -> EpisodeResult:
        return self.policy.run(settings, seed, workload, record=record)

    def explain(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload, moments: int
    ) -> tuple[Explanation, ...]:
        from loadmaster.models.das.explain import explain

        contexts = enumerate(self.policy.iterate(settings, seed, workload))
        chosen = spread([number for number, one in contexts if one.has_choice], moments)
        contexts = enumerate(self.policy.iterate(settings, seed, workload))
        return tuple(
            printable(explain(one, number)) for number, one in contexts if number in chosen
        )


def printable(decision: ExplainedDecision) -> Explanation:
    """The explanation in the form that `evaluate --explain` prints."""
    choices, record = decision.explanation.choices, decision.record
    headings = {"job": "job by priority"} if record["moment"] == "reconsidering" else HEADINGS
    return Explanation(
        decision.time_s,
        decision.situation,
        tuple(
            Options(
                heading=headings[choice],
                columns=(*options[0].details, "score"),
                names=tuple(option.name for option in options),
                cells=tuple(
                    (*option.details.values(), f"{option.score:+.3f}") for option in options
                ),
                probabilities=tuple(option.probability or 0.0 for option in options),
                chosen=0,
                others=decision.explanation.others[choice],
            )
            for choice, options in choices.items()
        ),
        decision.explanation.summary,
        record,
    )


class DasPolicies:
    """`Policies` of DAS."""

    def load(self, bundle: Bundle) -> EvaluationPolicy:
        from loadmaster.models.das.policy import DasPolicy

        return EvaluationPolicy(DasPolicy.from_bundle(bundle))

    def settings(self, manifest: Manifest) -> GpuSchedulingSettings:
        return training_settings(manifest)

    def trained_on(self, manifest: Manifest) -> str:
        return trained_on(manifest)

    def distance(self, manifest: Manifest, settings: GpuSchedulingSettings) -> tuple[float, ...]:
        """Observed features first, then the cluster's size, the load, and minor settings."""
        try:
            own = training_settings(manifest)
        except InputError:
            return (math.inf,)
        return (
            own.durations != settings.durations,
            abs(math.log(_gpus(own) / _gpus(settings))),
            abs(math.log(own.offered_load / settings.offered_load)),
            sum(getattr(own, name) != getattr(settings, name) for name in MINOR_SETTINGS),
        )

    def is_compiled(self) -> bool:
        from loadmaster.envs.compiled import cache_folder

        return any(cache_folder().glob("das_*/compiled_loop.run_greedy-*.nbi"))


def _gpus(settings: GpuSchedulingSettings) -> int:
    return sum(group.count * group.gpus for group in settings.machine_groups)


POLICIES: Policies = DasPolicies()
