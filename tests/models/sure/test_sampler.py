"""The sampler: Plackett-Luce probabilities, repeatable draws, unbiased gradients, and learning."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from loadmaster.models.sure.graph import NONE, DecisionBatch, Draw, pack
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.sampler import (
    NEIGHBOUR,
    SELF,
    Scores,
    draw_entropy,
    draw_log_prob,
    draw_subgraphs,
    plackett_luce_entropy,
    plackett_luce_log_prob,
    task_keys,
)
from loadmaster.models.sure.settings import SureSettings
from tests.models.sure.builders import chain_observation, random_observation

HOPS = 3


def copies(batch: DecisionBatch, count: int) -> DecisionBatch:
    """The decision `count` times, without the cost of packing each."""
    tasks, shift = len(batch.tasks), torch.arange(count) * len(batch.tasks)
    shifted = batch.candidates.repeat(count, 1) + shift.repeat_interleave(tasks)[:, None]
    return batch._replace(
        snapshots=batch.snapshots.repeat(count, 1, 1),
        times=batch.times.repeat(count, 1, 1),
        tasks=batch.tasks.repeat(count, 1),
        restart=batch.restart.repeat(count, 1),
        present=batch.present.repeat(count, 1),
        sizes=batch.sizes.repeat(count),
        decision=torch.arange(count).repeat_interleave(tasks),
        place=batch.place.repeat(count),
        edges=(batch.edges[:, None] + shift[:, None]).flatten(1),
        candidates=shifted.where(batch.candidates.repeat(count, 1) >= 0, torch.tensor(NONE)),
        prior=batch.prior.repeat(count),
        gate_prior=batch.gate_prior.repeat(count),
    )


def test_scores_are_drawn_with_their_standard_deviation() -> None:
    """Not with the variance, as in the paper's code."""
    count = 20_000
    mean = torch.tensor([[0.5, -0.5], [0.0, 0.9]]).expand(count, -1, -1)
    log_variance = torch.tensor([[-4.0, 2.0], [0.0, -20.0]]).expand(count, -1, -1)
    drawn = Scores(mean, log_variance, mean > -2).sample(torch.arange(count))
    std = (log_variance[0] / 2).exp()
    assert ((drawn.mean(0) - mean[0]).abs() <= 4.5 * std / count**0.5 + 1e-6).all()
    torch.testing.assert_close(drawn.std(0), std, rtol=0.03, atol=1e-6)
    assert np.abs(np.corrcoef(drawn.flatten(1).T) - np.eye(4)).max() < 4.5 / count**0.5


def test_scores_are_bounded() -> None:
    tables = chain_observation(3, 4)
    batch = pack([tables], HOPS)
    network = SureNetwork(SureSettings())
    features = network.node_features(batch)
    assert features.score_part is not None
    for raw, mean, log_variance in ((1e3, 1, 2), (-1e3, -1, -20)):
        extreme = features._replace(score_part=torch.full_like(features.score_part, raw))
        scores = network.score(extreme, batch)
        assert scores is not None
        assert (scores.mean == mean).all()
        assert (scores.log_variance == log_variance).all()


@pytest.mark.parametrize("legal", [[True] * 4, [True, False, True, True]])
def test_probabilities_of_all_draws_sum_to_1(legal: list[bool]) -> None:
    scores = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)
    mask = torch.tensor(legal)
    options = [place for place, fine in enumerate(legal) if fine]
    draws = torch.tensor(list(permutations(options, 3)))
    logs = plackett_luce_log_prob(scores.expand(len(draws), -1), mask.expand(len(draws), -1), draws)
    assert logs.exp().sum() == pytest.approx(1)
    first, second, third = draws[1].tolist()
    weight = scores.exp() * mask
    expected = weight[first] / weight.sum()
    expected *= weight[second] / (weight.sum() - weight[first])
    expected *= weight[third] / (weight.sum() - weight[first] - weight[second])
    assert logs[1].exp() == pytest.approx(float(expected))


def test_missing_draws_count_nothing() -> None:
    scores, legal = torch.tensor([0.5, -0.5, 9.0]), torch.tensor([True, True, False])
    short = plackett_luce_log_prob(scores, legal, torch.tensor([1, 0]))
    assert plackett_luce_log_prob(scores, legal, torch.tensor([1, 0, NONE, NONE])) == short
    assert short == pytest.approx(float(torch.tensor(-1.0).sigmoid().log()))
    none = torch.full((4,), NONE)
    assert plackett_luce_log_prob(scores, torch.zeros(3, dtype=torch.bool), none) == 0


def test_extreme_scores_stay_exact() -> None:
    scores = torch.tensor([300.0, 0.0, -300.0], requires_grad=True)
    legal = torch.ones(3, dtype=torch.bool)
    log_prob = plackett_luce_log_prob(scores, legal, torch.tensor([2, 1, 0]))
    assert log_prob.item() == -600 - 300
    log_prob.backward()
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad, torch.tensor([-2.0, 1.0, 1.0]), rtol=1e-4, atol=0)


def test_frequencies_of_draws_agree_with_probabilities() -> None:
    """A chain of three tasks: the middle one draws two of three snapshots, a neighbour in each."""
    count = 40_000
    batch = copies(pack([chain_observation(3, 3)], HOPS), count)
    one = torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(1))
    scores = one.repeat(count, 1, 1)
    draw = draw_subgraphs(scores, batch, 2, 1, task_keys(torch.arange(count), batch))
    middle = torch.arange(count) * 3 + 1
    ages, columns = draw.snapshot[middle], draw.neighbour[middle, :, 0]
    code = ages[:, 0] * 12 + ages[:, 1] * 4 + columns[:, 0] * 2 + columns[:, 1]
    probability = draw_log_prob(scores, batch, draw)[middle].exp()
    found, total = torch.bincount(code, minlength=36), 0.0
    for number in range(36):
        if not found[number]:
            continue
        expected = probability[code == number][0].item()
        total += expected
        spread = (expected * (1 - expected) / count) ** 0.5
        assert found[number] / count == pytest.approx(expected, abs=4.5 * spread)
    assert total == pytest.approx(1, abs=1e-4)  # all 24 draws came


def test_entropy_is_the_mean_of_log_probabilities() -> None:
    scores = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)
    draws = torch.tensor(list(permutations(range(4), 2)))
    rows, legal = scores.expand(len(draws), -1), torch.ones(len(draws), 4, dtype=torch.bool)
    logs = plackett_luce_log_prob(rows, legal, draws)
    stepwise = plackett_luce_entropy(rows, legal, draws)
    assert (logs.exp() * stepwise).sum() == pytest.approx(-float((logs.exp() * logs).sum()))


def test_draws_belong_to_their_keys() -> None:
    """Neither other decisions, nor a longer window, nor wider candidates change a draw."""
    rng = np.random.default_rng(2)
    jobs = [random_observation(rng, 6, 12), random_observation(rng, 15, 20)]
    key = torch.tensor([11, 12])
    network = SureNetwork(SureSettings(snapshots=4, neighbours=2))
    both, alone = pack(jobs, HOPS), pack(jobs[:1], HOPS)
    first = network.act(both, key).draw
    again, other = network.act(alone, key[:1]).draw, network.act(alone, key[1:]).draw
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first.snapshot[:6], again.snapshot)
    assert torch.equal(first.neighbour[:6], again.neighbour)
    assert not torch.equal(other.snapshot, again.snapshot)


def test_short_history_and_few_candidates() -> None:
    rng = np.random.default_rng(3)
    tables = random_observation(rng, 4, 8, history=3)
    tables["edges"] = np.array([[0, 1], [1, 2]])  # task 3 has no neighbour
    batch = pack([tables], HOPS)
    scores = torch.randn(4, 8, 2)
    draw = draw_subgraphs(scores, batch, 5, 3, torch.arange(4))
    assert draw.snapshot.sort(1).values.tolist() == [[NONE, NONE, 0, 1, 2]] * 4
    assert (draw.snapshot[:, 3:] == NONE).all()
    assert ((draw.neighbour >= 0).sum(2) == torch.tensor([[2] * 3 + [0] * 2] * 3 + [[0] * 5])).all()
    log_prob, entropy = draw_log_prob(scores, batch, draw), draw_entropy(scores, batch, draw)
    assert log_prob.isfinite().all()
    assert (log_prob <= 0).all()
    assert (entropy[:3] > entropy[3] - 3).all()
    assert entropy[3] == pytest.approx(
        float(plackett_luce_entropy(scores[3, :3, SELF], torch.ones(3) > 0, draw.snapshot[3, :3]))
    )


def every_draw(ages: int, k1: int, columns: int, k2: int) -> Draw:
    """All ordered draws of one task."""
    inside = list(permutations(range(columns), k2))
    found = [
        (ages_drawn, neighbours)
        for ages_drawn in permutations(range(ages), k1)
        for neighbours in product(inside, repeat=k1)
    ]
    return Draw(torch.tensor([a for a, _ in found]), torch.tensor([n for _, n in found]))


@pytest.mark.slow
def test_estimated_gradient_equals_the_exact_one() -> None:
    """Mean of reward * d log p(g | Omega) against the sum over all ordered draws, given eps.

    The middle of a chain of three draws 2 of 3 snapshots, and both neighbours in order in each.
    """
    count, draws, rng = 8000, every_draw(3, 2, 2, 2), torch.Generator().manual_seed(4)
    options = len(draws.snapshot)
    assert options == 6 * 2 * 2
    worth = torch.randn(3 * 3 * 2 * 2, generator=rng)  # of ages and first neighbours

    def reward(draw: Draw) -> Tensor:
        ages, first = draw.snapshot, draw.neighbour[..., 0]
        return worth[ages[:, 0] * 12 + ages[:, 1] * 4 + first[:, 0] * 2 + first[:, 1]]

    one = pack([chain_observation(3, 3)], HOPS)
    batch, middle = copies(one, count), torch.arange(count) * 3 + 1
    keys = task_keys(torch.arange(count), batch)
    # Every copy has parameters of its own, so that gradients come by copy.
    mean, log_variance = (
        torch.randn(3, 3, 2, generator=rng).repeat(count, 1, 1).requires_grad_() for _ in range(2)
    )
    omega = Scores(mean, log_variance, torch.ones_like(mean) > 0).sample(keys)
    draw = draw_subgraphs(omega.detach(), batch, 2, 2, keys)
    own = Draw(draw.snapshot[middle], draw.neighbour[middle])
    weighed = draw_log_prob(omega, batch, draw)[middle] * reward(own)
    estimates = torch.autograd.grad(weighed.sum(), (mean, log_variance), retain_graph=True)

    whole = Draw(torch.zeros(options, 3, 2).long(), torch.zeros(options, 3, 2, 2).long())
    whole.snapshot[:, 1], whole.neighbour[:, 1] = draws.snapshot, draws.neighbour
    every = Draw(*(part.flatten(0, 1).repeat(count, *[1] * (part.dim() - 2)) for part in whole))
    of_option = omega.view(count, 1, 3, 3, 2).expand(-1, options, -1, -1, -1).flatten(0, 2)
    logs = draw_log_prob(of_option, copies(one, count * options), every).view(count, options, 3)
    expected = (logs[..., 1].exp() * reward(draws)).sum()
    exacts = torch.autograd.grad(expected, (mean, log_variance))
    seen = 0
    for estimate, exact in zip(estimates, exacts, strict=True):
        by_copy = exact.view(count, 3, 3, 2)
        difference = estimate.view(count, 3, 3, 2) - by_copy
        error = difference.std(0) / count**0.5
        assert (difference.mean(0).abs() <= 4.5 * error + 1e-6).all()
        seen += int((by_copy.mean(0).abs() > 9 * error).sum())
    assert seen >= 6  # enough draws to tell a gradient of twice the size


def planted(
    rng: np.random.Generator, tasks: int, window: int
) -> tuple[dict[str, np.ndarray], int, int]:
    """An observation in which column 0 marks a snapshot, and column 1 a task."""
    tables = chain_observation(tasks, window)
    age, task = int(rng.integers(window)), int(rng.integers(tasks))
    tables["snapshots"][window - 1 - age, :, 0] = 3
    tables["snapshots"][:, task, 1] = 3
    return tables, age, task


def hits(batch: DecisionBatch, draw: Draw, ages: Tensor, marked: Tensor) -> tuple[Tensor, Tensor]:
    """(T,) whether the planted snapshot was drawn; share of slots with the planted neighbour."""
    snapshot = (draw.snapshot == ages[batch.decision][:, None]).any(1)
    rows = batch.candidates.gather(1, draw.neighbour.flatten(1)).view_as(draw.neighbour)
    return snapshot.float(), (rows == marked[:, None, None]).any(2).float().mean(1)


@pytest.mark.slow
def test_planted_snapshot_and_neighbour_are_learned() -> None:
    """By the policy gradient of the sampler alone."""
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    network = SureNetwork(SureSettings(width=16, snapshots=2, neighbours=1))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)

    def sample(decisions: int) -> tuple[DecisionBatch, Tensor, Tensor]:
        """A batch, the planted age of each decision, and for each task the planted row."""
        tables, ages, tasks = zip(*(planted(rng, 4, 10) for _ in range(decisions)), strict=True)
        batch = pack(tables, HOPS)
        first = torch.arange(len(batch.tasks)) - batch.place
        return batch, torch.tensor(ages), first + torch.tensor(tasks)[batch.decision]

    for step in range(80):
        batch, ages, marked = sample(32)
        key = torch.arange(32) + 1000 * step
        scores = network.score(network.node_features(batch), batch)
        draw = network.draw(scores, batch, key)
        assert draw is not None
        snapshot, neighbour = hits(batch, draw, ages, marked)
        others = torch.arange(len(batch.tasks)) != marked  # the planted task finds no other
        reward = (snapshot + neighbour)[others]
        log_prob = draw_log_prob(network.omega(scores, batch, key), batch, draw)[others]
        optimiser.zero_grad()
        (-(log_prob * (reward - reward.mean())).mean()).backward()
        optimiser.step()
    batch, ages, marked = sample(100)
    scores = network.score(network.node_features(batch), batch)
    draw = network.draw(scores, batch, torch.arange(100), greedy=True)
    assert draw is not None
    snapshot, neighbour = hits(batch, draw, ages, marked)
    others = torch.arange(len(batch.tasks)) != marked
    assert snapshot.mean() >= 0.9  # by chance 0.2
    assert neighbour[others].mean() >= 0.9  # by chance 0.33


@pytest.mark.parametrize("sampler", ["learned", "random", "temporal", "spatial"])
def test_ratio_is_exactly_1_when_the_draw_is_repeated(sampler: str) -> None:
    rng = np.random.default_rng(6)
    network = SureNetwork(
        SureSettings.model_validate({"sampler": sampler, "snapshots": 4, "neighbours": 2})
    )
    batch = pack([random_observation(rng, 7, 9), random_observation(rng, 5, 9, 2)], HOPS)
    key = torch.tensor([5, 6])
    action = network.act(batch, key)
    window = network.window(batch)
    again = network.draw(network.score(network.node_features(window), window), window, key)
    assert action.draw is not None
    assert again is not None
    assert torch.equal(again.snapshot, action.draw.snapshot)
    assert torch.equal(again.neighbour, action.draw.neighbour)
    redone = network.evaluate(batch, key, again, action.gate, action.change)
    assert action.log_prob is not None
    for acted, evaluated in zip(action.log_prob, redone.log_prob, strict=True):
        assert ((evaluated - acted).exp() == 1).all()


@pytest.mark.parametrize(
    ("sampler", "roles"),
    [("learned", {SELF, NEIGHBOUR}), ("temporal", {SELF}), ("spatial", {NEIGHBOUR})],
)
def test_draws_depend_on_the_scores_in_use_alone(sampler: str, roles: set[int]) -> None:
    rng = np.random.default_rng(7)
    batch = pack([random_observation(rng, 6, 9, history=5)], HOPS)
    network = SureNetwork(
        SureSettings.model_validate({"sampler": sampler, "snapshots": 3, "neighbours": 2})
    )
    window = network.window(batch)
    scores = network.score(network.node_features(window), window)
    assert scores is not None
    assert {int(role) for role in scores.in_use.any(1).any(0).nonzero()} == roles
    assert (scores.in_use.any(2) == window.present[window.decision]).all()
    other = torch.where(scores.in_use, scores.mean, -scores.mean + 5)
    key = torch.tensor([1])
    first = network.draw(scores, window, key)
    second = network.draw(scores._replace(mean=other), window, key)
    assert first is not None
    assert second is not None
    assert torch.equal(first.snapshot, second.snapshot)
    assert torch.equal(first.neighbour, second.neighbour)
