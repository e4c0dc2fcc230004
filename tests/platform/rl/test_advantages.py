"""The input-dependent baseline: by hand, unbiased, and worth its rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.platform.rl.advantages import (
    Rollout,
    bootstrapped_advantages,
    differential_rewards,
    group_advantages,
    group_baselines,
    returns_to_go,
)
from loadmaster.platform.rl.rollout import on_device, taken
from loadmaster.platform.systems.decima.rollout import Recording, record_rollout


def rollout(times: list[float], rewards: list[float], end: float) -> Rollout:
    return Rollout(np.array(times), np.array(rewards), end)


def test_returns_by_hand() -> None:
    one = rollout([0, 2, 5], [-1, -2, -4], 8)
    assert returns_to_go(one).tolist() == [-7, -6, -4]
    # Half a life of 1 s: 2^-t. From the end: -4; -2 - 4 / 8; -1 - 2.5 / 4.
    halved = returns_to_go(one, discount_per_s=np.log(2))
    assert halved == pytest.approx([-1.625, -2.5, -4])


def test_differential_rewards_by_hand() -> None:
    one = rollout([0, 2, 5], [-1, -2, -4], 8)
    assert differential_rewards(one, rate=-1.0).tolist() == [1, 1, -1]


def test_baselines_by_hand() -> None:
    # What the second has left: -6 at 0, -4 at 4, 0 at 10; in between on straight lines.
    group = [rollout([0, 2, 7], [-1, -1, -1], 9), rollout([0, 4], [-2, -4], 10)]
    assert group_baselines(group)[0] == pytest.approx([-6, -5, -2])
    # And the first: -3 at 0, -2 at 2, -1 at 7.
    assert group_baselines(group)[1] == pytest.approx([-3, -1.6])
    assert group_advantages(group)[1] == pytest.approx([-3, -2.4])


def test_of_decisions_at_one_moment_the_first_counts() -> None:
    group = [rollout([0, 0, 0], [0, 0, -3], 3), rollout([0, 1], [-1, -1], 2)]
    assert group_baselines(group)[1] == pytest.approx([-3, -2])


def test_after_the_end_nothing_is_left() -> None:
    group = [rollout([0], [-1], 1), rollout([0, 5], [-5, -5], 10)]
    assert group_baselines(group)[1] == pytest.approx([-1, 0])


def test_one_alone_has_no_baseline() -> None:
    with pytest.raises(ValueError, match="a group of 1"):
        group_baselines([rollout([0], [-1], 1)])


def test_with_endless_memory_and_no_outlook_nothing_is_bootstrapped() -> None:
    group = [rollout([0, 2, 7], [-1, -2, -1], 9), rollout([0, 4], [-2, -4], 10)]
    for discount in (0.0, 0.1):
        plain = group_advantages(group, discount)
        for before, after in zip(
            plain, bootstrapped_advantages([group], discount, memory_s=1e12), strict=True
        ):
            assert after == pytest.approx(before)


def test_short_memory_holds_a_decision_to_what_follows_at_once() -> None:
    # Both pay 1 at every step but one pays 5 in its last: the first decisions are not to blame.
    steady, late = rollout([0, 10, 20], [-1, -1, -1], 30), rollout([0, 10, 20], [-1, -1, -5], 30)
    _, advantage = bootstrapped_advantages([[steady, late]], 0.0, memory_s=0.1)
    assert advantage == pytest.approx([0, 0, -4], abs=1e-9)


def test_what_the_outlook_foresees_is_no_surprise() -> None:
    """Each has work left that it must pay for; how much was settled before the first decision."""
    group = [
        Rollout(np.array([0.0, 1.0]), np.array([-work, -work]), 2.0, np.array([[2 * work], [work]]))
        for work in (1.0, 2.0, 4.0)
    ]
    for advantage in bootstrapped_advantages([group], 0.0, memory_s=100.0):
        assert advantage == pytest.approx([0, 0], abs=1e-4)
    blind = [dataclasses.replace(each, outlook=None) for each in group]
    assert abs(bootstrapped_advantages([blind], 0.0, memory_s=100.0)[2]).max() > 2


SETTINGS = DagSchedulingSettings(
    workload="toy", arrivals="poisson", jobs=6, interarrival_s=5, executors=3,
)  # fmt: skip
GROUPS, SIZE = 150, 4


def gradients(
    network: DecimaNetwork, recording: Recording, weightings: Sequence[np.ndarray]
) -> np.ndarray:
    """(weightings, weights) of sum(weighting * log-probability) by the last layers' weights:
    REINFORCE's estimates."""
    everything = torch.arange(len(recording.kept))
    tables = taken(on_device({"obs": recording.observations}, "cpu"), everything, "cpu")["obs"]
    actions = torch.as_tensor(recording.actions)
    scores, batch, embedded = network(tables)
    limits = network.limit_scores(tables, batch, embedded, actions[:, 0], 3)
    each = torch.arange(len(actions))
    stage = scores.log_softmax(1)[each, actions[:, 0]]
    limit = limits.log_softmax(1)[each, actions[:, 1] - 1]
    torch.testing.assert_close(
        (stage + limit).double(), torch.as_tensor(recording.log_probability), atol=1e-4, rtol=0
    )
    wanted = [network.score_stage[-1].weight, network.score_limit[-1].weight]
    found = []
    for weighting in weightings:
        loss = ((stage + limit) * torch.as_tensor(weighting, dtype=torch.float32)).sum()
        parts = torch.autograd.grad(loss, wanted, retain_graph=True)
        found.append(torch.cat([part.ravel() for part in parts]).numpy())
    return np.array(found)


def test_unbiased_and_far_less_noisy(record_property: pytest.RecordProperty) -> None:
    torch.manual_seed(1)
    network, workload = DecimaNetwork(), load_workload(SETTINGS)
    groups = [
        [
            record_rollout(network, SETTINGS, group, workload, luck=group * SIZE + member)
            for member in range(SIZE)
        ]
        for group in range(GROUPS)
    ]
    rollouts = [[recording.rollout for recording in group] for group in groups]
    weightings = zip(
        [returns_to_go(each) for group in rollouts for each in group],
        [each for group in rollouts for each in group_advantages(group)],
        bootstrapped_advantages(rollouts, 0.0, memory_s=30.0),
        strict=True,
    )
    recordings = [recording for group in groups for recording in group]
    found = [gradients(network, *pair) for pair in zip(recordings, weightings, strict=True)]
    # (3, GROUPS, weights): groups are independent; their rollouts share an input.
    each_way = np.reshape(found, (GROUPS, SIZE, 3, -1)).mean(axis=1).transpose(1, 0, 2)
    without, baseline, bootstrapped = each_way
    difference = without - baseline
    error = difference.std(axis=0, ddof=1) / np.sqrt(GROUPS)
    assert (np.abs(difference.mean(axis=0)) < 4 * error).all()  # the same mean: unbiased
    factor = without.var(axis=0).sum() / baseline.var(axis=0).sum()
    further = baseline.var(axis=0).sum() / bootstrapped.var(axis=0).sum()
    record_property("variance_factor", round(float(factor), 1))
    print(f"variance without the baseline over variance with it: {factor:.1f}")
    print(f"and over variance with bootstrapped advantages, 30 s: another {further:.1f}")
    assert factor > 3
    assert further > 1
    # A short memory may lean to one side, but not turn the gradient around.
    means = baseline.mean(axis=0), bootstrapped.mean(axis=0)
    assert float(np.dot(*means)) / (np.linalg.norm(means[0]) * np.linalg.norm(means[1])) > 0.5
