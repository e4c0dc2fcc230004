"""Settings of SURE's network: sizes, what it reads of the graph, and weights of its objective.

Imports neither torch nor numba.
"""

from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from loadmaster.envs.settings import Settings

Sampler = Literal["learned", "random", "full", "temporal", "spatial", "none"]
Encoder = Literal["gin", "attention", "recurrent"]


class SureSettings(Settings):
    """Sizes of the network, and its rivals and ablations as options.

    `sampler` is the part of the history that a task's embedding is made of:
      learned   snapshots, and neighbours in each, drawn by learned scores (SURE)
      random    as many, drawn with equal probabilities
      temporal  drawn snapshots of the task itself, no neighbours
      spatial   drawn neighbours in the newest snapshot
      full      all tasks in all snapshots, encoded once for the job
      none      the task's own newest snapshots, no graph (as TVW-RL and DREAM)
    """

    sampler: Sampler = "learned"
    # Of the full graph: also spatio-temporal attention (as ASTGCN), or recurrent graph convolution
    # (as CCRNN).
    encoder: Encoder = "gin"
    actions: Literal["task", "job"] = "task"  # job: one change for all tasks of the job

    width: PositiveInt = 50
    layers: PositiveInt = 3
    snapshots: PositiveInt = 10  # k1, drawn for each task
    neighbours: NonNegativeInt = 3  # k2, drawn in each of these
    hops: PositiveInt = 3  # upstream or downstream: how far away a neighbour may be
    temperature: PositiveFloat = 1.0  # of the draws: scores are divided by it
    log_std: float = Field(default=-2.0, ge=-5, le=2)  # initial value, of the changes

    prior_variance: PositiveFloat = 0.995  # s0
    kl_weight: NonNegativeFloat = 1e-7
    gaussian_weight: NonNegativeFloat = 1e-2
    mutual_information_weight: NonNegativeFloat = 1e-5  # 0: no such term
    mutual_information_share: float = Field(default=0.25, gt=0, le=1)  # of a batch's decisions

    @model_validator(mode="after")
    def _must_fit(self) -> Self:
        if self.encoder != "gin" and self.sampler != "full":
            raise ValueError(
                f"encoder={self.encoder} reads the whole graph; expected sampler=full, "
                f"not {self.sampler}"
            )
        return self

    @property
    def draws(self) -> bool:
        """Whether a task's embedding is that of a drawn subgraph."""
        return self.sampler in ("learned", "random", "temporal", "spatial")

    @property
    def scored(self) -> bool:
        """Whether learned scores decide what is drawn."""
        return self.draws and self.sampler != "random"

    @property
    def drawn_snapshots(self) -> int:
        """k1"""
        return 1 if self.sampler == "spatial" else self.snapshots

    @property
    def drawn_neighbours(self) -> int:
        """k2"""
        return 0 if self.sampler == "temporal" else self.neighbours
