"""Decima's network: what it must not depend on, and the compiled form that must agree with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling.actions import (
    executors_granted,
    sample_legal_action,
    useful_limits,
)
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.models.decima.compiled import decide, scratch_for, weights_of
from loadmaster.models.decima.features import LIMIT_TERMS, STAGE_TERMS, pack
from loadmaster.models.decima.network import ILLEGAL, DecimaNetwork
from loadmaster.models.decima.settings import DecimaSettings

Tables = dict[str, NDArray[Any]]
SIZES = {"max_jobs": 24, "max_stages": 260, "max_edges": 300}


@pytest.fixture(scope="module")
def network() -> DecimaNetwork:
    torch.manual_seed(3)
    built = DecimaNetwork()
    assert built.tilt_limit is not None
    for tilt in (built.tilt_stage, built.tilt_limit):
        assert not tilt.weight.any()  # it begins at 0, which would hide it from the tests below
        torch.nn.init.normal_(tilt.weight)
    return built


@pytest.fixture(scope="module")
def observations() -> Tables:
    """24 different moments of clusters with executors of two classes."""
    rng = np.random.default_rng(5)
    moments: list[Tables] = []
    settings = {"arrivals": "poisson", "interarrival_s": 15, "initial_jobs": 6, "jobs": 18}
    classes = [{"count": 25, "memory": 0.5}, {"count": 25}]
    envs = DagSchedulingVectorEnv(8, executor_classes=classes, **settings, **SIZES)
    seen_now, _ = envs.reset(seed=11)
    for step in range(120):
        if step % 40 == 20:
            moments.append(seen_now)
        each = ({name: table[i] for name, table in seen_now.items()} for i in range(8))
        actions = [sample_legal_action(one, rng) for one in each]
        seen_now = envs.step(np.stack(actions))[0]
    return {name: np.concatenate([m[name] for m in moments]) for name in moments[0]}


def test_scarce_executors_are_told(observations: Tables) -> None:
    """What a stage is told of the executors that could run it, free now and in all."""
    batch = pack(as_tensors(observations))
    stages = observations["stages"][batch.row_observation, batch.row_place]
    demanding = stages[:, seen.MEMORY] > 0.5  # than the smaller class offers
    assert 0 < demanding.sum() < len(demanding)
    fitting, scarce = batch.inputs[:, -2] * 20, batch.inputs[:, -1]
    assert scarce.tolist() == np.where(demanding, 0.5, 0).tolist()
    free = observations["cluster"][batch.row_observation, seen.FREE_EXECUTORS]
    assert fitting[~demanding] == pytest.approx(free[~demanding])
    assert (fitting[demanding].numpy() <= free[demanding] + 1e-5).all()
    assert (fitting[demanding].numpy() < free[demanding] - 0.5).any()


def as_tensors(tables: Tables) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.ascontiguousarray(table)) for name, table in tables.items()}


def log_probabilities(
    network: DecimaNetwork, tables: Tables, rows: NDArray[Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    observation = as_tensors(tables)
    with torch.no_grad():
        scores, batch, embedded = network(observation)
        limits = int(tables["cluster"][0, seen.TOTAL_EXECUTORS])
        chosen = torch.as_tensor(rows)
        limit_scores = network.limit_scores(observation, batch, embedded, chosen, limits)
    return scores.log_softmax(1), limit_scores.log_softmax(1)


def first_legal(tables: Tables) -> NDArray[np.int64]:
    return np.argmax(tables["schedulable"], axis=1)


def test_the_paper_s_weights_and_those_of_our_own_inputs(network: DecimaNetwork) -> None:
    """About 4,800 in the paper; its five inputs of a stage and three of a job are 14 and 7 here."""
    straight = STAGE_TERMS + LIMIT_TERMS
    first_layers = 9 * (16 + 16 + 32) + (4 + 1) * 32  # what our further inputs need there
    everything = sum(weight.numel() for weight in network.parameters())
    assert everything == 5_542
    assert everything - straight - first_layers == pytest.approx(4800, rel=0.1)


def test_a_graph_in_a_batch_scores_as_it_does_alone(
    network: DecimaNetwork, observations: Tables
) -> None:
    rows = first_legal(observations)
    stage, limit = log_probabilities(network, observations, rows)
    for i in range(len(rows)):
        alone = {name: table[i : i + 1] for name, table in observations.items()}
        alone_stage, alone_limit = log_probabilities(network, alone, rows[i : i + 1])
        torch.testing.assert_close(alone_stage[0], stage[i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(alone_limit[0], limit[i], rtol=1e-5, atol=1e-5)


def test_more_padding_changes_nothing(network: DecimaNetwork, observations: Tables) -> None:
    wider = {
        name: np.pad(table, [(0, 0), (0, 7)] + [(0, 0)] * (table.ndim - 2))
        for name, table in observations.items()
        if name not in ("cluster", "schedulable")
    }
    legal = observations["schedulable"]
    wider["schedulable"] = np.concatenate(
        [np.pad(legal[:, :-1], [(0, 0), (0, 7)]), legal[:, -1:]], 1
    )
    wider["cluster"] = observations["cluster"]
    rows = first_legal(observations)
    stage, limit = log_probabilities(network, observations, rows)
    wider_stage, wider_limit = log_probabilities(network, wider, rows)
    assert torch.equal(wider_stage[:, :-7], stage)
    assert torch.equal(wider_limit, limit)


def test_the_order_of_stages_does_not_matter(network: DecimaNetwork, observations: Tables) -> None:
    """Rows shuffled within one observation: the same scores, shuffled."""
    one = {name: table[4:5].copy() for name, table in observations.items()}
    stages, edges = (int(one["cluster"][0, column]) for column in (seen.STAGES, seen.EDGES))
    order = np.random.default_rng(2).permutation(stages)  # new row i was row order[i]
    place = np.argsort(order)
    shuffled = {name: table.copy() for name, table in one.items()}
    for name in ("stages", "stage_job", "schedulable"):
        shuffled[name][0, :stages] = one[name][0, order]
    shuffled["edges"][0, :edges] = place[one["edges"][0, :edges]]
    row = first_legal(one)
    stage, limit = log_probabilities(network, one, row)
    moved_stage, moved_limit = log_probabilities(network, shuffled, place[row])
    torch.testing.assert_close(moved_stage[0, :stages], stage[0, :stages][order])
    torch.testing.assert_close(moved_limit, limit)


def test_a_stage_hears_of_what_comes_after_it_and_not_of_what_came_before(
    network: DecimaNetwork, observations: Tables
) -> None:
    one = {name: table[4:5].copy() for name, table in observations.items()}
    edges = one["edges"][0, : int(one["cluster"][0, seen.EDGES])]
    parent, child = edges[0]

    def embedded(changed: int) -> torch.Tensor:
        """By the observation's rows."""
        tables = {name: table.copy() for name, table in one.items()}
        if changed >= 0:
            tables["stages"][0, changed, seen.MEAN_S] += 3
        with torch.no_grad():
            _, batch, found = network(as_tensors(tables))
        return found.stage[batch.row_place.argsort()]

    before = embedded(-1)
    assert not torch.equal(embedded(child)[parent], before[parent])
    assert torch.equal(embedded(parent)[child], before[child])


def test_illegal_rows_and_limits_cannot_be_chosen(
    network: DecimaNetwork, observations: Tables
) -> None:
    rows = first_legal(observations)
    stage, limit = log_probabilities(network, observations, rows)
    legal = torch.as_tensor(observations["schedulable"][:, :-1] == 1)
    assert (stage.exp()[~legal] == 0).all()
    several = 0
    for i, row in enumerate(rows):
        view = Observation(**{name: table[i] for name, table in observations.items()})
        granted = [executors_granted(view, row, level) for level in range(1, 51)]
        lowest, highest = useful_limits(view, row)
        assert (limit[i, : lowest - 1].exp() == 0).all()
        assert (limit[i, lowest - 1 : highest] > ILLEGAL / 2).all()
        assert (limit[i, highest:].exp() == 0).all()
        # What can be chosen differs in what it places, and what cannot places nothing else.
        assert granted[lowest - 1 : highest] == list(range(1, highest - lowest + 2))
        assert set(granted) == set(granted[lowest - 1 : highest])
        several += highest > lowest
    assert several > 0


def test_gradients_reach_every_weight(network: DecimaNetwork, observations: Tables) -> None:
    observation = as_tensors(observations)
    scores, batch, embedded = network(observation)
    rows = torch.as_tensor(first_legal(observations))
    limits = network.limit_scores(observation, batch, embedded, rows, 50)
    loss = (
        scores.log_softmax(1)[:, :1].clamp(min=-50).sum()
        + limits.log_softmax(1).clamp(min=-50).pow(2).sum()
    )
    loss.backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        if not name.endswith("6.bias"):  # a constant added to all scores changes no choice
            assert weight.grad.abs().sum() > 0, name
    network.zero_grad()


def kernel_for(network: DecimaNetwork) -> tuple[Any, Any]:
    room = scratch_for(network, SIZES["max_stages"], SIZES["max_jobs"], executors=50)
    return weights_of(network), room


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("limits", [True, False])
def test_the_compiled_form_agrees(observations: Tables, graph: bool, limits: bool) -> None:
    torch.manual_seed(3)
    network = DecimaNetwork(DecimaSettings(graph=graph, limits=limits))
    weights, room = kernel_for(network)
    draws = np.random.default_rng(9).random((len(first_legal(observations)), 2))
    for greedy in (True, False):
        chosen = []
        for i, (stage_draw, limit_draw) in enumerate(draws):
            view = Observation(*(observations[field][i] for field in Observation._fields))
            at = (-1.0, -1.0) if greedy else (stage_draw, limit_draw)
            chosen.append(decide(view, weights, room, *at))
        rows = np.array([row for row, _, _ in chosen])
        stage, limit = log_probabilities(network, observations, rows)
        for i, (row, level, log_probability) in enumerate(chosen):
            expected = float(stage[i, row] + limit[i, level - 1])
            assert log_probability == pytest.approx(expected, abs=1e-5)
            if greedy:
                assert stage[i, row] >= stage[i].max() - 1e-6
                assert limit[i, level - 1] >= limit[i].max() - 1e-6


def test_without_limits_a_job_may_hold_every_executor(observations: Tables) -> None:
    network = DecimaNetwork(DecimaSettings(limits=False))
    rows = first_legal(observations)
    _, limit = log_probabilities(network, observations, rows)
    assert (limit[:, -1] == 0).all()
    assert (limit[:, :-1].exp() == 0).all()
    assert not any("limit" in name for name, _ in network.named_parameters())


def test_without_the_graph_a_stage_hears_of_nothing(observations: Tables) -> None:
    network = DecimaNetwork(DecimaSettings(graph=False))
    rows = first_legal(observations)
    without_edges = observations | {"cluster": observations["cluster"].copy()}
    without_edges["cluster"][:, seen.EDGES] = 0
    for found, expected in zip(
        log_probabilities(network, observations, rows),
        log_probabilities(network, without_edges, rows),
        strict=True,
    ):
        assert torch.equal(found, expected)
    assert not any("message" in name or "update" in name for name, _ in network.named_parameters())


def test_the_compiled_form_samples_the_same_distribution(
    network: DecimaNetwork, observations: Tables
) -> None:
    weights, room = kernel_for(network)
    view = Observation(*(observations[field][2] for field in Observation._fields))
    count = 20_000
    draws = np.random.default_rng(1).random((count, 2))
    chosen = [decide(view, weights, room, a, b) for a, b in draws]
    one = {name: table[2:3] for name, table in observations.items()}
    stage, _ = log_probabilities(network, one, np.array([chosen[0][0]]))
    frequency = np.bincount([row for row, _, _ in chosen], minlength=stage.shape[1]) / count
    expected = stage[0].exp().numpy()
    error = np.abs(frequency - expected)
    assert (error <= 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9).all()
