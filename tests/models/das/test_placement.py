"""The placement agent: dependencies and densities of its affinities."""

from __future__ import annotations

import pytest
import torch

from loadmaster.models.das.placement import Placements
from tests.models.das.builders import (
    Batch,
    covariance,
    network_of,
    observations,
    one_of,
    usable,
    with_machines,
)

VARIANTS = ["DA", "DAS"]  # without and with the process
WAITING = [7, 3, 0]


def placements(variant: str, observation: Batch) -> Placements:
    with torch.no_grad():
        found = network_of(variant).placement(observation)
    assert isinstance(found, Placements)
    return found


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_jobs_that_fit_have_affinities(variant: str) -> None:
    observation = observations(WAITING)
    observation["held"][0, 2] = 0  # fits nowhere
    found = placements(variant, observation)
    drawn = found.sample(normal(3, 7, 6))
    fits = usable(observation)
    able = fits.any(-1)
    assert not able[0, 2]
    assert (drawn.abs().sum(-1) > 0).equal(able)
    barred = found.barred(drawn)
    assert torch.isfinite(barred).equal(fits)
    assert barred[fits].equal(drawn[fits])
    assert found.log_prob(drawn)[2] == 0
    assert found.entropy()[2] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_full_cluster_has_no_affinities(variant: str) -> None:
    observation = observations([4, 2])
    observation["held"][:] = 0
    found = placements(variant, observation)
    drawn = found.sample(normal(2, 7, 6))
    assert not drawn.any()
    assert found.log_prob(drawn).tolist() == [0, 0]
    assert (found.barred(drawn) == -torch.inf).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_density_includes_barred_machines(variant: str) -> None:
    found = placements(variant, observations([5]))
    drawn = found.sample(normal(1, 7, 6))
    owner, row = found.owner[0], found.row[0]
    assert not found.fits[owner, row].all()
    moved = drawn.clone()
    moved[owner, row, (~found.fits[owner, row]).nonzero()[0]] += 1
    assert found.barred(moved).equal(found.barred(drawn))
    assert found.log_prob(moved) != found.log_prob(drawn)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_and_other_rows_have_no_effect(variant: str) -> None:
    observation = observations(WAITING)
    together = placements(variant, observation)
    drawn = together.sample(normal(3, 7, 6))
    for number, jobs in enumerate(WAITING[:2]):
        alone = placements(variant, one_of(observation, number, jobs))
        torch.testing.assert_close(together.mean()[number, :jobs], alone.mean()[0])
        likely = alone.log_prob(drawn[number : number + 1, :jobs])
        torch.testing.assert_close(together.log_prob(drawn)[number], likely[0])
        torch.testing.assert_close(together.entropy()[number], alone.entropy()[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_order_of_machines_has_no_effect(variant: str) -> None:
    observation, order = observations(WAITING), torch.tensor([4, 2, 0, 5, 1, 3])
    one, other = (
        placements(variant, observation),
        placements(variant, with_machines(observation, order)),
    )
    drawn = one.sample(normal(3, 7, 6))
    torch.testing.assert_close(one.mean()[..., order], other.mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        one.log_prob(drawn), other.log_prob(drawn[..., order]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_samples_have_the_mean_and_entropy(variant: str) -> None:
    """The mean of -log p over many draws is the entropy."""
    observation = one_of(observations([2]), 0, 1)
    observation["held"][:] = 1
    found = placements(variant, observation)
    affinities = found.affinities
    drawn = [affinities.sample(one) for one in normal(20_000, 1, 6, seed=5).double()]
    spread, apart = torch.cat(drawn).std(0), torch.cat(drawn).mean(0) - affinities.mean[0]
    assert (apart.abs() < 4 * spread / 20_000**0.5).all()
    assert torch.cat(drawn).mean(0) == pytest.approx(affinities.mean[0], abs=0.15)
    likely = torch.cat([affinities.log_prob(one) for one in drawn])
    assert -likely.mean().item() == pytest.approx(affinities.entropy().item(), abs=0.2)


def test_only_the_process_correlates_machines() -> None:
    observation = observations([2])
    observation["history_mask"][:] = False
    coupled = placements("DAS", observation).affinities
    between = covariance(coupled)[0]
    assert (between - torch.diag(between.diagonal())).abs().max() > 0.05 * between.max()
    plain = placements("DA", observation).affinities
    moved = normal(len(plain.mean), 6)
    apart = plain.sample(moved) - plain.mean
    moved[:, 0] += 1
    change = plain.sample(moved) - plain.mean - apart
    assert (change[:, 0] > 0).all()
    assert not change[:, 1:].abs().gt(1e-5).any()


@pytest.mark.parametrize(("variant", "depends"), [("DA", False), ("DAS", True)])
def test_only_the_process_depends_on_history(variant: str, depends: bool) -> None:
    observation = observations([3])
    faster = dict(observation, history_y=observation["history_y"] + 1)
    one, other = (placements(variant, batch).mean() for batch in (observation, faster))
    assert torch.equal(one, other) != depends
    assert not depends or (other - one)[usable(observation)].mean() > 0.1
