"""What the process is told of the past, and what it is not."""

from __future__ import annotations

import pytest
import torch

from loadmaster.models.das.gaussian_process import read_history
from tests.models.das.cases import JOBS, draw, process_of
from tests.models.das.dense import adjacency, random_walk_kernel


def test_it_is_read_by_age() -> None:
    """Of five decisions the three youngest that saw something, oldest first."""
    speed = torch.arange(10.0).reshape(1, 5, 2)
    observed = torch.tensor([[[1, 1], [1, 0], [0, 0], [1, 0], [1, 1]]]).bool()
    age = torch.tensor([[5.0, 90, 1, 20, 60]])
    found = read_history(speed, observed, age, tau=3)
    assert found.gap.tolist() == [[40, 15, 5]]
    assert found.row.tolist() == [[1, 1, 1]]
    assert found.share[0].tolist() == pytest.approx([1, 2 / 3])
    assert found.speed[0, :, 0].tolist() == [8, 6, 0]
    assert found.speed[0, :, 1].tolist() == [9, 5, 1]  # the mean of 9 and 1 in the gap


def test_nothing_observed_is_nothing_told() -> None:
    case, process = draw(5), process_of()
    nothing = torch.zeros(JOBS, 4, 5).bool()
    empty = read_history(torch.rand(JOBS, 4, 5), nothing, torch.full((JOBS, 4), torch.nan), 4)
    with torch.no_grad():
        found = process(*case._replace(history=empty))
    assert torch.equal(found.mean, case.prior)
    assert found.variance == pytest.approx(1)


def test_rows_without_observations_change_nothing() -> None:
    speed, age = torch.rand(JOBS, 3, 5), torch.rand(JOBS, 3) * 100
    observed = torch.ones(JOBS, 3, 5).bool()
    wide_speed = torch.cat([torch.full((JOBS, 2, 5), 9.0), speed], dim=1)
    wide_seen = torch.cat([torch.zeros(JOBS, 2, 5).bool(), observed], dim=1)
    wide_age = torch.cat([torch.tensor([[0.0, 5000.0]]).expand(JOBS, -1), age], dim=1)
    case, process = draw(5), process_of()
    with torch.no_grad():
        near = process(*case._replace(history=read_history(speed, observed, age, 8)))
        wide = read_history(wide_speed, wide_seen, wide_age, 8)
        far = process(*case._replace(history=wide))
    torch.testing.assert_close(near.mean, far.mean)
    torch.testing.assert_close(near.entropy(), far.entropy())


def test_gaps_weigh_as_the_observations_that_are_there() -> None:
    """Where speeds last, filled gaps give the posterior of the observed entries alone."""
    case, process = draw(6, seed=2, tau=4), process_of(memory_s=1e7)
    luck = torch.Generator().manual_seed(0)
    speed = torch.rand(JOBS, 4, 6, generator=luck, dtype=torch.float64)
    observed = torch.rand(JOBS, 4, 6, generator=luck) < 0.5
    history = read_history(speed, observed, torch.tensor([30.0, 20, 10, 0]).expand(JOBS, -1), 4)
    with torch.no_grad():
        found = process(*case._replace(history=history))
        for job in range(JOBS):
            seen = observed[job].flatten()
            ties = adjacency(case.kinds[job], case.rack[job], process)
            kernel = random_walk_kernel(ties, process.settings.walk).contiguous()
            of_all = torch.kron(torch.ones(4, 4, dtype=torch.float64), kernel)
            told = of_all[seen][:, seen] + process.settings.noise * torch.eye(int(seen.sum()))
            cross = of_all[:6][:, seen]
            surprise = (speed[job] - case.usual[job]).flatten()[seen]
            learnt = cross @ torch.linalg.solve(told, surprise)
            mean = case.prior[job] + process.settings.gain * learnt
            assert found.mean[job] == pytest.approx(mean, abs=0.01)
