"""DAS's bundles at work in GPU scheduling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.das.settings import trained_on, training_settings

if TYPE_CHECKING:  # lists ask what a bundle was trained on: that needs neither torch nor numba
    from loadmaster.models.bundle import Bundle
    from loadmaster.models.manifest import Manifest
    from loadmaster.platform.systems.das.policy import DasPolicy
    from loadmaster.platform.systems.policies import Policies

# What may differ between training and use without making another kind of problem of it.
MATTERS_LEAST = ("workload", "arrivals", "backfill", "interference", "jct_weight", "fee_weight")


class DasPolicies:
    """What is known about DAS's bundles."""

    def load(self, bundle: Bundle) -> DasPolicy:
        from loadmaster.models.das.network import DasNetwork
        from loadmaster.platform.systems.das.policy import DasPolicy

        network = bundle.build()
        assert isinstance(network, DasNetwork)
        return DasPolicy(network, training_settings(bundle))

    def settings(self, manifest: Manifest) -> GpuSchedulingSettings:
        return training_settings(manifest)

    def trained_on(self, manifest: Manifest) -> str:
        return trained_on(manifest)

    def distance(self, manifest: Manifest, settings: GpuSchedulingSettings) -> tuple[float, ...]:
        """What agents are told counts most, then the cluster's size, then the load."""
        try:
            own = training_settings(manifest)
        except InputError:
            return (math.inf,)
        return (
            own.durations != settings.durations,
            abs(math.log(_gpus(own) / _gpus(settings))),
            abs(math.log(own.offered_load / settings.offered_load)),
            sum(getattr(own, name) != getattr(settings, name) for name in MATTERS_LEAST),
        )

    def is_compiled(self) -> bool:
        from loadmaster.envs.compiled import cache_folder

        return any(cache_folder().glob("das_*/rollout.run_network-*.nbi"))


def _gpus(settings: GpuSchedulingSettings) -> int:
    return sum(group.count * group.gpus for group in settings.machine_groups)


POLICIES: Policies = DasPolicies()
