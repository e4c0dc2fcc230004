"""Linear skip paths from features to scores, initialised to a known heuristic.

Least attained service first, running jobs before others, then the longest waiting; gangs on few
machines, and full machines before empty ones. The layers beside the skip paths start with zero
weights in their heads. The normal distributions of both agents are here too.
"""

import math

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling import features
from loadmaster.models.das.settings import DasSettings

LOG_TAU = math.log(2 * math.pi)
INITIAL_LOG_STD = -1.0
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0

# Columns of `pair_features`.
HELD = 0  # share of the gang that fits on the machine
WHOLE_GANG = 1  # 1: all of it
RACK_HELD = 2  # share of the gang that fits in the machine's rack
RACK_WHOLE = 3
COST = 4  # log of what a second of work costs there, in time and in money
PACE = 5  # log of the GPU's speed times the job's log minutes beyond USUAL_LOG_MINUTES
PAIR_FEATURES = 6

DOLLARS_PER_HOUR = 2.0  # the worth of an hour of waiting beside the fee, as in the reward
MIN_SPEED = 1e-3
USUAL_LOG_MINUTES = 3.0  # 20 minutes

PRIORITY = {features.BEYOND: -5.0, features.WAITED: 1.0, features.RUNNING: 1.0}
AFFINITY_OF_PAIR = {WHOLE_GANG: 10.0, HELD: 3.0, RACK_WHOLE: 5.0, COST: -2.0}
AFFINITY_OF_MACHINE = {features.FREE_GPU: -1.0}


def bounded(log_std: Tensor) -> Tensor:
    return log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)


def log_density(value: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Elementwise log density of normal distributions."""
    standard = (value - mean) / log_std.exp()
    return -standard.square() / 2 - log_std - LOG_TAU / 2


def normal_entropy(log_std: Tensor) -> Tensor:
    return log_std + (1 + LOG_TAU) / 2


def pair_features(
    jobs: Tensor, machines: Tensor, held: Tensor, rack_held: Tensor, rack: Tensor
) -> Tensor:
    """(N, M, PAIR_FEATURES) of N jobs and the M machines.

    `jobs` (N, JF), `machines` (N, M, MF), the share of the gang that fits on machines (N, M) and
    in racks (N, R), and the machines' racks (N, M).
    """
    in_rack = rack_held.gather(1, rack)
    gpus = jobs[:, features.INSTANCES].exp() * jobs[:, features.GPUS].expm1()  # of the whole gang
    speed, price = machines[..., features.SPEED], machines[..., features.PRICE]
    pace = speed.clamp(min=MIN_SPEED).log()
    cost = torch.log1p(price * gpus.unsqueeze(1) / DOLLARS_PER_HOUR) - pace
    # The run time so far, or that of the user's finished jobs, whichever is longer.
    minutes = torch.maximum(jobs[:, features.RAN], jobs[:, features.USER_RUN]) - USUAL_LOG_MINUTES
    whole, rack_whole = (held >= 1).float(), (in_rack >= 1).float()
    columns = [held, whole, in_rack, rack_whole, cost, pace * minutes.unsqueeze(1)]
    return torch.stack(columns, dim=-1)


def heuristic_linear(inputs: int, weights: dict[int, float], settings: DasSettings) -> nn.Linear:
    """A linear map to one score, with these weights by column if the settings ask for them."""
    path = nn.Linear(inputs, 1, bias=False)
    nn.init.zeros_(path.weight)
    if settings.opening == "least-attained":
        with torch.no_grad():
            for column, weight in weights.items():
                path.weight[0, column] = weight
    return path
