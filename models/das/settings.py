"""Settings of DAS's network, and the training settings of its bundles.

Imports neither torch nor numba, since lists of bundles use it.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.describe import describe_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.settings import Settings
from loadmaster.models.manifest import (
    Manifest,
    describe_training,
    mixture_size,
    training_environment,
)

# Settings that count least in `distance`.
MINOR_SETTINGS = ("workload", "arrivals", "backfill", "interference", "jct_weight", "fee_weight")

Share = Annotated[float, Field(ge=0, le=1)]
Inside = Annotated[float, Field(gt=0, lt=1)]


class DasSettings(Settings):
    """Sizes of the network, and the switches of the paper's ablation.

    Both off is DA; `communicate` alone DA+MC, `process` alone DA+RWGP, both DAS.
    """

    communicate: bool = True  # gated pooling of the machines into the ordering agent
    process: bool = True  # affinities from the random-walk process; False: independent

    # Initial weights of the linear skip paths. nothing: zeros; rule: zeros that correct the rule
    # `environment.guide`, and weights that change its parameters.
    opening: Literal["least-attained", "nothing", "rule"] = "least-attained"

    width: PositiveInt = 32  # of the embeddings
    heads: PositiveInt = 4  # of attention
    layers: PositiveInt = 1  # of the Transformer over jobs
    kind_width: PositiveInt = 8  # of phi, the embedding of machines for a job

    tau: PositiveInt = 8  # past decisions that the process observes
    walk: Inside = 0.7  # lambda: how far similarity spreads over the machines
    same_rack: Share = 0.6  # tie of two like machines in one rack
    cross_rack: Share = 0.3  # and in different racks
    # Initial values of learned parameters.
    length: PositiveFloat = 1.0  # l, the length scale of phi
    memory_s: PositiveFloat = 600.0  # rho, the time scale of observed speeds
    noise: PositiveFloat = 1.0  # variance of an observation, relative to that of speeds
    gain: PositiveFloat = 1.0  # affinity per relative speed beyond the usual

    exact_up_to: PositiveInt = 256  # machines; beyond, like machines are grouped into cells
    cells: PositiveInt = 64

    @model_validator(mode="after")
    def _must_fit(self) -> Self:
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"width={self.width} must be even and a multiple of heads={self.heads}"
            )
        if self.cross_rack > self.same_rack:
            raise ValueError(
                f"cross_rack={self.cross_rack} must not exceed same_rack={self.same_rack}"
            )
        return self


def training_settings(manifest: Manifest) -> GpuSchedulingSettings:
    """Environment settings that the bundle was trained with."""
    return training_environment(manifest, GpuSchedulingSettings)


def trained_on(manifest: Manifest) -> str:
    """Description of `training_settings`."""
    return describe_training(manifest, GpuSchedulingSettings, _describe)


def _describe(settings: GpuSchedulingSettings) -> str:
    return f"{settings.workload}, {describe_episode(settings)}"


def distance(manifest: Manifest, settings: GpuSchedulingSettings) -> tuple[float, ...]:
    """Distance of `settings` from those of the training; the smaller tuple is nearer.

    Compared in this order: whether the policy was trained on a mixture, whether durations are
    known, number of GPUs, load, minor settings.
    """
    try:
        own = training_settings(manifest)
    except InputError:
        return (math.inf,)
    return (
        not mixture_size(manifest),
        own.durations != settings.durations,
        abs(math.log(_gpus(own) / _gpus(settings))),
        abs(math.log(own.offered_load / settings.offered_load)),
        sum(getattr(own, name) != getattr(settings, name) for name in MINOR_SETTINGS),
    )


def _gpus(settings: GpuSchedulingSettings) -> int:
    return sum(group.count * group.gpus for group in settings.machine_groups)
