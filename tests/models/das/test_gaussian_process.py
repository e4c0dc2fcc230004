"""The random-walk process against its dense form: exact, over cells, and the observed history."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.models.das import random_walk_kernel as kernels
from loadmaster.models.das.gaussian_process import History, read_history
from tests.models.das.builders import (
    JOBS,
    ProcessInputs,
    affinities,
    covariance,
    dense_kernel,
    dense_posterior,
    kernel_of_job,
    leaves,
    process_inputs,
    process_of,
)

pytestmark = pytest.mark.slow

EXACT = 1e-8
assert_close = partial(torch.testing.assert_close, rtol=EXACT, atol=EXACT)
INSIDE = st.floats(1e-6, 1 - 1e-6)


@pytest.mark.parametrize("like", [False, True], ids=["unlike", "like"])
@pytest.mark.parametrize("walk", [0.05, 0.7, 0.99])
def test_process_equals_dense_solution_with_gradients(walk: float, like: bool) -> None:
    inputs, process, affinity = process_inputs(7, like=like), process_of(walk=walk), affinities(7)
    tensors = leaves(inputs, process)
    dense = [
        dense_posterior(inputs, kernel_of_job(inputs, process, job), process, job)
        for job in range(JOBS)
    ]
    found = process(*inputs)
    likely = [one.log_prob(affinity[job]) for job, one in enumerate(dense)]
    for name, fast, slow in (
        ("mean", found.mean, [one.mean for one in dense]),
        ("log_prob", found.log_prob(affinity), likely),
        ("entropy", found.entropy(), [one.entropy() for one in dense]),
    ):
        exact = torch.stack(slow)
        assert_close(fast, exact)
        for left, right in zip(gradients(fast, tensors), gradients(exact, tensors), strict=True):
            worst = (left - right).abs().max() / right.abs().max().clamp(min=1)
            assert worst < EXACT, name
    assert_close(covariance(found), torch.stack([one.covariance_matrix for one in dense]))
    assert_close(found.std, torch.stack([one.stddev for one in dense]))


def gradients(of: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum with distinct weights, so that swapped elements are noticed."""
    weights = torch.linspace(-1, 2, of.numel(), dtype=torch.float64)
    total = (of.flatten() * weights).sum()
    return torch.autograd.grad(total, tensors, retain_graph=True, materialize_grads=True)


@st.composite
def topologies(draw_one: st.DrawFn) -> Tensor:
    """(1, M, M): arbitrary ties; many are 0, so the graph may be disconnected."""
    machines = draw_one(st.integers(1, 9))
    tie = st.one_of(st.just(0.0), st.floats(0, 1), st.just(1.0))
    drawn = [[draw_one(tie) for _ in range(machines)] for _ in range(machines)]
    upper = torch.tensor(drawn, dtype=torch.float64).triu()
    return (upper + upper.triu(1).T).unsqueeze(0)


@given(topologies(), INSIDE)
@settings(deadline=None, max_examples=60)
def test_kernel_is_positive_definite_for_any_topology(ties: Tensor, walk: float) -> None:
    kernel = kernels.random_walk_kernel(ties, walk)
    dense = kernel.root @ kernel.root.mT
    assert dense.diagonal(dim1=1, dim2=2) == pytest.approx(1)
    values = torch.linalg.eigvalsh(dense)
    # (I - walk S)^-1 has its eigenvalues in [1/(1+walk), 1/(1-walk)], so scaled to a diagonal
    # of 1 the least is no smaller than their ratio.
    assert values.min() >= (1 - walk) / (1 + walk) * (1 - 1e-6)
    adjacent = ties[0].clone().fill_diagonal_(1.0)
    assert dense[0] == pytest.approx(dense_kernel(adjacent, walk), rel=1e-6, abs=1e-6)
    assert kernel.log_det.item() * 2 == pytest.approx(values.log().sum().item(), abs=1e-5)
    eye = torch.eye(len(adjacent), dtype=torch.float64)
    assert (kernel.inverse_root @ kernel.root)[0] == pytest.approx(eye, abs=1e-8)


@given(st.integers(0, 10_000), INSIDE, st.integers(1, 9), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_posterior_is_positive_definite(seed: int, walk: float, machines: int, racks: int) -> None:
    inputs, process = process_inputs(machines, seed), process_of(walk=walk)
    generator = torch.Generator().manual_seed(seed)
    rack = torch.randint(racks, (JOBS, machines), generator=generator)
    with torch.no_grad():
        found = process(*inputs._replace(rack=rack))
    assert (found.variance > 0).all()
    assert (torch.linalg.eigvalsh(covariance(found)) > 0).all()
    assert torch.isfinite(found.log_prob(affinities(machines))).all()


def observed_at_speed_2(inputs: ProcessInputs, share: list[int], gap: Tensor) -> ProcessInputs:
    """Without a prior; the machines with a share of 1 were observed `gap` (N, T) seconds apart."""
    nothing, shares = torch.zeros_like(inputs.prior), torch.tensor(share).double().expand(JOBS, -1)
    speed = 2 * shares.unsqueeze(1).expand(-1, gap.shape[1], -1)
    history = History(speed=speed, row=torch.ones_like(gap), share=shares, gap=gap)
    return inputs._replace(prior=nothing, usual=nothing, history=history)


def test_observed_speeds_spread_to_like_machines_and_fade() -> None:
    """Machines 0 and 1 are alike, 2 is not; machine 0 was observed to be fast."""
    gap = torch.tensor([[0.0], [600], [6000]]).double()
    inputs = observed_at_speed_2(process_inputs(3, tau=1), [1, 0, 0], gap)
    kinds = torch.tensor([[0.0], [0], [5]]).double().expand(JOBS, -1, -1)
    process, rack = process_of(same_rack=0.9, gain=1.0), torch.zeros_like(inputs.rack)
    with torch.no_grad():
        found = process(*inputs._replace(kinds=kinds, rack=rack))
    seen, alike, other = found.mean[0]
    assert seen == pytest.approx(2 / 1.01)  # its prior variance 1 against the noise 0.01
    assert seen > alike > 0.5
    assert alike > 100 * other > 0
    assert found.mean[1] == pytest.approx(found.mean[0] / torch.e)
    assert found.mean[2].abs().max() < 1e-4
    width = covariance(found).diagonal(dim1=1, dim2=2) / (2 * inputs.log_amplitude).exp()[:, None]
    assert width[0, 0] == pytest.approx(0.01 / 1.01)
    assert width[0, 0] < width[0, 1] < width[0, 2]
    assert width[2] == pytest.approx(1, abs=1e-4)


def test_history_is_sorted_by_age() -> None:
    """The three youngest of five decisions with an observation, oldest first."""
    speed = torch.arange(10.0).reshape(1, 5, 2)
    observed = torch.tensor([[[1, 1], [1, 0], [0, 0], [1, 0], [1, 1]]]).bool()
    age = torch.tensor([[5.0, 90, 1, 20, 60]])
    found = read_history(speed, observed, age, tau=3)
    assert found.gap.tolist() == [[40, 15, 5]]
    assert found.row.tolist() == [[1, 1, 1]]
    assert found.share[0].tolist() == pytest.approx([1, 2 / 3])
    assert found.speed[0, :, 0].tolist() == [8, 6, 0]
    assert found.speed[0, :, 1].tolist() == [9, 5, 1]  # the mean of 9 and 1 in the gap


def test_decisions_without_observations_have_no_effect() -> None:
    inputs, process = process_inputs(5), process_of()
    speed, age = torch.rand(JOBS, 5, 5), torch.rand(JOBS, 5) * 100
    observed = torch.ones(JOBS, 5, 5).bool()
    observed[:, :2], speed[:, :2], age[:, :2] = False, 9.0, torch.tensor([0.0, 5000])
    with torch.no_grad():
        near, far, none = (
            process(*inputs._replace(history=read_history(*history, 8)))
            for history in (
                (speed[:, 2:], observed[:, 2:], age[:, 2:]),
                (speed, observed, age),
                (speed, torch.zeros_like(observed), torch.full_like(age, torch.nan)),
            )
        )
    torch.testing.assert_close(near.mean, far.mean)
    torch.testing.assert_close(near.entropy(), far.entropy())
    assert torch.equal(none.mean, inputs.prior)
    assert none.variance == pytest.approx(1)


def test_filled_gaps_equal_posterior_of_observed_entries() -> None:
    """Where speeds last, filled gaps give the dense_posterior of the observed entries alone."""
    inputs, process = process_inputs(6, seed=2, tau=4), process_of(memory_s=1e7)
    generator = torch.Generator().manual_seed(0)
    speed = torch.rand(JOBS, 4, 6, generator=generator, dtype=torch.float64)
    observed = torch.rand(JOBS, 4, 6, generator=generator) < 0.5
    history = read_history(speed, observed, torch.tensor([30.0, 20, 10, 0]).expand(JOBS, -1), 4)
    with torch.no_grad():
        found = process(*inputs._replace(history=history))
        for job in range(JOBS):
            seen = observed[job].flatten()
            kernel = kernel_of_job(inputs, process, job).contiguous()
            of_all = torch.kron(torch.ones(4, 4, dtype=torch.float64), kernel)
            among = of_all[seen][:, seen] + process.settings.noise * torch.eye(int(seen.sum()))
            cross = of_all[:6][:, seen]
            residual = (speed[job] - inputs.usual[job]).flatten()[seen]
            update = cross @ torch.linalg.solve(among, residual)
            mean = inputs.prior[job] + process.settings.gain * update
            assert found.mean[job] == pytest.approx(mean, abs=0.01)


MACHINES = 24


def test_few_kinds_of_machines_are_exact() -> None:
    """Three kinds, observed or not, are six cells; two of the eight cells stay empty."""
    inputs, affinity = process_inputs(MACHINES, like=True), affinities(MACHINES)
    found = []
    for process in (process_of(), process_of(exact_up_to=4, cells=8)):
        tensors = leaves(inputs, process)
        made = process(*inputs)
        log_prob = made.log_prob(affinity)
        outputs = (made.mean, covariance(made), made.std, log_prob, made.entropy())
        slopes = list(torch.autograd.grad(log_prob.sum() + made.mean.sum(), tensors))
        slopes[3] = slopes[3].sum(1)  # kinds of a cell only count by their mean
        found.append((outputs, slopes, made.cells))
    (exact, exact_slopes, none), (large, large_slopes, cells) = found
    assert none is None
    assert ((cells.size > 0).sum(1) == 6).all()
    assert_close(large, exact)
    torch.testing.assert_close(large_slopes, exact_slopes, rtol=1e-7, atol=1e-7)


def test_many_kinds_equal_dense_solution_of_coarser_kernel() -> None:
    """The kernel is that of the cells' means; nothing else is approximated."""
    inputs, affinity = process_inputs(MACHINES, seed=4, tau=9), affinities(MACHINES)
    assert (inputs.history.share > 0).all()
    process = process_of(exact_up_to=4, cells=7)
    with torch.no_grad():
        found = process(*inputs)
        cells, own = found.cells, process.settings
        tied = kernels.topology(inputs.rack, cells, own.same_rack, own.cross_rack)
        ties = tied * kernels.similarity(cells.mean(inputs.kinds.mT).mT, process.log_length.exp())
        share = cells.mean(inputs.history.share)
        coarse = inputs._replace(history=inputs.history._replace(share=cells.spread(share)))
        for job in range(JOBS):
            cell = cells.cell[job]
            whole = ties[job][cell][:, cell].fill_diagonal_(1.0)
            kernel = dense_kernel(whole, process.settings.walk)
            dense = dense_posterior(coarse, kernel, process, job)
            assert_close(found.mean[job], dense.mean)
            assert_close(covariance(found)[job], dense.covariance_matrix)
            assert_close(found.std[job], dense.stddev)
            assert_close(found.log_prob(affinity)[job], dense.log_prob(affinity[job]))
            assert_close(found.entropy()[job], dense.entropy())


def test_unobserved_machine_gets_mean_of_its_cell() -> None:
    """All machines are alike, and half were observed at speed 2."""
    process, gap = process_of(exact_up_to=4, cells=1, gain=1.0), torch.zeros(JOBS, 4).double()
    with torch.no_grad():
        found = process(*observed_at_speed_2(process_inputs(8, tau=4), [1, 0] * 4, gap))
    assert found.mean == pytest.approx(2, rel=0.01)
    assert found.mean == pytest.approx(found.mean[0, 0].item())


def test_cells_separate_racks_and_kinds() -> None:
    kinds = torch.tensor([0.0, 0, 9, 9, 0.1, 9.1]).double().reshape(1, 6, 1)
    rack = torch.tensor([[0, 0, 0, 0, 1, 1]])
    near, far = (
        kernels.cluster_machines(kinds, rack, apart, 4).cell[0].tolist() for apart in (0.001, 1)
    )
    assert (near[0], near[2]) == (near[1], near[3])
    assert (far[0], far[2]) == (far[1], far[3])
    assert len({far[0], far[2], far[4], far[5]}) == 4
