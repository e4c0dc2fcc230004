"""The random-walk process against its dense form: values, gradients, positive definiteness."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.models.das.random_walk_kernel import walk_kernel
from tests.models.das.cases import JOBS, affinities, covariance, draw, leaves, process_of
from tests.models.das.dense import adjacency, posterior, random_walk_kernel

EXACT = 1e-8
INSIDE = st.floats(1e-6, 1 - 1e-6)


@pytest.mark.parametrize("like", [False, True], ids=["unlike", "like"])
@pytest.mark.parametrize("walk", [0.05, 0.7, 0.99])
def test_it_equals_the_dense_solution_with_gradients(walk: float, like: bool) -> None:
    case, process, affinity = draw(7, like=like), process_of(walk=walk), affinities(7)
    inputs = leaves(case, process)
    dense = []
    for job in range(JOBS):
        ties = adjacency(case.kinds[job], case.rack[job], process)
        dense.append(posterior(case, random_walk_kernel(ties, walk), process, job))
    found = process(*case)
    likely = [one.log_prob(affinity[job]) for job, one in enumerate(dense)]
    pairs = {
        "mean": (found.mean, torch.stack([one.mean for one in dense])),
        "log_prob": (found.log_prob(affinity), torch.stack(likely)),
        "entropy": (found.entropy(), torch.stack([one.entropy() for one in dense])),
    }
    for name, (fast, slow) in pairs.items():
        assert fast.detach() == pytest.approx(slow.detach(), rel=EXACT, abs=EXACT), name
        for given_one, left, right in zip(
            range(len(inputs)), gradients(fast, inputs), gradients(slow, inputs), strict=True
        ):
            worst = (left - right).abs().max() / right.abs().max().clamp(min=1)
            assert worst < EXACT, (name, given_one)
    exact = torch.stack([one.covariance_matrix.detach() for one in dense])
    assert covariance(found) == pytest.approx(exact, rel=EXACT, abs=EXACT)
    alone = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    assert found.std.detach() == pytest.approx(alone, rel=EXACT, abs=EXACT)


def gradients(of: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of an uneven sum, so that no two elements can stand in for each other."""
    weights = torch.linspace(-1, 2, of.numel(), dtype=torch.float64)
    total = (of.flatten() * weights).sum()
    found = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(one) if gradient is None else gradient
        for one, gradient in zip(inputs, found, strict=True)
    ]


@pytest.mark.parametrize("like", [False, True], ids=["unlike", "like"])
def test_gradients_are_those_of_finite_differences(like: bool) -> None:
    case, process, affinity = draw(4, seed=3, like=like, tau=3), process_of(), affinities(4)

    def evaluate(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = process(*inputs[:4], *case[4:])
        return found.mean, found.log_prob(affinity), found.entropy()

    assert torch.autograd.gradcheck(evaluate, leaves(case, process), atol=1e-6, rtol=1e-5)


def test_without_a_gradient_it_says_the_same() -> None:
    """Acting leaves out what only learning needs."""
    case, process, affinity = draw(6), process_of(), affinities(6)
    with torch.no_grad():
        acting = process(*case)
    assert acting.spectrum.tilt is None
    leaves(case, process)
    learning = process(*case)
    assert learning.spectrum.tilt is not None
    torch.testing.assert_close(acting.log_prob(affinity), learning.log_prob(affinity).detach())
    torch.testing.assert_close(acting.mean, learning.mean.detach())


@st.composite
def topologies(draw_one: st.DrawFn) -> Tensor:
    """(1, M, M): ties without any order among them; many are 0, so the graph may fall apart."""
    machines = draw_one(st.integers(1, 9))
    tie = st.one_of(st.just(0.0), st.floats(0, 1), st.just(1.0))
    drawn = [[draw_one(tie) for _ in range(machines)] for _ in range(machines)]
    upper = torch.tensor(drawn, dtype=torch.float64).triu()
    return (upper + upper.triu(1).T).unsqueeze(0)


@given(topologies(), INSIDE)
@settings(deadline=None, max_examples=150)
def test_every_topology_and_walk_has_a_positive_definite_kernel(ties: Tensor, walk: float) -> None:
    kernel = walk_kernel(ties, walk)
    dense = kernel.root @ kernel.root.mT
    assert dense.diagonal(dim1=1, dim2=2) == pytest.approx(1)
    values = torch.linalg.eigvalsh(dense)
    # (I - walk S)^-1 has its eigenvalues in [1/(1+walk), 1/(1-walk)], so scaled to a diagonal
    # of 1 the least is no smaller than their ratio.
    assert values.min() >= (1 - walk) / (1 + walk) * (1 - 1e-6)
    adjacent = ties[0].clone().fill_diagonal_(1.0)
    assert dense[0] == pytest.approx(random_walk_kernel(adjacent, walk), rel=1e-6, abs=1e-6)
    assert kernel.log_det.item() * 2 == pytest.approx(values.log().sum().item(), abs=1e-5)
    eye = torch.eye(len(adjacent), dtype=torch.float64)
    assert (kernel.inverse_root @ kernel.root)[0] == pytest.approx(eye, abs=1e-8)


@given(st.integers(0, 10_000), INSIDE, st.integers(1, 9), st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_the_posterior_is_positive_definite(
    seed: int, walk: float, machines: int, racks: int
) -> None:
    case, process = draw(machines, seed), process_of(walk=walk)
    luck = torch.Generator().manual_seed(seed)
    rack = torch.randint(racks, (JOBS, machines), generator=luck)
    with torch.no_grad():
        found = process(*case._replace(rack=rack))
    assert (found.variance > 0).all()
    assert (torch.linalg.eigvalsh(covariance(found)) > 0).all()
    assert torch.isfinite(found.log_prob(affinities(machines))).all()


def test_observed_speeds_reach_like_machines_and_fade() -> None:
    """Machines 0 and 1 are alike, 2 is not; machine 0 was seen to be fast."""
    process = process_of(same_rack=0.9, gain=1.0)
    case = draw(3, tau=1)
    kinds = torch.tensor([[0.0], [0.0], [5.0]], dtype=torch.float64).expand(JOBS, -1, -1)
    history = case.history._replace(
        speed=torch.full((JOBS, 1, 3), 2.0, dtype=torch.float64),
        row=torch.ones(JOBS, 1, dtype=torch.float64),
        share=torch.tensor([1.0, 0, 0], dtype=torch.float64).expand(JOBS, -1),
        gap=torch.tensor([[0.0], [600], [6000]], dtype=torch.float64),
    )
    nothing = torch.zeros_like(case.prior)
    case = case._replace(prior=nothing, usual=nothing, kinds=kinds, history=history)
    with torch.no_grad():
        found = process(*case._replace(rack=torch.zeros_like(case.rack)))
    seen, alike, other = found.mean[0]
    assert seen == pytest.approx(2 / 1.01)  # its prior variance 1 against the noise 0.01
    assert seen > alike > 0.5
    assert alike > 100 * other > 0
    assert found.mean[1] == pytest.approx(found.mean[0] / torch.e)
    assert found.mean[2].abs().max() < 1e-4
    width = covariance(found).diagonal(dim1=1, dim2=2) / (2 * case.log_amplitude).exp()[:, None]
    assert width[0, 0] == pytest.approx(0.01 / 1.01)
    assert width[0, 0] < width[0, 1] < width[0, 2]
    assert width[2] == pytest.approx(1, abs=1e-4)
