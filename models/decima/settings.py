"""What a user may set about Decima's network."""

from __future__ import annotations

from pydantic import PositiveInt

from loadmaster.envs.settings import Settings


class DecimaSettings(Settings):
    """Its size, and the two parts an ablation takes away."""

    width: PositiveInt = 8  # numbers that describe a stage, a job or the cluster
    hidden: PositiveInt = 16  # of the layers in between
    graph: bool = True  # False: a stage knows itself, and its job's and the cluster's sums
    limits: bool = True  # False: a job may always hold every executor
