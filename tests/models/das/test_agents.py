"""Both agents: dependencies and densities of priorities and affinities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from loadmaster.models.das.network import OF_JOBS, ActionDistribution, Actions
from loadmaster.models.das.ordering import BATCH
from tests.models.das.builders import (
    Batch,
    covariance,
    network_of,
    observations,
    one_of,
    usable,
    with_machines,
)

VARIANTS = ["DA", "DAS"]  # without and with gate and process
WAITING = [7, 3, 1, 0]


def distribution(variant: str, observation: Batch) -> ActionDistribution:
    with torch.no_grad():
        found = network_of(variant)(observation)
    assert isinstance(found, ActionDistribution)
    return found


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sample(found: ActionDistribution) -> Actions:
    shape = found.placements.fits.shape
    return found.sample(Actions(normal(*shape[:2]), normal(*shape)))


def assert_row_equals(many: ActionDistribution, row: int, one: ActionDistribution) -> None:
    """Row of a batch against a batch of one."""
    jobs = one.priorities.mean.shape[1]
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(many.mean().priority[row, :jobs], one.mean().priority[0], **close)
    torch.testing.assert_close(many.mean().affinity[row, :jobs], one.mean().affinity[0], **close)
    actions = sample(many)
    own = Actions(*(table[row : row + 1, :jobs] for table in actions))
    torch.testing.assert_close(many.log_prob(actions)[row], one.log_prob(own)[0], **close)
    torch.testing.assert_close(many.entropy()[row], one.entropy()[0], **close)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_and_other_rows_have_no_effect(variant: str) -> None:
    observation = observations(WAITING)
    together = distribution(variant, observation)
    assert torch.isfinite(together.priorities.mean).all()
    for number, jobs in enumerate(WAITING[:3]):
        alone = distribution(variant, one_of(observation, number, jobs))
        assert_row_equals(together, number, alone)


def test_large_batches_split_by_length_equal_batches_of_one() -> None:
    waiting = [(5 * number) % 8 for number in range(3 * BATCH // 2)]
    observation = observations(waiting)
    together = distribution("DAS", observation)
    for number in range(0, len(waiting), 11):
        alone = distribution("DAS", one_of(observation, number, max(1, waiting[number])))
        assert_row_equals(together, number, alone)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gaps_in_queue_have_no_effect(variant: str) -> None:
    """The position of a job is counted among jobs, not rows."""
    observation, rows = observations([3]), torch.tensor([0, 2, 5])
    spread = dict(observation)
    for name in OF_JOBS:
        spread[name] = torch.zeros_like(observation[name])
        spread[name][:, rows] = observation[name][:, :3]
    near, far = (distribution(variant, one).priorities.mean for one in (observation, spread))
    torch.testing.assert_close(near[:, :3], far[:, rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_order_of_machines_has_no_effect(variant: str) -> None:
    observation, order = observations(WAITING), torch.tensor([4, 2, 0, 5, 1, 3])
    one = distribution(variant, observation)
    other = distribution(variant, with_machines(observation, order))
    actions = sample(one)
    reordered = actions._replace(affinity=actions.affinity[..., order])
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(one.mean().priority, other.mean().priority, **close)
    torch.testing.assert_close(one.mean().affinity[..., order], other.mean().affinity, **close)
    torch.testing.assert_close(one.log_prob(actions), other.log_prob(reordered), **close)


def test_order_of_arrival_has_an_effect() -> None:
    observation, order = observations([4]), torch.tensor([1, 0, 2, 3, 4, 5, 6])
    swapped = dict(observation, jobs=observation["jobs"][:, order])
    one, other = (distribution("DAS", each).mean().priority[0] for each in (observation, swapped))
    assert (one[0] - other[1]).abs() > 1e-3


@pytest.mark.parametrize(
    ("variant", "table", "action", "depends"),
    [
        ("DA", "machines", "priority", False),
        ("DA+MC", "machines", "priority", True),  # by the gate
        ("DA", "history_y", "affinity", False),
        ("DAS", "history_y", "affinity", True),  # by the process
    ],
)
def test_actions_depend_on_machines_and_history_by_their_parts(
    variant: str, table: str, action: str, depends: bool
) -> None:
    observation = observations([4])
    changed = {**observation, table: observation[table] + 1}
    means = (distribution(variant, each).mean() for each in (observation, changed))
    one, other = (getattr(mean, action) for mean in means)
    assert torch.equal(one, other) != depends


def test_densities_equal_independent_normals() -> None:
    found, independent = distribution("DA", observations(WAITING))
    drawn = found.sample(normal(4, 7, seed=2))
    assert not drawn[~found.mask].any()
    expected = Normal(found.mean, found.log_std.exp())
    likely = torch.where(found.mask, expected.log_prob(drawn), 0).sum(1)
    torch.testing.assert_close(found.log_prob(drawn), likely)
    entropy = torch.where(found.mask, expected.entropy(), 0).sum(1)
    torch.testing.assert_close(found.entropy(), entropy)
    assert likely[3] == 0  # no job waits
    own = independent.affinities
    drawn, expected = own.sample(normal(*own.mean.shape)), Normal(own.mean, own.std)
    torch.testing.assert_close(own.log_prob(drawn), expected.log_prob(drawn).sum(-1))
    torch.testing.assert_close(own.entropy(), expected.entropy().sum(-1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_jobs_that_fit_have_affinities(variant: str) -> None:
    observation = observations(WAITING)
    observation["held"][0, 2] = 0  # fits nowhere
    observation["held"][1] = 0  # full cluster
    found = distribution(variant, observation).placements
    drawn = found.sample(normal(4, 7, 6))
    able = usable(observation).any(-1)
    assert not able[0, 2]
    assert (drawn.abs().sum(-1) > 0).equal(able)
    assert found.log_prob(drawn)[[1, 3]].tolist() == [0, 0]
    assert found.entropy()[[1, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_density_includes_machines_where_a_job_does_not_fit(variant: str) -> None:
    found = distribution(variant, observations([5])).placements
    drawn = found.sample(normal(1, 7, 6))
    owner, row = found.owner[0], found.row[0]
    assert not found.fits[owner, row].all()
    moved = drawn.clone()
    moved[owner, row, (~found.fits[owner, row]).nonzero()[0]] += 1
    assert found.log_prob(moved) != found.log_prob(drawn)


def test_only_the_process_correlates_machines() -> None:
    observation = observations([2])
    observation["history_mask"][:] = False
    between = covariance(distribution("DAS", observation).placements.affinities)[0]
    assert (between - torch.diag(between.diagonal())).abs().max() > 0.05 * between.max()
    plain = distribution("DA", observation).placements.affinities
    moved = normal(len(plain.mean), 6)
    before = plain.sample(moved)
    moved[:, 0] += 1
    change = plain.sample(moved) - before
    assert (change[:, 0] > 0).all()
    assert not change[:, 1:].abs().gt(1e-5).any()


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_affinity_samples_have_the_mean_and_entropy(variant: str) -> None:
    """The mean of -log p over many draws is the entropy."""
    observation = one_of(observations([2]), 0, 1)
    observation["held"][:] = 1
    found = distribution(variant, observation).placements.affinities
    drawn = [found.sample(one) for one in normal(20_000, 1, 6, seed=5).double()]
    spread, apart = torch.cat(drawn).std(0), torch.cat(drawn).mean(0) - found.mean[0]
    assert (apart.abs() < 4 * spread / 20_000**0.5).all()
    assert torch.cat(drawn).mean(0) == pytest.approx(found.mean[0], abs=0.15)
    likely = torch.cat([found.log_prob(one) for one in drawn])
    assert -likely.mean().item() == pytest.approx(found.entropy().item(), abs=0.2)
