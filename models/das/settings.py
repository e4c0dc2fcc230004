"""What a user may set about DAS's network."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loadmaster.envs.gpu_scheduling.describe import conditions
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.settings import Settings
from loadmaster.models.manifest import Manifest, describe_training, training_environment

Share = Annotated[float, Field(ge=0, le=1)]
Inside = Annotated[float, Field(gt=0, lt=1)]


class DasSettings(Settings):
    """Its size, and the two ideas that an ablation takes away.

    Both off is the paper's DA; `communicate` alone DA+MC, `process` alone DA+RWGP, both DAS.
    """

    communicate: bool = True  # the ordering agent hears of the machines, through a gate
    process: bool = True  # affinities from a random-walk process; False: each by itself

    # What it knows before it learns; nothing: all jobs and machines are alike to it.
    opening: Literal["least-attained", "nothing"] = "least-attained"

    width: PositiveInt = 32  # numbers that describe a job or a machine
    heads: PositiveInt = 4  # of attention among the jobs
    layers: PositiveInt = 1  # of the jobs' Transformer
    kind_width: PositiveInt = 8  # numbers that tell how alike two machines are for a job

    tau: PositiveInt = 8  # past decisions whose speeds the process is told
    walk: Inside = 0.7  # lambda: how far similarity spreads over the machines
    same_rack: Share = 0.6  # tie of two like machines in one rack; to itself it is 1
    cross_rack: Share = 0.3  # and in different racks
    # Where these four begin; they are learnt.
    length: PositiveFloat = 1.0  # l: differences of machines that count
    memory_s: PositiveFloat = 600.0  # rho: how long an observed speed stays true
    noise: PositiveFloat = 1.0  # variance of an observed speed, that of speeds themselves being 1
    gain: PositiveFloat = 1.0  # affinity that a machine wins by running 1 faster than usual

    exact_up_to: PositiveInt = 256  # machines; beyond, like machines share a cell
    cells: PositiveInt = 64  # that many

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

    @property
    def variant(self) -> str:
        """Its name in the paper's Table 1."""
        names = {
            (False, False): "DA",
            (True, False): "DA+MC",
            (False, True): "DA+RWGP",
            (True, True): "DAS",
        }
        return names[self.communicate, self.process]


# What a bundle of DAS's was trained on. Lists ask: this needs neither torch nor numba.


def training_settings(manifest: Manifest) -> GpuSchedulingSettings:
    """The episodes it has learnt from."""
    return training_environment(manifest, GpuSchedulingSettings)


def trained_on(manifest: Manifest) -> str:
    """The same in words."""
    return describe_training(manifest, GpuSchedulingSettings, in_words)


def in_words(settings: GpuSchedulingSettings) -> str:
    return f"{settings.workload}, {conditions(settings)}"
