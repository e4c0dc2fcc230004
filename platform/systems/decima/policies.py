"""Decima's bundles at work in DAG scheduling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.errors import InputError
from loadmaster.models.decima.settings import trained_on, training_settings

if TYPE_CHECKING:  # lists ask what a bundle was trained on: that needs neither torch nor numba
    from loadmaster.models.bundle import Bundle
    from loadmaster.models.manifest import Manifest
    from loadmaster.platform.systems.decima.policy import DecimaPolicy
    from loadmaster.platform.systems.policies import Policies

# What may differ between training and use without making another kind of problem of it.
MATTERS_LEAST = ("workload", "total_executors", "interpolation", "warmup_s", "jobs_at_start")


class DecimaPolicies:
    """What is known about Decima's bundles."""

    def load(self, bundle: Bundle) -> DecimaPolicy:
        from loadmaster.models.decima.network import DecimaNetwork
        from loadmaster.platform.systems.decima.policy import DecimaPolicy

        network = bundle.build()
        assert isinstance(network, DecimaNetwork)
        return DecimaPolicy(network)

    def settings(self, manifest: Manifest) -> DagSchedulingSettings:
        return training_settings(manifest)

    def trained_on(self, manifest: Manifest) -> str:
        return trained_on(manifest)

    def distance(self, manifest: Manifest, settings: DagSchedulingSettings) -> tuple[float, ...]:
        """The objective counts most, then how jobs arrive and what moving costs, then the load."""
        try:
            own = training_settings(manifest)
        except InputError:
            return (math.inf,)
        gap = 0.0
        if own.arrivals == settings.arrivals == "poisson":
            gap = abs(math.log(_gap_s(own) / _gap_s(settings)))
        return (
            own.objective != settings.objective,
            own.arrivals != settings.arrivals,
            (own.moving_delay_s == 0) != (settings.moving_delay_s == 0),
            bool(own.executor_classes) != bool(settings.executor_classes),
            gap,
            sum(getattr(own, name) != getattr(settings, name) for name in MATTERS_LEAST),
        )

    def is_compiled(self) -> bool:
        from loadmaster.envs.compiled import cache_folder

        return any(cache_folder().glob("decima_*/rollout.run_network-*.nbi"))


def _gap_s(settings: DagSchedulingSettings) -> float:
    """The mean time between two arrivals; a load is one only with the workload at hand."""
    if settings.load is None:
        return settings.interarrival_s
    from loadmaster.envs.dag_scheduling.rollout import mean_interarrival_s
    from loadmaster.envs.dag_scheduling.workloads import load_workload

    return mean_interarrival_s(settings, load_workload(settings))


POLICIES: Policies = DecimaPolicies()
