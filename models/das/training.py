"""What a bundle of DAS's was trained on. Lists ask: this needs neither torch nor numba."""

from __future__ import annotations

from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.wording import conditions
from loadmaster.models.manifest import Manifest, trained_in_words, training_environment


def training_settings(manifest: Manifest) -> GpuSchedulingSettings:
    """The episodes it has learnt from."""
    return training_environment(manifest, GpuSchedulingSettings)


def trained_on(manifest: Manifest) -> str:
    """The same in words."""
    return trained_in_words(manifest, GpuSchedulingSettings, in_words)


def in_words(settings: GpuSchedulingSettings) -> str:
    return f"{settings.workload}, {conditions(settings)}"
