"""Large clusters: cells of like machines instead of machines."""

from __future__ import annotations

import pytest
import torch

from loadmaster.models.das.random_walk_kernel import gather_cells, similarity, topology
from tests.models.das.cases import JOBS, affinities, covariance, draw, leaves, process_of
from tests.models.das.dense import posterior, random_walk_kernel

MACHINES = 24


def test_few_kinds_of_machines_are_solved_exactly() -> None:
    """Three kinds, told or not told of: six cells. Two of the eight cells stay empty."""
    case, affinity = draw(MACHINES, like=True), affinities(MACHINES)
    found = []
    for process in (process_of(), process_of(exact_up_to=4, cells=8)):
        inputs = leaves(case, process)
        made = process(*case)
        outputs = {
            "mean": made.mean,
            "covariance": covariance(made),
            "std": made.std,
            "log_prob": made.log_prob(affinity),
            "entropy": made.entropy(),
        }
        slopes = torch.autograd.grad(made.log_prob(affinity).sum() + made.mean.sum(), inputs)
        named = dict(enumerate(slopes))
        named[3] = named[3].sum(1)  # of the kinds: a cell moves as one, so the sums agree
        found.append((outputs, named, made.cells))
    (exact, exact_slopes, none), (large, large_slopes, cells) = found
    assert none is None
    assert cells is not None
    assert ((cells.size > 0).sum(1) == 6).all()
    torch.testing.assert_close(large, exact, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(large_slopes, exact_slopes, rtol=1e-7, atol=1e-7)


def test_many_kinds_are_an_exact_normal_of_a_coarser_kernel() -> None:
    """The kernel is that of the cells' means; all else is as exact as on a small cluster."""
    case, affinity = draw(MACHINES, seed=4, tau=9), affinities(MACHINES)
    assert (case.history.share > 0).all()
    process = process_of(exact_up_to=4, cells=7)
    with torch.no_grad():
        found = process(*case)
        assert found.cells is not None
        cells = found.cells
        tied = topology(case.rack, cells, process.settings.same_rack, process.settings.cross_rack)
        ties = tied * similarity(cells.mean(case.kinds.mT).mT, process.log_length.exp())
        share = cells.mean(case.history.share)
        coarse = case._replace(history=case.history._replace(share=cells.spread(share)))
        for job in range(JOBS):
            cell = cells.cell[job]
            whole = ties[job][cell][:, cell].fill_diagonal_(1.0)
            kernel = random_walk_kernel(whole, process.settings.walk)
            dense = posterior(coarse, kernel, process, job)
            assert found.mean[job] == pytest.approx(dense.mean, rel=1e-8, abs=1e-8)
            assert covariance(found)[job] == pytest.approx(dense.covariance_matrix, abs=1e-8)
            assert found.std[job] == pytest.approx(dense.stddev, rel=1e-8)
            assert found.log_prob(affinity)[job].item() == pytest.approx(
                dense.log_prob(affinity[job]).item(), rel=1e-8
            )
            assert found.entropy()[job].item() == pytest.approx(dense.entropy().item(), rel=1e-8)


def test_a_machine_never_seen_is_told_its_cell() -> None:
    """All machines are alike, half were seen at speed 2: the others are expected to be so too."""
    case, process = draw(8, tau=4), process_of(exact_up_to=4, cells=1, gain=1.0)
    share = torch.tensor([1.0, 0] * 4, dtype=torch.float64).expand(JOBS, -1)
    history = case.history._replace(
        speed=torch.where(share.unsqueeze(1) > 0, 2.0, 0.0).expand(-1, 4, -1).double(),
        row=torch.ones(JOBS, 4, dtype=torch.float64),
        share=share,
        gap=torch.zeros(JOBS, 4, dtype=torch.float64),
    )
    nothing = torch.zeros_like(case.prior)
    with torch.no_grad():
        found = process(*case._replace(prior=nothing, usual=nothing, history=history))
    assert found.mean == pytest.approx(2, rel=0.01)
    assert found.mean == pytest.approx(found.mean[0, 0].item())


def test_cells_part_racks_and_kinds() -> None:
    kinds = torch.tensor([0.0, 0, 9, 9, 0.1, 9.1]).double().reshape(1, 6, 1)
    rack = torch.tensor([[0, 0, 0, 0, 1, 1]])
    near, far = (gather_cells(kinds, rack, apart, 4).cell[0].tolist() for apart in (0.001, 1.0))
    assert near[0] == near[1]
    assert near[2] == near[3]
    assert len({far[0], far[2], far[4], far[5]}) == 4
    assert far[0] == far[1]
    assert far[2] == far[3]
