"""What a bundle of DAS's was trained on. Lists ask: this needs neither torch nor numba."""

from __future__ import annotations

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.wording import conditions
from loadmaster.envs.settings import build_settings
from loadmaster.models.manifest import Manifest


def training_settings(manifest: Manifest) -> GpuSchedulingSettings:
    """The episodes it has learnt from."""
    try:
        return build_settings(GpuSchedulingSettings, manifest.trained.get("environment") or {})
    except (InputError, TypeError, ValueError) as fault:
        raise InputError(
            f"bundle {manifest.name!r} does not say what it was trained on: {fault}"
        ) from None


def trained_on(manifest: Manifest) -> str:
    """The same in words."""
    try:
        settings = training_settings(manifest)
    except InputError:
        return "settings that this installation does not know"
    return f"{settings.workload}, {conditions(settings)}"
