"""Settings of a GPU scheduling episode: GPU types, machine groups and episode parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loadmaster.envs.settings import Settings


class GpuType(Settings):
    """A GPU type. Machines can only use a type that has a price."""

    name: str = Field(min_length=1)
    speed: PositiveFloat  # of a training job, relative to a V100
    price_per_hour: float | None = Field(default=None, ge=0)  # dollars for one whole GPU
    shared_speed: float = Field(default=0.6, gt=0, le=1)  # kept by two jobs that share one GPU


# Prices: public on-demand prices of a single GPU in dollars per hour. Google Compute Engine,
# us-central1 (T4 0.35, K80 0.45, P100 1.46, V100 2.48, A100 2.934); an eighth of an AWS
# p3dn.24xlarge for the V100 with 32 GB (31.212 / 8); an AWS g5.xlarge for the A10 (1.006).
# Speeds: K80 and P100 are medians over Gavel's measured throughputs; T4, A10 and A100 follow
# published training benchmarks of ResNet-50 and BERT, rounded. Shared speeds were measured for K80,
# P100 and V100; newer GPUs take the V100's value, the others the P100's. MISC denotes older boards
# in the PAI trace, modelled as a K80; G2 and G3 are anonymised types of the 2023 trace, modelled as
# an A10 and an A100.
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


class MachineGroup(Settings):
    """Equal machines in racks of their own."""

    count: PositiveInt
    gpus: PositiveInt
    gpu: str  # a name in GPU_TYPES or in the setting gpu_types
    cpus: PositiveInt
    machines_per_rack: PositiveInt = 4


# Half of the GPUs are slow and cheap; the others are two to five times as fast and cost more for
# the same work. Cores per GPU (16, 16, 24) are scarce enough to limit CPU-intensive jobs.
CLUSTERS: dict[str, tuple[MachineGroup, ...]] = {
    "small": (  # 8 machines, 32 GPUs, 3 racks
        MachineGroup(count=2, gpus=4, gpu="V100", cpus=96),
        MachineGroup(count=2, gpus=4, gpu="P100", cpus=64),
        MachineGroup(count=4, gpus=4, gpu="T4", cpus=64),
    ),
    "medium": (  # 32 machines, 128 GPUs, 8 racks
        MachineGroup(count=8, gpus=4, gpu="V100", cpus=96),
        MachineGroup(count=8, gpus=4, gpu="P100", cpus=64),
        MachineGroup(count=16, gpus=4, gpu="T4", cpus=64),
    ),
    "large": (  # 128 machines, 1,024 GPUs, 16 racks
        MachineGroup(count=32, gpus=8, gpu="V100", cpus=192, machines_per_rack=8),
        MachineGroup(count=32, gpus=8, gpu="P100", cpus=128, machines_per_rack=8),
        MachineGroup(count=64, gpus=8, gpu="T4", cpus=128, machines_per_rack=8),
    ),
}

# Default load and number of jobs. With FIFO and first-fit the mean wait is 7 hours on small, 1 hour
# on medium and 2 minutes on large. Custom machines get the values of medium.
_LOAD = {"small": 1.2, "medium": 0.5, "large": 0.7}
_JOBS = {"small": 200, "medium": 400, "large": 1000}


class GpuSchedulingSettings(Settings):
    """Jobs, arrivals, machines and objective of an episode."""

    workload: str = "pai-like"
    data: Path | None = None  # trace file or folder; None: LOADMASTER_DATA
    jobs: PositiveInt | None = None  # None: 200, 400, 1000 by cluster; all jobs of a trace
    require_types: bool = False  # True: a job runs only on the GPU type it requests
    oversized: Literal["refuse", "skip", "queue"] = "refuse"  # jobs the empty cluster cannot hold

    arrivals: Literal["poisson", "trace", "batch", "per-minute"] = "poisson"
    interarrival_s: PositiveFloat | None = None  # mean gap; None: derived from `load`
    load: PositiveFloat | None = None  # requested over available GPU time; None: by cluster
    jobs_per_minute: PositiveInt = 1000  # arrivals at each full minute, for `per-minute`

    cluster: Literal["small", "medium", "large"] = "small"
    machines: tuple[MachineGroup, ...] = ()  # replace the machines of `cluster`
    gpu_types: tuple[GpuType, ...] = ()  # added to GPU_TYPES, replacing equal names

    backfill: bool = True  # False: a job that does not fit blocks those behind it
    interference: bool = True  # False: no slowdown by co-location or network
    stragglers: float = Field(default=0.1, ge=0)  # sigma of runtime noise; PAI's median
    speeds: Literal["known", "hidden"] = "known"  # hidden: by job class and drifting, never shown
    job_classes: Literal["visible", "hidden"] = "visible"  # to rules, if speeds are hidden
    class_speeds: bool = True  # False: hidden speeds do not depend on the class
    machine_drift: float = Field(default=0.25, ge=0)  # sigma of a machine's hidden log speed
    rack_drift: float = Field(default=0.15, ge=0)  # likewise of a rack's
    drift_hours: PositiveFloat = 6.0  # time constant of both
    preempt: bool = False  # True: agents may stop running jobs in favour of others
    # The rule that the agents' actions correct; None: their actions alone decide.
    guide: Literal["predicted-speed-price", "shockwave-speed-price"] | None = None
    # Speeds that it expects if they are hidden; oracle: the true ones.
    guide_speeds: Literal["nominal", "measured", "process", "oracle"] = "process"
    replan_s: PositiveFloat = 60.0  # replanning interval of time-driven heuristics
    restart_s: float = Field(default=60.0, ge=0)  # work a preempted job loses, at speed 1

    reward: Literal["cost", "published"] = "cost"
    jct_weight: float = Field(default=1.0, ge=0)  # factor in `cost`, exponent in `published`
    fee_weight: float = Field(default=1.0, ge=0)  # likewise for the fee
    waiting_penalty: float = Field(default=0.01, ge=0)  # alpha: per requested GPU left waiting
    durations: Literal["unknown", "known"] = "unknown"  # whether agents observe job durations

    calibration: Path | None = None  # tuned heuristics' parameters; None: those shipped

    max_queue: PositiveInt = 64  # job rows of the observation
    history: PositiveInt = 8  # tau: past decisions with observed speeds

    @model_validator(mode="after")
    def _one_rate(self) -> GpuSchedulingSettings:
        if self.interarrival_s is not None and self.load is not None:
            raise ValueError("interarrival_s and load both set the gap; expected only one of them")
        if self.guide is not None and self.reward == "published":
            raise ValueError("reward=published pays for jobs just placed; expected no guide")
        return self

    @property
    def machine_groups(self) -> tuple[MachineGroup, ...]:
        """`machines`, or those of the named cluster."""
        return self.machines or CLUSTERS[self.cluster]

    @property
    def known_gpu_types(self) -> dict[str, GpuType]:
        """GPU types by name, including `gpu_types`; their order defines the type numbers."""
        return {**GPU_TYPES, **{gpu.name: gpu for gpu in self.gpu_types}}

    @property
    def offered_load(self) -> float:
        return self.load or _LOAD["medium" if self.machines else self.cluster]

    @property
    def drawn_jobs(self) -> int:
        """Jobs of an episode whose workload is unlimited."""
        return self.jobs or _JOBS["medium" if self.machines else self.cluster]
