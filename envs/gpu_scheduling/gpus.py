"""The kinds of GPU, how fast each is, and what an hour of it costs."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field, PositiveFloat

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import Settings


class GpuType(Settings):
    """One kind of GPU. A type without a price can be described, but nobody can rent it."""

    name: str = Field(min_length=1)
    speed: PositiveFloat  # of a training job, that on a V100 being 1
    price_per_hour: float | None = Field(default=None, ge=0)  # dollars, of one whole GPU
    shared_speed: float = Field(default=0.6, gt=0, le=1)  # what two jobs keep that share one GPU


# Prices are the public on-demand ones of a single GPU, in dollars an hour: Google Compute Engine's
# list for us-central1 (T4 0.35, K80 0.45, P100 1.46, V100 2.48, A100 2.934), and an eighth of an
# AWS p3dn.24xlarge for the V100 of 32 GB (31.212 / 8), an AWS g5.xlarge for the A10 (1.006).
# Speeds: K80 and P100 are medians over Gavel's measured throughputs; T4, A10 and A100 follow
# published training benchmarks of ResNet-50 and BERT, rounded. What is left of the speed when two
# jobs share a GPU was measured for K80, P100 and V100; a newer card takes the V100's, others
# the P100's. MISC is the PAI trace's word for older boards, taken as a K80. G2 and G3 are names
# that the 2023 trace withholds, taken as an A10 and an A100.
GPU_TYPES: dict[str, GpuType] = {
    gpu.name: gpu
    for gpu in (
        GpuType(name="T4", speed=0.4, price_per_hour=0.35, shared_speed=0.60),
        GpuType(name="K80", speed=0.2, price_per_hour=0.45, shared_speed=0.54),
        GpuType(name="P100", speed=0.76, price_per_hour=1.46, shared_speed=0.60),
        GpuType(name="V100", speed=1.0, price_per_hour=2.48, shared_speed=0.66),
        GpuType(name="V100M16", speed=1.0, price_per_hour=2.48, shared_speed=0.66),
        GpuType(name="V100M32", speed=1.0, price_per_hour=3.90, shared_speed=0.66),
        GpuType(name="A10", speed=0.8, price_per_hour=1.006, shared_speed=0.66),
        GpuType(name="A100", speed=2.0, price_per_hour=2.934, shared_speed=0.66),
        GpuType(name="MISC", speed=0.2, price_per_hour=0.45, shared_speed=0.54),
        GpuType(name="G2", speed=0.8, price_per_hour=1.006, shared_speed=0.66),
        GpuType(name="G3", speed=2.0, price_per_hour=2.934, shared_speed=0.66),
    )
}


def catalogue(own: Iterable[GpuType] = ()) -> dict[str, GpuType]:
    """All types by name, the user's own among them; their order numbers them."""
    return {**GPU_TYPES, **{gpu.name: gpu for gpu in own}}


def find_gpu(name: str, known: dict[str, GpuType]) -> GpuType:
    """The type of that name, fit to be rented."""
    if name not in known:
        raise unknown_name("GPU type", name, known)
    if known[name].price_per_hour is None:
        raise InputError(
            f"GPU type {name!r} has no price; expected price_per_hour in dollars, 0 if it is free"
        )
    return known[name]
