"""SURE's network: candidates, graphs, independence of batches, options, the start from a rule."""

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.models.sure.encoders import RecurrentConvolution
from loadmaster.models.sure.graph import (
    NONE,
    DecisionBatch,
    Draw,
    job_graph,
    pack,
    subgraph_nodes,
    whole_nodes,
)
from loadmaster.models.sure.network import Evaluation, SureNetwork, build_network
from loadmaster.models.sure.objective import objective_terms, weighted_losses
from tests.models.sure.builders import Tables, random_observation, reordered

OPTIONS: dict[str, dict[str, Any]] = {
    "learned": {},
    "random subgraph": {"sampler": "random"},
    "temporal only": {"sampler": "temporal"},
    "spatial only": {"sampler": "spatial"},
    "full graph": {"sampler": "full"},
    "attention": {"sampler": "full", "encoder": "attention"},
    "recurrent": {"sampler": "full", "encoder": "recurrent"},
    "no graph": {"sampler": "none"},
    "one action for the job": {"actions": "job"},
    "no mutual information": {"mutual_information_weight": 0},
}
SMALL = {"width": 10, "snapshots": 4, "neighbours": 2, "gate_bound": 30.0, "change_bound": 30.0}
every_option = pytest.mark.parametrize("option", OPTIONS)


def trained(option: str) -> SureNetwork:
    """A network whose heads are not 0, as after training."""
    torch.manual_seed(1)
    network = build_network({**SMALL, **OPTIONS[option]})
    for head in (network.change[-1], network.gate[-1]):
        torch.nn.init.normal_(head.weight)
    return network


@pytest.fixture(scope="module")
def jobs() -> list[Tables]:
    """Of different sizes; the last but one has a short history, the last a single task."""
    rng = np.random.default_rng(1)
    found = [random_observation(rng, tasks, 9) for tasks in (5, 14)]
    return [*found, random_observation(rng, 7, 9, history=2), random_observation(rng, 1, 6)]


def decided(network: SureNetwork, batch: DecisionBatch, key: torch.Tensor) -> Evaluation:
    action = network.act(batch, key)
    gate = torch.ones_like(action.gate)  # else nothing of the tasks would count
    return network.evaluate(batch, key, action.draw, gate, action.change)


def test_candidates_are_within_the_hops_up_and_down() -> None:
    chain = np.stack([np.arange(5), np.arange(1, 6)])  # 0 .. 5
    found = job_graph(chain, 6, 2).candidates
    assert [sorted(set(row) - {NONE}) for row in found.tolist()] == [
        [1, 2], [0, 2, 3], [0, 1, 3, 4], [1, 2, 4, 5], [2, 3, 5], [3, 4],
    ]  # fmt: skip
    fork = np.array([[0, 0, 1], [1, 2, 3]])  # 1 and 2 are siblings, which is neither up nor down
    found = job_graph(fork, 4, 3).candidates
    assert [set(row) - {NONE} for row in found.tolist()] == [{1, 2, 3}, {0, 3}, {0}, {0, 1}]
    assert job_graph(np.zeros((2, 0), np.int64), 2, 3).candidates.tolist() == [[NONE], [NONE]]


def test_subgraph_has_edges_inside_snapshots_and_links_in_time() -> None:
    """Chain 0 - 1 - 2 - 3; task 1 has the candidates 0, 2, 3 and draws ages 2, then 5."""
    rng = np.random.default_rng(2)
    tables = random_observation(rng, 4, 8)
    tables["edges"] = np.stack([np.arange(3), np.arange(1, 4)])
    batch = pack([tables], 3)
    snapshot = torch.full((4, 3), NONE)
    neighbour = torch.full((4, 3, 2), NONE)
    snapshot[1, :2] = torch.tensor([2, 5])
    neighbour[1, 0] = torch.tensor([2, 1])  # tasks 3 and 2
    neighbour[1, 1, 0] = 2  # task 3
    nodes = subgraph_nodes(batch, Draw(snapshot, neighbour))
    named = [*zip(nodes.task.tolist(), nodes.age.tolist(), strict=True)]
    assert named == [(1, 5), (3, 5), (1, 2), (3, 2), (2, 2)]
    assert nodes.owner.tolist() == [1] * 5
    edges = {(named[a], named[b]) for a, b in nodes.edges.T.tolist()}
    inside = {((1, 2), (2, 2)), ((2, 2), (3, 2))}
    assert edges == inside | {(b, a) for a, b in inside} | {((1, 5), (1, 2))}
    assert nodes.per_decision(batch).tolist() == [5]


def test_whole_graph_has_every_task_in_every_snapshot() -> None:
    rng = np.random.default_rng(3)
    tables = random_observation(rng, 3, 6, history=2)
    tables["edges"] = np.array([[0], [2]])
    batch = pack([tables, random_observation(rng, 2, 4)], 3)
    nodes = whole_nodes(batch)
    assert nodes.per_decision(batch).tolist() == [3 * 2, 2 * 4]
    named = [*zip(nodes.task.tolist(), nodes.age.tolist(), strict=True)]
    edges = {(named[a], named[b]) for a, b in nodes.edges.T.tolist() if named[a][0] < 3}
    inside = {((0, age), (2, age)) for age in range(2)}
    in_time = {((task, 1), (task, 0)) for task in range(3)}
    assert edges == inside | {(b, a) for a, b in inside} | in_time


@every_option
def test_batch_gives_what_each_decision_gives_alone(option: str, jobs: list[Tables]) -> None:
    """Different jobs, windows and histories: neither padding nor the batch has an effect."""
    network, key = trained(option), torch.arange(len(jobs)) + 40
    batch = pack(jobs, 3)
    action, whole = network.act(batch, key), decided(network, batch, key)
    row = 0
    for number, tables in enumerate(jobs):
        one, own_key = pack([tables], 3), key[number : number + 1]
        alone, parts = network.act(one, own_key), decided(network, one, own_key)
        rows = slice(row, row := row + len(tables["tasks"]))
        torch.testing.assert_close(action.change[rows], alone.change, rtol=1e-4, atol=1e-5)
        assert action.gate[number] == alone.gate[0]
        assert action.nodes[number] == alone.nodes[0]
        for together, by_itself in (
            (whole.log_prob.task, parts.log_prob.task),
            (whole.log_prob.sampler, parts.log_prob.sampler),
            (whole.entropy.task, parts.entropy.task),
            (whole.entropy.sampler, parts.entropy.sampler),
        ):
            torch.testing.assert_close(together[rows], by_itself, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            whole.log_prob.gate[number], parts.log_prob.gate[0], rtol=1e-4, atol=1e-5
        )
    if network.settings.draws:
        embedded = network.window(batch).first(2)
        both = network.embed_whole(network.node_features(embedded), embedded)
        second = network.window(pack(jobs[1:2], 3))
        alone_whole = network.embed_whole(network.node_features(second), second)
        torch.testing.assert_close(both[1:], alone_whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("option", sorted(OPTIONS.keys() - {"random subgraph"}))
def test_reordered_tasks_permute_the_outputs(option: str, jobs: list[Tables]) -> None:
    """Of greedy decisions: keys of tasks go by their number."""
    network, key = trained(option), torch.tensor([3])
    tables, order = jobs[1], np.random.default_rng(4).permutation(14)
    before = network.act(pack([tables], 3), key, greedy=True)
    after = network.act(pack([reordered(tables, order)], 3), key, greedy=True)
    torch.testing.assert_close(after.change, before.change[order], rtol=1e-4, atol=1e-5)
    assert after.gate == before.gate
    assert after.nodes == before.nodes


@every_option
def test_options_give_finite_gradients(option: str, jobs: list[Tables]) -> None:
    """Of all weights, from all terms together."""
    network, key = trained(option), torch.arange(len(jobs))
    batch = pack(jobs, 3)
    parts = decided(network, batch, key)
    terms = objective_terms(network, batch, parts)
    loss = parts.log_prob.gate.sum() + parts.log_prob.task.sum() + parts.entropy.task.sum()
    loss = loss + parts.entropy.gate.sum() + parts.entropy.sampler.sum()
    (loss + sum(weighted_losses(terms, network.settings).values())).backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any(), name


@every_option
def test_untrained_network_acts_as_the_rule(option: str, jobs: list[Tables]) -> None:
    network = build_network({**SMALL, **OPTIONS[option]})
    rng = np.random.default_rng(5)
    priors = [rng.uniform(-1, 1, len(tables["tasks"])) for tables in jobs]
    gates = [3.0, -3.0, 0.5, -0.5]
    batch = pack(jobs, 3, priors, gates)
    action = network.act(batch, torch.arange(4), greedy=True)
    assert action.gate.tolist() == [True, False, True, False]
    if network.settings.actions == "job":
        expected = np.concatenate([np.full(len(prior), prior.mean()) for prior in priors])
    else:
        expected = np.concatenate(priors)
    assert action.change.numpy() == pytest.approx(expected, abs=1e-6)


def test_drawn_actions_follow_their_distribution() -> None:
    """The gate's frequency, and mean, deviation and log-density of the changes."""
    network = build_network({**SMALL, "sampler": "none"})
    tables = random_observation(np.random.default_rng(6), 2, 4)
    count = 4000
    batch = pack([tables] * count, 3, [np.array([0.3, -0.2])] * count, [-1.0] * count)
    key = torch.arange(count)
    action = network.act(batch, key)
    chance = 1 / (1 + np.e)
    assert action.gate.float().mean() == pytest.approx(chance, abs=4 * (chance / count) ** 0.5)
    changes, std = action.change.view(-1, 2), np.exp(network.settings.log_std)
    assert changes.mean(0).tolist() == pytest.approx([0.3, -0.2], abs=4 * std / count**0.5)
    assert changes.std(0).tolist() == pytest.approx([std, std], rel=0.05)
    found = network.evaluate(batch, key, None, action.gate, action.change)
    density = torch.distributions.Normal(torch.tensor([0.3, -0.2]), std).log_prob(changes)
    counted = torch.where(action.gate[:, None], density, 0.0).flatten()
    torch.testing.assert_close(found.log_prob.task, counted, rtol=1e-4, atol=1e-5)
    acting = torch.distributions.Bernoulli(logits=torch.tensor(-1.0))
    torch.testing.assert_close(found.log_prob.gate, acting.log_prob(action.gate.float()))
    torch.testing.assert_close(found.entropy.gate, acting.entropy().expand(count))


def test_one_action_for_the_job_counts_once(jobs: list[Tables]) -> None:
    network, key = trained("one action for the job"), torch.arange(len(jobs))
    batch = pack(jobs, 3)
    action, found = network.act(batch, key), decided(network, batch, key)
    for number in range(len(jobs)):
        rows = batch.decision == number
        assert len(action.change[rows].unique()) == 1
        entropy = torch.distributions.Normal(0, np.exp(network.settings.log_std)).entropy()
        torch.testing.assert_close(found.entropy.task[rows].sum(), entropy)


def test_features_of_a_snapshot_can_be_kept() -> None:
    """They do not change while the window moves on; what does is added at the decision."""
    network = trained("learned")
    tables = random_observation(np.random.default_rng(7), 5, 10)
    later = {**tables, "restart": tables["restart"] + 1}
    earlier = {**tables, "snapshots": tables["snapshots"][:-3], "times": tables["times"][:-3]}
    now, past = (network.node_features(pack([known], 3)) for known in (later, earlier))
    torch.testing.assert_close(now.x[:, 3:], past.x)
    assert now.score_part is not None
    assert past.score_part is not None
    torch.testing.assert_close(now.score_part[:, 3:], past.score_part)
    batch, old = pack([later], 3), pack([earlier], 3)
    scores, before = network.score(now, batch), network.score(past, old)
    assert scores is not None
    assert before is not None
    assert not torch.allclose(scores.mean[:, 3:], before.mean)
    x = now.x + network.nodes.context(batch)[batch.decision]
    assert network.score_heads is not None
    raw = network.score_heads.own_part(x)
    torch.testing.assert_close(scores.mean, raw[..., :2].tanh(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fault",
    [
        {"snapshots": np.zeros((9, 5, 11), np.float32)},
        {"times": np.zeros((9, 4), np.float32)},
        {"tasks": np.zeros((6, 5), np.float32)},
        {"restart": np.zeros(2, np.float32)},
        {"edges": np.array([[0], [5]])},
        {"edges": np.array([[-1], [2]])},
        {"edges": np.zeros((3, 2), np.int64)},
    ],
)
def test_wrong_tables_are_input_errors(fault: Tables, jobs: list[Tables]) -> None:
    with pytest.raises(
        InputError, match=next(iter(fault)) if "tasks" not in fault else "snapshots"
    ):
        pack([{**jobs[0], **fault}], 3)


def test_wrong_priors_and_settings_are_input_errors(jobs: list[Tables]) -> None:
    with pytest.raises(InputError):
        pack(jobs[:1], 3, [np.zeros(4)])
    with pytest.raises(InputError):
        pack(jobs[:2], 3, gate_priors=[0.0])
    with pytest.raises(InputError):
        pack([], 3)
    with pytest.raises(InputError, match="sampler=full"):
        build_network({"encoder": "attention"})


def test_recurrent_layers_that_step_together_are_those_one_after_the_other(
    jobs: list[Tables],
) -> None:
    torch.manual_seed(2)
    network = RecurrentConvolution(6, 3)
    batch = pack(jobs[:3], 3)
    nodes = torch.randn(len(batch.tasks), batch.present.shape[1], 6)
    present = batch.present[batch.decision]
    source, target = batch.edges
    degree = torch.bincount(target, minlength=len(nodes)).clamp(min=1).unsqueeze(1)

    def mixed(state: torch.Tensor) -> torch.Tensor:
        summed = torch.zeros_like(state).index_add(0, target, state[source])
        return torch.cat([state, summed / degree], dim=1)

    inputs, expected = nodes, []
    for of_input, gates, update in zip(
        network.of_input, network.gates, network.update, strict=True
    ):
        state, states = torch.zeros(len(nodes), 6), []
        for age in reversed(range(nodes.shape[1])):
            reset, keep, proposed = of_input(inputs[:, age]).chunk(3, dim=1)
            of_reset, of_keep = gates(mixed(state)).chunk(2, dim=1)
            reset, keep = (reset + of_reset).sigmoid(), (keep + of_keep).sigmoid()
            proposed = (proposed + update(mixed(reset * state))).tanh()
            later = keep * state + (1 - keep) * proposed
            state = torch.where(present[:, age, None], later, state)
            states.append(state)
        inputs = torch.stack(states[::-1], dim=1)
        expected.append(state)
    torch.testing.assert_close(network(nodes, batch), torch.cat(expected, dim=1))
