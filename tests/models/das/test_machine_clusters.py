"""Large clusters: the process over cells of like machines."""

from __future__ import annotations

import pytest
import torch

from loadmaster.models.das.random_walk_kernel import cluster_machines, similarity, topology
from tests.models.das.builders import (
    JOBS,
    affinities,
    covariance,
    dense_kernel,
    dense_posterior,
    leaves,
    process_inputs,
    process_of,
)

MACHINES = 24


def test_few_kinds_of_machines_are_exact() -> None:
    """Three kinds, observed or not, are six cells; two of the eight cells stay empty."""
    inputs, affinity = process_inputs(MACHINES, like=True), affinities(MACHINES)
    found = []
    for process in (process_of(), process_of(exact_up_to=4, cells=8)):
        tensors = leaves(inputs, process)
        made = process(*inputs)
        outputs = {
            "mean": made.mean,
            "covariance": covariance(made),
            "std": made.std,
            "log_prob": made.log_prob(affinity),
            "entropy": made.entropy(),
        }
        slopes = torch.autograd.grad(made.log_prob(affinity).sum() + made.mean.sum(), tensors)
        named = dict(enumerate(slopes))
        named[3] = named[3].sum(1)  # kinds of a cell only count by their mean
        found.append((outputs, named, made.cells))
    (exact, exact_slopes, none), (large, large_slopes, cells) = found
    assert none is None
    assert cells is not None
    assert ((cells.size > 0).sum(1) == 6).all()
    torch.testing.assert_close(large, exact, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(large_slopes, exact_slopes, rtol=1e-7, atol=1e-7)


def test_many_kinds_equal_dense_solution_of_coarser_kernel() -> None:
    """The kernel is that of the cells' means; nothing else is approximated."""
    inputs, affinity = process_inputs(MACHINES, seed=4, tau=9), affinities(MACHINES)
    assert (inputs.history.share > 0).all()
    process = process_of(exact_up_to=4, cells=7)
    with torch.no_grad():
        found = process(*inputs)
        assert found.cells is not None
        cells = found.cells
        tied = topology(inputs.rack, cells, process.settings.same_rack, process.settings.cross_rack)
        ties = tied * similarity(cells.mean(inputs.kinds.mT).mT, process.log_length.exp())
        share = cells.mean(inputs.history.share)
        coarse = inputs._replace(history=inputs.history._replace(share=cells.spread(share)))
        for job in range(JOBS):
            cell = cells.cell[job]
            whole = ties[job][cell][:, cell].fill_diagonal_(1.0)
            kernel = dense_kernel(whole, process.settings.walk)
            dense = dense_posterior(coarse, kernel, process, job)
            assert found.mean[job] == pytest.approx(dense.mean, rel=1e-8, abs=1e-8)
            assert covariance(found)[job] == pytest.approx(dense.covariance_matrix, abs=1e-8)
            assert found.std[job] == pytest.approx(dense.stddev, rel=1e-8)
            assert found.log_prob(affinity)[job].item() == pytest.approx(
                dense.log_prob(affinity[job]).item(), rel=1e-8
            )
            assert found.entropy()[job].item() == pytest.approx(dense.entropy().item(), rel=1e-8)


def test_unobserved_machine_gets_mean_of_its_cell() -> None:
    """All machines are alike, and half were observed at speed 2."""
    inputs, process = process_inputs(8, tau=4), process_of(exact_up_to=4, cells=1, gain=1.0)
    share = torch.tensor([1.0, 0] * 4, dtype=torch.float64).expand(JOBS, -1)
    history = inputs.history._replace(
        speed=torch.where(share.unsqueeze(1) > 0, 2.0, 0.0).expand(-1, 4, -1).double(),
        row=torch.ones(JOBS, 4, dtype=torch.float64),
        share=share,
        gap=torch.zeros(JOBS, 4, dtype=torch.float64),
    )
    nothing = torch.zeros_like(inputs.prior)
    with torch.no_grad():
        found = process(*inputs._replace(prior=nothing, usual=nothing, history=history))
    assert found.mean == pytest.approx(2, rel=0.01)
    assert found.mean == pytest.approx(found.mean[0, 0].item())


def test_cells_separate_racks_and_kinds() -> None:
    kinds = torch.tensor([0.0, 0, 9, 9, 0.1, 9.1]).double().reshape(1, 6, 1)
    rack = torch.tensor([[0, 0, 0, 0, 1, 1]])
    near, far = (cluster_machines(kinds, rack, apart, 4).cell[0].tolist() for apart in (0.001, 1.0))
    assert near[0] == near[1]
    assert near[2] == near[3]
    assert len({far[0], far[2], far[4], far[5]}) == 4
    assert far[0] == far[1]
    assert far[2] == far[3]
