"""Decima's network: invariances, masks, gradients, and parity with the compiled form."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import actions
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.models.decima.compiled import decide, scratch_for
from loadmaster.models.decima.features import LIMIT_TERMS, STAGE_TERMS, pack, stable_order
from loadmaster.models.decima.network import (
    ILLEGAL,
    DagEncoder,
    DecimaNetwork,
    build_network,
    message_schedule,
)
from loadmaster.models.decima.settings import DecimaSettings
from loadmaster.models.decima.weights import weights_of
from loadmaster.platform.bench.encoder import random_dags

pytestmark = pytest.mark.slow

Tables = dict[str, NDArray[Any]]
SIZES = {"max_jobs": 24, "max_stages": 260, "max_edges": 300}


@pytest.fixture(scope="module")
def network() -> DecimaNetwork:
    torch.manual_seed(3)
    built = DecimaNetwork()
    for linear in (built.tilt_stage, built.tilt_limit):
        torch.nn.init.normal_(linear.weight)  # initial zeros would hide it from the tests below
    return built


@pytest.fixture(scope="module")
def observations() -> Tables:
    """24 observations of clusters with two executor classes."""
    rng = np.random.default_rng(5)
    samples: list[Tables] = []
    settings = {"arrivals": "poisson", "interarrival_s": 15, "initial_jobs": 6, "jobs": 18}
    classes = [{"count": 25, "memory": 0.5}, {"count": 25}]
    envs = DagSchedulingVectorEnv(8, executor_classes=classes, **settings, **SIZES)
    current, _ = envs.reset(seed=11)
    for step in range(120):
        if step % 40 == 20:
            samples.append(current)
        legal = [actions.sample_legal_action(row_of(current, i), rng) for i in range(8)]
        current = envs.step(np.stack(legal))[0]
    return {name: np.concatenate([m[name] for m in samples]) for name in samples[0]}


def row_of(tables: Tables, row: int) -> Tables:
    return {name: table[row] for name, table in tables.items()}


def copy_of(tables: Tables, row: int) -> Tables:
    """A batch of one."""
    return {name: table[row : row + 1].copy() for name, table in tables.items()}


def test_inputs_count_executors_that_fit(observations: Tables) -> None:
    batch = pack(as_tensors(observations))
    stages = observations["stages"][batch.row_observation, batch.row_place]
    demanding = stages[:, obs_cols.MEMORY] > 0.5  # than the smaller class offers
    assert 0 < demanding.sum() < len(demanding)
    fitting, scarce = batch.inputs[:, -2] * 20, batch.inputs[:, -1]
    assert scarce.tolist() == np.where(demanding, 0.5, 0).tolist()
    free = observations["cluster"][batch.row_observation, obs_cols.FREE_EXECUTORS]
    assert fitting[~demanding] == pytest.approx(free[~demanding])
    assert (fitting[demanding].numpy() <= free[demanding] + 1e-5).all()
    assert (fitting[demanding].numpy() < free[demanding] - 0.5).any()


def as_tensors(tables: Tables) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.ascontiguousarray(table)) for name, table in tables.items()}


def log_probabilities(
    network: DecimaNetwork, tables: Tables, rows: NDArray[Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    observation = as_tensors(tables)
    scores, batch, embedded = network(observation)
    executors = int(tables["cluster"][0, obs_cols.TOTAL_EXECUTORS])
    limits = network.limit_scores(observation, batch, embedded, torch.as_tensor(rows), executors)
    return scores.log_softmax(1), limits.log_softmax(1)


def first_legal(tables: Tables) -> NDArray[np.int64]:
    return np.argmax(tables["schedulable"], axis=1)


def test_scores_do_not_depend_on_the_batch_and_padding(
    network: DecimaNetwork, observations: Tables
) -> None:
    rows = first_legal(observations)
    stage, limit = log_probabilities(network, observations, rows)
    for i in range(len(rows)):
        found = log_probabilities(network, copy_of(observations, i), rows[i : i + 1])
        for alone, together in zip(found, (stage[i], limit[i]), strict=True):
            torch.testing.assert_close(alone[0], together, rtol=1e-5, atol=1e-5)
    wider = {
        name: np.pad(table, [(0, 0), (0, 7)] + [(0, 0)] * (table.ndim - 2))
        for name, table in observations.items()
    }
    wider["schedulable"][:, [-8, -1]] = wider["schedulable"][:, [-1, -8]]  # the place for idling
    wider["cluster"] = observations["cluster"]
    wider_stage, wider_limit = log_probabilities(network, wider, rows)
    assert torch.equal(wider_stage[:, :-7], stage)
    assert torch.equal(wider_limit, limit)


def test_scores_do_not_depend_on_the_order_of_stages(
    network: DecimaNetwork, observations: Tables
) -> None:
    """Rows shuffled within one observation: the same scores, shuffled."""
    one, shuffled = copy_of(observations, 4), copy_of(observations, 4)
    stages, edges = (int(one["cluster"][0, column]) for column in (obs_cols.STAGES, obs_cols.EDGES))
    order = np.random.default_rng(2).permutation(stages)  # new row i was row order[i]
    place = np.argsort(order)
    for name in ("stages", "stage_job", "schedulable"):
        shuffled[name][0, :stages] = one[name][0, order]
    shuffled["edges"][0, :edges] = place[one["edges"][0, :edges]]
    row = first_legal(one)
    stage, limit = log_probabilities(network, one, row)
    moved_stage, moved_limit = log_probabilities(network, shuffled, place[row])
    torch.testing.assert_close(moved_stage[0, :stages], stage[0, :stages][order])
    torch.testing.assert_close(moved_limit, limit)


def test_illegal_rows_and_limits_have_no_probability(
    network: DecimaNetwork, observations: Tables
) -> None:
    rows = first_legal(observations)
    stage, limit = log_probabilities(network, observations, rows)
    legal = torch.as_tensor(observations["schedulable"][:, :-1] == 1)
    assert (stage.exp()[~legal] == 0).all()
    several = 0
    for i, row in enumerate(rows):
        view = Observation(**row_of(observations, i))
        granted = [actions.executors_granted(view, row, level) for level in range(1, 51)]
        lowest, highest = actions.useful_limits(view, row)
        assert (limit[i, : lowest - 1].exp() == 0).all()
        assert (limit[i, lowest - 1 : highest] > ILLEGAL / 2).all()
        assert (limit[i, highest:].exp() == 0).all()
        # Legal limits differ in the executors they grant; others grant nothing different.
        assert granted[lowest - 1 : highest] == list(range(1, highest - lowest + 2))
        assert set(granted) == set(granted[lowest - 1 : highest])
        several += highest > lowest
    assert several > 0


def test_gradients_reach_every_weight(network: DecimaNetwork, observations: Tables) -> None:
    stage, limit = log_probabilities(network, observations, first_legal(observations))
    (stage[:, :1].clamp(min=-50).sum() + limit.clamp(min=-50).pow(2).sum()).backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        if not name.endswith("6.bias"):  # a constant added to all scores changes no choice
            assert weight.grad.abs().sum() > 0, name
    network.zero_grad()


def kernel_for(network: DecimaNetwork) -> tuple[Any, Any]:
    scratch = scratch_for(network, SIZES["max_stages"], SIZES["max_jobs"], executors=50)
    return weights_of(network), scratch


@pytest.mark.parametrize(
    "removed",
    [
        (),
        ("graph",),
        ("limits",),
        ("graph", "limits"),
        ("summaries",),
        ("path_inputs",),
        ("graph", "summaries"),
        ("graph", "path_inputs"),
    ],
)
def test_compiled_network_equals_torch(observations: Tables, removed: tuple[str, ...]) -> None:
    torch.manual_seed(3)
    network = build_network(dict.fromkeys(removed, False))
    weights, scratch = kernel_for(network)
    sampling = np.random.default_rng(9).random((len(first_legal(observations)), 2))
    for greedy, draws in ((True, np.full_like(sampling, -1)), (False, sampling)):
        chosen = []
        for i, pair in enumerate(draws):
            view = Observation(**row_of(observations, i))
            chosen.append(decide(view, weights, scratch, *pair))
        rows = np.array([row for row, _, _ in chosen])
        stage, limit = log_probabilities(network, observations, rows)
        for i, (row, level, log_probability) in enumerate(chosen):
            expected = float(stage[i, row] + limit[i, level - 1])
            assert log_probability == pytest.approx(expected, abs=1e-5)
            if greedy:
                assert stage[i, row] >= stage[i].max() - 1e-6
                assert limit[i, level - 1] >= limit[i].max() - 1e-6


def test_without_limits_the_limit_is_every_executor(observations: Tables) -> None:
    network = DecimaNetwork(DecimaSettings(limits=False))
    _, limit = log_probabilities(network, observations, first_legal(observations))
    assert (limit[:, -1] == 0).all()
    assert (limit[:, :-1].exp() == 0).all()


def test_without_graph_edges_have_no_effect(observations: Tables) -> None:
    network, rows = DecimaNetwork(DecimaSettings(graph=False)), first_legal(observations)
    without_edges = observations | {"cluster": observations["cluster"].copy()}
    without_edges["cluster"][:, obs_cols.EDGES] = 0
    found = log_probabilities(network, observations, rows)
    expected = log_probabilities(network, without_edges, rows)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_without_summaries_other_jobs_have_no_effect(observations: Tables) -> None:
    """Scores of a job's stages depend on the other jobs only through the summaries."""
    changed = observations | {"stages": observations["stages"].copy()}
    rows, each = first_legal(observations), np.arange(len(observations["cluster"]))
    others = observations["stage_job"] != observations["stage_job"][each, rows][:, None]
    changed["stages"][..., obs_cols.UNSTARTED] += others * 7
    for summaries in (True, False):
        torch.manual_seed(3)
        network = DecimaNetwork(DecimaSettings(summaries=summaries))
        scores = [network(as_tensors(each))[0] for each in (observations, changed)]
        before, after = (own[torch.arange(len(rows)), torch.from_numpy(rows)] for own in scores)
        assert torch.equal(before, after) != summaries


def test_without_path_inputs_the_path_has_no_effect(observations: Tables) -> None:
    changed = observations | {"stages": observations["stages"].copy()}
    changed["stages"][..., obs_cols.CRITICAL_S] *= 3
    rows = first_legal(observations)
    for path_inputs in (True, False):
        torch.manual_seed(3)
        network = DecimaNetwork(DecimaSettings(path_inputs=path_inputs))
        found = log_probabilities(network, observations, rows)
        other = log_probabilities(network, changed, rows)
        equal = all(torch.equal(*pair) for pair in zip(found, other, strict=True))
        assert equal != path_inputs


def test_compiled_network_samples_the_distribution(
    network: DecimaNetwork, observations: Tables
) -> None:
    weights, scratch = kernel_for(network)
    view, count = Observation(**row_of(observations, 2)), 20_000
    draws = np.random.default_rng(1).random((count, 2))
    chosen = [decide(view, weights, scratch, a, b) for a, b in draws]
    stage, _ = log_probabilities(network, copy_of(observations, 2), np.array([chosen[0][0]]))
    frequency = np.bincount([row for row, _, _ in chosen], minlength=stage.shape[1]) / count
    expected = stage[0].exp().detach().numpy()
    error = np.abs(frequency - expected)
    assert (error <= 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9).all()


def test_encoder_equals_the_equation_row_by_row() -> None:
    """Edges may skip levels."""
    batch, _ = random_dags(np.random.default_rng(6), dags=5, depth=6)
    rng = np.random.default_rng(7)
    pairs = rng.integers(len(batch.height), size=(40, 2))
    heights = batch.height.numpy()
    extra = torch.as_tensor(pairs[heights[pairs[:, 0]] > heights[pairs[:, 1]]])
    assert (heights[extra[:, 0]] > heights[extra[:, 1]] + 1).any()
    batch = batch._replace(
        parent=torch.cat([batch.parent, extra[:, 0]]), child=torch.cat([batch.child, extra[:, 1]])
    )
    torch.manual_seed(2)
    encoder = DagEncoder()
    embedded: list[torch.Tensor] = []
    with torch.no_grad():
        for row, own in enumerate(encoder.prepare(batch.inputs)):  # leaves first, as the rows are
            children = batch.child[batch.parent == row].tolist()
            if children:
                messages = torch.stack([encoder.message(embedded[child]) for child in children])
                own = own + encoder.update(messages.sum(0))
            embedded.append(own)
        torch.testing.assert_close(encoder(batch), torch.stack(embedded))


@pytest.mark.parametrize("largest", [9, 200_000])  # beyond what 16 bits hold
def test_stable_order_keeps_equal_keys_in_order(largest: int) -> None:
    keys = torch.randint(0, largest + 1, (500,), generator=torch.Generator().manual_seed(1)) // 3
    assert torch.equal(stable_order(keys), torch.argsort(keys, stable=True))


def test_number_of_weights(network: DecimaNetwork) -> None:
    """About 4,800 in the paper; its five inputs of a stage and three of a job are 14 and 7 here."""
    straight = STAGE_TERMS + LIMIT_TERMS
    first_layers = 9 * (16 + 16 + 32) + (4 + 1) * 32  # what our further inputs need there
    everything = sum(weight.numel() for weight in network.parameters())
    assert everything == 5_542
    assert everything - straight - first_layers == pytest.approx(4800, rel=0.1)


def test_schedule_has_every_edge_once() -> None:
    height = torch.tensor([0, 0, 0, 1, 1, 2])
    parent, child = torch.tensor([3, 5, 4, 5, 3]), torch.tensor([0, 2, 1, 3, 1])
    schedule = message_schedule(height, parent, child)
    assert schedule.rows == [3, 2, 1]
    children_and_parents = [edges.tolist() for edges in schedule.edges]
    assert children_and_parents == [[[], []], [[0, 1, 1], [0, 1, 0]], [[2, 3], [0, 0]]]


def test_embedding_depends_on_descendants_only(
    network: DecimaNetwork, observations: Tables
) -> None:
    parent, child = observations["edges"][4, 0]

    @torch.no_grad()
    def embedded(changed: int, longer_s: float = 3) -> torch.Tensor:
        """By the observation's rows."""
        tables = copy_of(observations, 4)
        tables["stages"][0, changed, obs_cols.MEAN_S] += longer_s
        _, batch, found = network(as_tensors(tables))
        return found.stage[batch.row_place.argsort()]

    before = embedded(child, 0)
    assert not torch.equal(embedded(child)[parent], before[parent])
    assert torch.equal(embedded(parent)[child], before[child])
