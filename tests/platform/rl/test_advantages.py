"""Baselines, advantages and critic targets: by hand, unbiased, and with less variance."""

import dataclasses

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.models.decima.module import DecimaModule
from loadmaster.models.ragged import on_device, taken
from loadmaster.platform.rl import advantages
from loadmaster.platform.rl.advantages import Decay, Rollout, gae, returns_to_go, segments_of
from loadmaster.platform.rl.rollout import Recording, RolloutSpec
from loadmaster.platform.systems.decima.rollout import DecimaEngine
from tests.models.decima.test_module import module_of


def rollout(times: list[float], rewards: list[float], end: float) -> Rollout:
    return Rollout(np.array(times, float), np.array(rewards, float), end)


ROLLOUT = rollout([0, 2, 3, 7], [1, 2, 4, 8], 10)
ALL = np.arange(4)
PAIR = [rollout([0, 2, 7], [-1, -1, -1], 9), rollout([0, 4], [-2, -4], 10)]


def test_returns_by_hand() -> None:
    one = rollout([0, 2, 5], [-1, -2, -4], 8)
    assert returns_to_go(one).tolist() == [-7, -6, -4]
    # Half-life 1 s: 2^-t. From the end: -4; -2 - 4 / 8; -1 - 2.5 / 4.
    assert returns_to_go(one, discount_per_s=np.log(2)) == pytest.approx([-1.625, -2.5, -4])
    assert advantages.with_differential_rewards(one, rate=-1.0).reward.tolist() == [1, 1, -1]


def test_group_baselines_by_hand() -> None:
    # Return-to-go of the second: -6 at 0, -4 at 4, 0 at 10, interpolated linearly.
    assert advantages.group_baselines(PAIR)[0] == pytest.approx([-6, -5, -2])
    # And of the first: -3 at 0, -2 at 2, -1 at 7.
    assert advantages.group_baselines(PAIR)[1] == pytest.approx([-3, -1.6])
    assert advantages.group_advantages(PAIR)[1] == pytest.approx([-3, -2.4])
    # Of several decisions at one time the first counts; after the end nothing is left.
    group = [rollout([0, 0, 0], [0, 0, -3], 3), rollout([0, 1, 5], [-1, -1, 0], 6)]
    assert advantages.group_baselines(group)[1] == pytest.approx([-3, -2, 0])
    with pytest.raises(ValueError, match="group of 1"):
        advantages.group_baselines(group[:1])


@pytest.mark.parametrize("discount", [0.0, 0.1])
def test_infinite_credit_horizon_without_outlook_equals_group_advantages(discount: float) -> None:
    found = advantages.bootstrapped_advantages([PAIR], discount, credit_horizon_s=1e12)
    for expected, own in zip(advantages.group_advantages(PAIR, discount), found, strict=True):
        assert own == pytest.approx(expected)


def test_short_credit_horizon_charges_the_last_decision_only() -> None:
    steady, late = rollout([0, 10, 20], [-1, -1, -1], 30), rollout([0, 10, 20], [-1, -1, -5], 30)
    _, advantage = advantages.bootstrapped_advantages([[steady, late]], 0.0, credit_horizon_s=0.1)
    assert advantage == pytest.approx([0, 0, -4], abs=1e-9)


def test_outlook_explains_work_from_before_the_first_decision() -> None:
    group = [
        Rollout(np.array([0.0, 1.0]), np.array([-work, -work]), 2.0, np.array([[2 * work], [work]]))
        for work in (1.0, 2.0, 4.0)
    ]
    found = advantages.bootstrapped_advantages([group], 0.0, credit_horizon_s=100.0)
    assert np.concatenate(found) == pytest.approx(0, abs=1e-4)
    blind = [dataclasses.replace(each, outlook=None) for each in group]
    found = advantages.bootstrapped_advantages([blind], 0.0, credit_horizon_s=100.0)
    assert abs(found[2]).max() > 2


def test_gae_by_hand() -> None:
    segments = segments_of(ROLLOUT, ALL, Decay(gamma=0.5, gae_lambda=0.5))
    value = np.array([4.0, 2.0, 0.0, 6.0, 0.0])
    # Errors: 1 + 1 - 4 = -2; 2 + 0 - 2 = 0; 4 + 3 - 0 = 7; 8 - 6 = 2. Each passes on a quarter.
    assert gae(segments, value[:-1], value) == pytest.approx([-1.53125, 1.875, 7.5, 2])
    # The last value counts where an episode was truncated.
    segments = segments_of(ROLLOUT, ALL, Decay(gamma=0.5, gae_lambda=0.0))
    truncated = np.array([0.0, 0.0, 0.0, 0.0, 6.0])
    assert gae(segments, truncated[:-1], truncated) == pytest.approx([1, 2, 4, 11])
    # Q: the TD target is r + gamma * the next state's mean; this state's mean is no part of it.
    q, mean = np.ones(4), np.array([9.0, 2.0, 4.0, 6.0, 0.0])
    assert q + gae(segments, q, mean) == pytest.approx([1 + 1, 2 + 2, 4 + 3, 8])


@pytest.mark.parametrize("per_s", [0.0, 0.3])
def test_gae_with_lambda_one_is_return_minus_value(per_s: float) -> None:
    value = np.array([3.0, -1.0, 2.0, 5.0, 0.0])
    found = gae(segments_of(ROLLOUT, ALL, Decay(per_s=per_s)), value[:-1], value)
    assert found == pytest.approx(returns_to_go(ROLLOUT, per_s) - value[:-1])


def test_segments_decay_by_time_and_join_decisions_that_were_not_kept() -> None:
    segments = segments_of(ROLLOUT, ALL, Decay(per_s=0.1, credit_horizon_s=2.0))
    assert segments.discount == pytest.approx(np.exp(-0.1 * np.array([2, 1, 4, 3])))
    assert segments.trace == pytest.approx(np.exp(-np.array([2, 1, 4, 3]) / 2))
    segments = segments_of(ROLLOUT, np.array([1, 2]), Decay(gamma=0.5, gae_lambda=0.8))
    assert segments.reward == pytest.approx([2, 4 + 0.5 * 8])
    assert segments.discount == pytest.approx([0.5, 0.25])
    assert segments.trace == pytest.approx([0.8, 0.64])
    # With exact values all errors are 0, whichever decisions are kept.
    value = returns_to_go(Rollout(np.arange(4.0), ROLLOUT.reward, 4.0), -np.log(0.5))
    for kept in (ALL, np.array([0, 3]), np.array([2]), np.array([], np.int64)):
        segments = segments_of(ROLLOUT, kept, Decay(gamma=0.5, gae_lambda=0.9))
        exact = value[kept]
        assert gae(segments, exact, np.append(exact, 0.0)) == pytest.approx(0.0 * exact)


def test_running_normalizer_and_explained_variance() -> None:
    normalizer, rng = advantages.RunningNormalizer(), np.random.default_rng(0)
    assert normalizer.denormalize(np.array([0.5], np.float32)) == pytest.approx([0.5])
    for _ in range(60):
        normalizer.update(500 + 20 * rng.standard_normal(2000))
    assert normalizer.mean == pytest.approx(500, rel=1e-2)
    assert normalizer.std == pytest.approx(20, rel=5e-2)
    values = np.array([460.0, 500.0, 555.0])
    assert normalizer.denormalize(normalizer.normalize(values)) == pytest.approx(values, rel=1e-5)
    target = [np.array([1.0, 2.0]), np.array([6.0])]
    assert advantages.explained_variance(target, target) == pytest.approx(1)
    assert advantages.explained_variance([np.zeros(2), np.zeros(1)], target) == pytest.approx(0)


SETTINGS = DagSchedulingSettings(
    workload="toy", arrivals="poisson", jobs=6, interarrival_s=5, executors=3,
)  # fmt: skip
GROUPS, SIZE = 150, 4


def gradients(module: DecimaModule, recording: Recording, *weightings: np.ndarray) -> np.ndarray:
    """(weightings, weights) REINFORCE's estimates for the weights of the last layers."""
    columns = {Columns.OBS: recording.observations, Columns.ACTIONS: recording.actions}
    batch = taken(on_device(columns, "cpu"), torch.arange(len(recording.kept)), "cpu")
    log_prob = module.forward_train(batch)[Columns.ACTION_LOGP]
    np.testing.assert_allclose(log_prob.detach(), recording.log_probability, atol=1e-4)
    wanted = [module.network.score_stage[-1].weight, module.network.score_limit[-1].weight]
    found = []
    for weighting in weightings:
        loss = (log_prob * torch.as_tensor(weighting)).sum()
        parts = torch.autograd.grad(loss, wanted, retain_graph=True)
        found.append(torch.cat([part.ravel() for part in parts]).numpy())
    return np.array(found)


@pytest.mark.slow
def test_group_baseline_is_unbiased_and_reduces_variance() -> None:
    engine, module = DecimaEngine(SETTINGS), module_of(SETTINGS.total_executors)
    specs = [RolloutSpec(number // SIZE, number) for number in range(GROUPS * SIZE)]
    recordings = engine.roll_out(module, specs)
    each = [recording.rollout for recording in recordings]
    rollouts = [each[first : first + SIZE] for first in range(0, len(each), SIZE)]
    each_one = zip(
        recordings,
        [returns_to_go(one) for one in each],
        [one for group in rollouts for one in advantages.group_advantages(group)],
        advantages.bootstrapped_advantages(rollouts, 0.0, credit_horizon_s=30.0),
        strict=True,
    )
    found = [gradients(module, recording, *weightings) for recording, *weightings in each_one]
    # (3, GROUPS, weights): groups are independent; their rollouts share an input.
    each_way = np.reshape(found, (GROUPS, SIZE, 3, -1)).mean(axis=1).transpose(1, 0, 2)
    without, baseline, bootstrapped = each_way
    difference = without - baseline
    error = difference.std(axis=0, ddof=1) / np.sqrt(GROUPS)
    assert (np.abs(difference.mean(axis=0)) < 4 * error).all()  # the same mean: unbiased
    variance = each_way.var(axis=1).sum(axis=1)
    assert variance[0] > 3 * variance[1]
    assert variance[1] > variance[2]
    # A short credit horizon may bias the gradient, but not turn it around.
    means = (torch.as_tensor(each.mean(axis=0)) for each in (baseline, bootstrapped))
    assert torch.cosine_similarity(*means, dim=0) > 0.5
