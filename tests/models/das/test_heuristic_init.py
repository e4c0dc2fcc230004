"""Cost and pace of pairs of jobs and machines, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from loadmaster.envs.gpu_scheduling import features
from loadmaster.models.das.heuristic_init import COST, PACE, pair_features

# (dollars an hour, speed): a V100, one at half its speed and price, one with speed 0.
MACHINES = [(2.0, 1.0), (1.0, 0.5), (2.0, 0.0)]


def features_of(ran: float, user_run: float, gang: int = 4, gpus: float = 2.0) -> Tensor:
    """(3, PAIR_FEATURES) of one job on each of MACHINES; minutes."""
    job, machines = (
        torch.zeros(1, features.JOB_FEATURES),
        torch.zeros(1, 3, features.MACHINE_FEATURES),
    )
    job[0, features.INSTANCES], job[0, features.GPUS] = math.log(gang), math.log1p(gpus)
    job[0, features.RAN], job[0, features.USER_RUN] = math.log1p(ran), math.log1p(user_run)
    machines[0, :, [features.PRICE, features.SPEED]] = torch.tensor(MACHINES)
    nothing = torch.zeros(1, 3)
    return pair_features(job, machines, nothing, nothing, torch.arange(3).unsqueeze(0))[0]


def test_cost_of_a_second_of_work() -> None:
    """(1 + dollars / 2) / speed."""
    eight = features_of(ran=5, user_run=0)[:, COST]
    expected = [math.log(1 + 16 / 2), math.log((1 + 8 / 2) / 0.5), math.log((1 + 16 / 2) / 1e-3)]
    assert eight.tolist() == pytest.approx(expected)
    half = features_of(ran=5, user_run=0, gang=1, gpus=0.5)[:, COST]
    assert half[:2].tolist() == pytest.approx([math.log(1.5), math.log(1.25 / 0.5)])


def test_pace_favours_fast_machines_for_long_jobs() -> None:
    """log(speed) * (log(minutes) - 3)."""
    for ran, user_run, longest in ((99, 0, 99), (0, 999, 999), (40, 7, 40), (2, 1, 2)):
        pace = features_of(ran, user_run)[:, PACE]
        beyond = math.log(1 + longest) - 3
        expected = [0, math.log(0.5) * beyond, math.log(1e-3) * beyond]
        assert pace.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    long, short = features_of(999, 0)[:, PACE], features_of(2, 0)[:, PACE]
    assert long[1] < long[0]
    assert short[1] > short[0]
