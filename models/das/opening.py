"""What the network knows before it learns: a straight path from what is told to what is done.

Least attained service first, jobs that run before others, then those that waited longest; gangs on
few machines, and full machines before empty ones. The layers beside it begin without an opinion.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.models.das.settings import DasSettings

# Columns of what a pair of a job and a machine is told beyond both.
HELD = 0  # share of the gang that the machine has room for
WHOLE_GANG = 1  # 1: all of it
RACK_HELD = 2  # the same of the machine's rack
RACK_WHOLE = 3
PAIR_FEATURES = 4

PRIORITY = {told.BEYOND: -5.0, told.WAITED: 1.0, told.RUNNING: 1.0}
AFFINITY_OF_PAIR = {WHOLE_GANG: 10.0, HELD: 3.0, RACK_WHOLE: 5.0}
AFFINITY_OF_MACHINE = {told.FREE_GPU: -1.0}


def pair_features(held: Tensor, rack_held: Tensor, rack: Tensor) -> Tensor:
    """(N, M, PAIR_FEATURES) of what machines (N, M) and racks (N, R) hold; `rack` is (N, M)."""
    around = rack_held.gather(1, rack)
    return torch.stack([held, (held >= 1).float(), around, (around >= 1).float()], dim=-1)


def straight_path(columns: int, opening: dict[int, float], settings: DasSettings) -> nn.Linear:
    """From features to one number, as it is before anything was learnt."""
    path = nn.Linear(columns, 1, bias=False)
    nn.init.zeros_(path.weight)
    if settings.opening == "least-attained":
        with torch.no_grad():
            for column, weight in opening.items():
                path.weight[0, column] = weight
    return path
