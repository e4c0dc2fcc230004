"""What the network knows before it learns: a straight path from what is told to what is done.

Least attained service first, jobs that run before others, then those that waited longest; gangs on
few machines, and full machines before empty ones. The layers beside it begin without an opinion.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.models.das.settings import DasSettings

# Normal distributions of one number.


LOG_TAU = math.log(2 * math.pi)
FIRST_LOG_STD = -1.0  # before anything was learnt
LEAST_LOG_STD, MOST_LOG_STD = -5.0, 2.0  # neither a fixed choice nor mere noise


def bounded(log_std: Tensor) -> Tensor:
    return log_std.clamp(LEAST_LOG_STD, MOST_LOG_STD)


def log_density(value: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Each by itself, of the same shape."""
    standard = (value - mean) / log_std.exp()
    return -standard.square() / 2 - log_std - LOG_TAU / 2


def entropy_of(log_std: Tensor) -> Tensor:
    """Each by itself, of the same shape."""
    return log_std + (1 + LOG_TAU) / 2


# Columns of what a pair of a job and a machine is told beyond both.
HELD = 0  # share of the gang that the machine has room for
WHOLE_GANG = 1  # 1: all of it
RACK_HELD = 2  # the same of the machine's rack
RACK_WHOLE = 3
COST = 4  # log of what a second of work costs there, in time and in money
PACE = 5  # log of the GPU's speed, for a job that will run long: times its log minutes less USUAL
PAIR_FEATURES = 6

HOUR_IN_DOLLARS = 2.0  # what an hour of waiting is worth beside the fee, about the reward's rate
LEAST_SPEED = 1e-3
USUAL = 3.0  # log minutes: 20 of them

PRIORITY = {told.BEYOND: -5.0, told.WAITED: 1.0, told.RUNNING: 1.0}
AFFINITY_OF_PAIR = {WHOLE_GANG: 10.0, HELD: 3.0, RACK_WHOLE: 5.0, COST: -2.0}
AFFINITY_OF_MACHINE = {told.FREE_GPU: -1.0}


def pair_features(
    jobs: Tensor, machines: Tensor, held: Tensor, rack_held: Tensor, rack: Tensor
) -> Tensor:
    """(N, M, PAIR_FEATURES) of jobs (N, JF), the machines before each (N, M, MF), what those (N, M)
    and what racks (N, R) hold of the gang, and the machines' racks (N, M)."""
    around = rack_held.gather(1, rack)
    gpus = jobs[:, told.INSTANCES].exp() * jobs[:, told.GPUS].expm1()  # of the whole gang
    speed, price = machines[..., told.SPEED], machines[..., told.PRICE]
    pace = speed.clamp(min=LEAST_SPEED).log()
    cost = torch.log1p(price * gpus.unsqueeze(1) / HOUR_IN_DOLLARS) - pace
    # A job has run so long, or its user's jobs do: whichever is more.
    long = torch.maximum(jobs[:, told.RAN], jobs[:, told.USER_RUN]) - USUAL
    whole = (held >= 1).float(), (around >= 1).float()
    return torch.stack([held, whole[0], around, whole[1], cost, pace * long.unsqueeze(1)], dim=-1)


def straight_path(columns: int, opening: dict[int, float], settings: DasSettings) -> nn.Linear:
    """From features to one number, as it is before anything was learnt."""
    path = nn.Linear(columns, 1, bias=False)
    nn.init.zeros_(path.weight)
    if settings.opening == "least-attained":
        with torch.no_grad():
            for column, weight in opening.items():
                path.weight[0, column] = weight
    return path
