"""Terms of the objective: KL, noise, the score function, mutual information."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.distributions import kl_divergence as reference_kl

from loadmaster.envs.errors import InputError
from loadmaster.models.sure.graph import pack
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.objective import (
    GAUSSIAN,
    KL,
    MUTUAL_INFORMATION,
    half_log_determinant,
    kl_divergence,
    mutual_information,
    objective_terms,
    weighted_losses,
)
from loadmaster.models.sure.sampler import Scores
from loadmaster.models.sure.settings import SureSettings
from tests.models.sure.builders import random_observation

MOST = 2 * math.log(2)


def random_scores() -> Scores:
    mean, log_variance = torch.randn(2, 3, 4, 2, generator=torch.Generator().manual_seed(1))
    in_use = torch.ones(3, 4, 2, dtype=torch.bool)
    in_use[1, 2:] = False
    in_use[2] = False
    return Scores(mean, log_variance, in_use)


def test_kl_equals_that_of_torch() -> None:
    scores = random_scores()
    own, prior = Normal(scores.mean, (scores.log_variance / 2).exp()), Normal(0, 0.995**0.5)
    expected = torch.where(scores.in_use, reference_kl(own, prior), 0).sum((1, 2))
    expected /= scores.in_use.sum((1, 2)).clamp(min=1)
    torch.testing.assert_close(kl_divergence(scores, 0.995), expected)
    assert expected[0] > 0
    assert expected[2] == 0


def test_half_log_determinant_shrinks_the_noise() -> None:
    scores = random_scores()
    leaf = scores.log_variance.clone().requires_grad_()
    found = half_log_determinant(scores._replace(log_variance=leaf))
    variances = torch.where(scores.in_use, leaf.detach().exp(), 1.0).flatten(1)
    count = scores.in_use.sum((1, 2)).clamp(min=1)
    expected = variances.prod(1).log() / 2 / count
    torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    torch.testing.assert_close(gradient, scores.in_use / 2 / count[:, None, None])


def test_mutual_information_of_independent_pairs_is_0() -> None:
    assert mutual_information(torch.zeros(6, 8), torch.randn(3, 8), torch.arange(6) // 2) == 0
    rng = torch.Generator().manual_seed(2)
    found = [
        mutual_information(
            torch.randn(40, 16, generator=rng),
            torch.randn(20, 16, generator=rng),
            torch.arange(40) // 2,
        )
        for _ in range(200)
    ]
    values = torch.stack(found)
    # T is unrelated to the pair: the bound is below 0 by what the spread of T costs.
    assert values.mean() < 0
    small = torch.stack(
        [
            mutual_information(
                0.1 * torch.randn(40, 16, generator=rng),
                0.1 * torch.randn(20, 16, generator=rng),
                torch.arange(40) // 2,
            )
            for _ in range(200)
        ]
    )
    assert small.mean().item() == pytest.approx(0, abs=1e-4)


def test_mutual_information_of_copies_nears_its_bound() -> None:
    wholes = 40 * torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(3)))[0]
    wholes = wholes - 0.2 * wholes.sum(0)  # negative products with the others
    decision = torch.arange(8).repeat_interleave(3)
    copies = wholes[decision]
    found = mutual_information(copies, wholes, decision)
    assert found == pytest.approx(MOST, abs=0.01)
    assert found <= MOST
    assert mutual_information(copies.roll(3, 0), wholes, decision) < 0


def test_mutual_information_needs_two_graphs() -> None:
    with pytest.raises(InputError):
        mutual_information(torch.zeros(3, 4), torch.zeros(1, 4), torch.zeros(3).long())


def test_mutual_information_is_learned() -> None:
    """Matched pairs come above shuffled ones; the term reaches encoder and readout."""
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    settings = SureSettings(width=12, snapshots=4, neighbours=2, mutual_information_share=1)
    network = SureNetwork(settings)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    batch = pack([random_observation(rng, 5, 8) for _ in range(8)], settings.hops)
    key, closed = torch.arange(8), torch.zeros(8, dtype=torch.bool)
    draw = network.act(batch, key).draw
    values = []
    for _ in range(40):
        evaluation = network.evaluate(batch, key, draw, closed, batch.prior)
        terms = objective_terms(network, batch, evaluation)
        optimiser.zero_grad()
        (-terms[MUTUAL_INFORMATION]).backward()
        optimiser.step()
        values.append(terms[MUTUAL_INFORMATION].item())
    wholes = network.embed_whole(network.node_features(batch), batch)
    tasks = network.evaluate(batch, key, draw, closed, batch.prior).embedding.tasks
    matched = mutual_information(tasks, wholes, batch.decision)
    shuffled = mutual_information(tasks, wholes.roll(1, 0), batch.decision)
    assert matched > max(values[0], 0) + 0.1
    assert matched > shuffled + 0.5


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, {KL, GAUSSIAN, MUTUAL_INFORMATION}),
        ({"mutual_information_weight": 0}, {KL, GAUSSIAN}),
        ({"sampler": "random"}, {MUTUAL_INFORMATION}),
        ({"sampler": "full"}, set()),
    ],
)
def test_terms_have_names_and_weights(given: dict[str, object], names: set[str]) -> None:
    rng = np.random.default_rng(5)
    network = SureNetwork(SureSettings.model_validate(given))
    batch = pack([random_observation(rng, size, 12) for size in (3, 6, 4)], 3)
    key = torch.arange(3)
    action = network.act(batch, key)
    evaluation = network.evaluate(batch, key, action.draw, action.gate, action.change)
    terms = objective_terms(network, batch, evaluation)
    assert set(terms) == names
    losses = weighted_losses(terms, network.settings)
    signs = {KL: 1e-7, GAUSSIAN: 1e-2, MUTUAL_INFORMATION: -1e-5}
    for name, term in terms.items():
        assert losses[name].item() == pytest.approx(signs[name] * term.item())
