"""The ordering agent: dependencies and densities of its priorities."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from loadmaster.models.das.network import OF_JOBS
from loadmaster.models.das.ordering import BATCH, Priorities
from tests.models.das.builders import Batch, network_of, observations, one_of, with_machines

WAITING = [7, 3, 1, 0]


def priorities(variant: str, observation: Batch) -> Priorities:
    with torch.no_grad():
        found = network_of(variant).ordering(observation)
    assert isinstance(found, Priorities)
    return found


@pytest.mark.parametrize("variant", ["DA", "DAS"])
def test_padding_has_no_effect(variant: str) -> None:
    """Rows of a batch equal batches of one."""
    observation = observations(WAITING)
    together = priorities(variant, observation)
    assert torch.isfinite(together.mean).all()
    for number, jobs in enumerate(WAITING[:3]):
        alone = priorities(variant, one_of(observation, number, jobs))
        for many, one in ((together.mean, alone.mean), (together.log_std, alone.log_std)):
            torch.testing.assert_close(many[number, :jobs], one[0], rtol=1e-5, atol=1e-6)
        drawn = torch.randn(1, 7, generator=torch.Generator().manual_seed(number))
        many_likely = together.log_prob(drawn.expand(4, -1))[number]
        assert many_likely.item() == pytest.approx(alone.log_prob(drawn[:, :jobs]).item(), rel=1e-4)


@pytest.mark.parametrize("variant", ["DA", "DAS"])
def test_gaps_in_queue_have_no_effect(variant: str) -> None:
    """The position of a job is counted among jobs, not rows."""
    observation = observations([3])
    spread = dict(observation)
    rows = torch.tensor([0, 2, 5])
    for name in OF_JOBS:
        spread[name] = torch.zeros_like(observation[name])
        spread[name][:, rows] = observation[name][:, :3]
    near, far = (priorities(variant, one).mean for one in (observation, spread))
    torch.testing.assert_close(near[:, :3], far[:, rows], rtol=1e-5, atol=1e-6)


def test_order_of_machines_has_no_effect() -> None:
    observation = observations(WAITING)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    one = priorities("DAS", observation)
    other = priorities("DAS", with_machines(observation, order))
    torch.testing.assert_close(one.mean[one.mask], other.mean[one.mask], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("variant", "depends"), [("DA", False), ("DA+MC", True), ("DAS", True)])
def test_only_the_gate_depends_on_machines(variant: str, depends: bool) -> None:
    observation = observations([4])
    busy = dict(observation, machines=observation["machines"] + 1)
    one, other = (priorities(variant, batch).mean[0, :4] for batch in (observation, busy))
    assert torch.equal(one, other) != depends


def test_order_of_arrival_has_an_effect() -> None:
    observation = observations([4])
    order = torch.tensor([1, 0, 2, 3, 4, 5, 6])
    swapped = dict(observation, jobs=observation["jobs"][:, order])
    one, other = (priorities("DAS", batch).mean[0] for batch in (observation, swapped))
    assert (one[0] - other[1]).abs() > 1e-3


def test_densities_equal_independent_normals() -> None:
    found = priorities("DAS", observations(WAITING))
    drawn = found.sample(torch.randn(4, 7, generator=torch.Generator().manual_seed(2)))
    assert not drawn[~found.mask].any()
    normal = Normal(found.mean, found.log_std.exp())
    likely = torch.where(found.mask, normal.log_prob(drawn), 0).sum(1)
    torch.testing.assert_close(found.log_prob(drawn), likely)
    entropy = torch.where(found.mask, normal.entropy(), 0).sum(1)
    torch.testing.assert_close(found.entropy(), entropy)
    assert likely[3] == 0  # no job waits


def test_large_batches_split_by_length_equal_batches_of_one() -> None:
    waiting = [(5 * number) % 8 for number in range(3 * BATCH // 2)]
    observation = observations(waiting)
    together = priorities("DAS", observation)
    assert torch.isfinite(together.mean).all()
    for number in range(0, len(waiting), 11):
        jobs = waiting[number]
        alone = priorities("DAS", one_of(observation, number, max(1, jobs)))
        for many, one in ((together.mean, alone.mean), (together.log_std, alone.log_std)):
            torch.testing.assert_close(many[number, :jobs], one[0, :jobs], rtol=1e-5, atol=1e-6)
