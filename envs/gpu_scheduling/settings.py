"""What a user may set about a GPU scheduling episode."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loadmaster.envs.gpu_scheduling.cluster import CLUSTERS, GpuType, MachineGroup
from loadmaster.envs.settings import Settings

# Small queues heavily, Large barely: under FIFO and first-fit a job waits 7 hours, 1 hour and 2
# minutes on average. Machines of the user's own are offered as much as Medium.
_LOAD = {"small": 1.2, "medium": 0.5, "large": 0.7}
_JOBS = {"small": 200, "medium": 400, "large": 1000}


class GpuSchedulingSettings(Settings):
    """An episode: its jobs, their arrivals, the machines, and the objective."""

    workload: str = "pai-like"
    data: Path | None = None  # folder of the traces; LOADMASTER_DATA where it is not given
    jobs: PositiveInt | None = None  # None: 200, 400, 1000 by cluster; of a trace, all it has
    require_types: bool = False  # True: a job runs only on the GPU type that it asks for
    oversized: Literal["refuse", "skip", "queue"] = "refuse"  # jobs the empty cluster cannot hold

    arrivals: Literal["poisson", "trace", "batch", "per-minute"] = "poisson"
    interarrival_s: PositiveFloat | None = None  # mean gap of `poisson`; None: by `load`
    load: PositiveFloat | None = None  # GPU time offered over GPU time there is; None: by cluster
    jobs_per_minute: PositiveInt = 1000  # of `per-minute`: so many at each full minute

    cluster: Literal["small", "medium", "large"] = "small"
    machines: tuple[MachineGroup, ...] = ()  # instead of the cluster of that name
    gpu_types: tuple[GpuType, ...] = ()  # beyond those known, or in place of one

    backfill: bool = True  # False: a job that does not fit blocks those behind it
    interference: bool = True  # False: neighbours and the network slow nobody down
    stragglers: float = Field(default=0.1, ge=0)  # sigma of a job's luck on a machine; PAI's median
    preempt: bool = False  # True: agents may stop running jobs in favour of others
    replan_s: PositiveFloat = 60.0  # how often heuristics reconsider that do so by the clock
    restart_s: float = Field(default=60.0, ge=0)  # work that a preempted job loses, at speed 1

    reward: Literal["cost", "published"] = "cost"
    jct_weight: float = Field(default=1.0, ge=0)  # of the completion time in the reward: a factor
    fee_weight: float = Field(default=1.0, ge=0)  # and of the fee; in the published, exponents
    waiting_penalty: float = Field(default=0.01, ge=0)  # alpha: a GPU's worth of jobs left to wait
    durations: Literal["unknown", "known"] = "unknown"  # whether the agents see how long jobs run

    max_queue: PositiveInt = 64  # rows for jobs in the observation
    history: PositiveInt = 8  # tau: past decisions whose outcome the observation tells

    @model_validator(mode="after")
    def _one_rate(self) -> GpuSchedulingSettings:
        if self.interarrival_s is not None and self.load is not None:
            raise ValueError("interarrival_s and load both set the gap; expected only one of them")
        return self

    @property
    def machine_groups(self) -> tuple[MachineGroup, ...]:
        """The machines, be they the user's own or those of a named cluster."""
        return self.machines or CLUSTERS[self.cluster]

    @property
    def offered_load(self) -> float:
        return self.load or _LOAD["medium" if self.machines else self.cluster]

    @property
    def drawn_jobs(self) -> int:
        """How many jobs an episode has where the workload could go on for ever."""
        return self.jobs or _JOBS["medium" if self.machines else self.cluster]
