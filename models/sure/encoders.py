"""Encoders: features of nodes, and an embedding of each task from the nodes of its graph."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from loadmaster.envs.stream_scaling.observation import (
    RESTART_COLUMNS,
    SNAPSHOT_COLUMNS,
    TASK_COLUMNS,
    TIME_COLUMNS,
)
from loadmaster.models.sure.graph import DecisionBatch

POSITIONS = 3  # columns of `positions`
PER_AGE, PER_LOG_AGE = 1 / 60, 1 / 4


@cache
def _sum_with_neighbours(device: torch.device) -> Any:
    """GINConv without weights: (1 + 0) x_v plus the sum of x_w over incoming edges.

    Imported at the first forward pass: PyTorch Geometric takes 3 s and 200 MB to import, and the
    compiled network needs none of it.
    """
    from torch_geometric.nn import GINConv

    return GINConv(nn.Identity()).to(device)


def positions(window: int, like: Tensor) -> Tensor:
    """(window, POSITIONS) functions of the age."""
    age = torch.arange(window, device=like.device, dtype=like.dtype)
    return torch.stack([age * PER_AGE, age.log1p() * PER_LOG_AGE, (age == 0).to(age)], dim=1)


class NodeEncoder(nn.Module):
    """x = LayerNorm(Linear(features)) of each task and snapshot, plus a context by age.

    The paper's code has BatchNorm, with which a row depends on its batch [D]. What changes from
    decision to decision, the age of a snapshot and of the last restart, is added behind the
    LayerNorm, so that x is computed once, when the snapshot arrives [D].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # One linear map of all features, split by where they come from.
        self.of_snapshot = nn.Linear(len(SNAPSHOT_COLUMNS), width)
        self.of_task = nn.Linear(len(TASK_COLUMNS), width, bias=False)
        self.of_time = nn.Linear(len(TIME_COLUMNS), width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.of_age = nn.Linear(POSITIONS + len(RESTART_COLUMNS), width, bias=False)

    def forward(self, batch: DecisionBatch) -> Tensor:
        """x: (T, L, width)"""
        times = self.of_time(batch.times)[batch.decision]
        summed = self.of_snapshot(batch.snapshots) + self.of_task(batch.tasks).unsqueeze(1) + times
        found: Tensor = self.norm(summed)
        return found

    def context(self, batch: DecisionBatch) -> Tensor:
        """(B, L, width)"""
        decisions, window = batch.present.shape
        ages = positions(window, batch.restart).expand(decisions, -1, -1)
        restart = batch.restart.unsqueeze(1).expand(-1, window, -1)
        found: Tensor = self.of_age(torch.cat([ages, restart], dim=2))
        return found


class GraphLayers(nn.Module):
    """Graph isomorphism network: h' = ReLU(MLP(h_v + sum of h_w over incoming edges))."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            for _ in range(layers)
        )

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """(V, layers * width): the outputs of all layers."""
        found = []
        for layer in self.layers:
            nodes = layer(_sum_with_neighbours(nodes.device)(nodes, edges))
            found.append(nodes)
        return torch.cat(found, dim=1)


class Readout(nn.Module):
    """Sum of the nodes of a graph, then a feed-forward network with shortcut.

    Sums over 40 nodes of a subgraph and over thousands of a whole graph go through the same layers,
    so a LayerNorm gives them one scale [D].
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.feed_forward = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
        self.shortcut = nn.Linear(size, size)

    def forward(self, nodes: Tensor, owner: Tensor, graphs: int) -> Tensor:
        """(graphs, size) of nodes (V, size) with their graphs (V,)."""
        return self.finish(nodes.new_zeros(graphs, nodes.shape[1]).index_add(0, owner, nodes))

    def finish(self, summed: Tensor) -> Tensor:
        scaled = self.norm(summed)
        found: Tensor = self.feed_forward(scaled) + self.shortcut(scaled)
        return found


class OwnHistory(nn.Module):
    """The newest snapshots of the task itself, side by side: no graph."""

    def __init__(self, width: int, layers: int, snapshots: int) -> None:
        super().__init__()
        self.snapshots = snapshots
        self.join = nn.Sequential(
            nn.Linear(snapshots * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, layers * width)
        )

    def forward(self, nodes: Tensor, batch: DecisionBatch) -> Tensor:
        """(T, layers * width) of (T, L, width)"""
        known = torch.where(batch.present[batch.decision].unsqueeze(2), nodes, 0.0)
        whole = known.new_zeros(len(known), self.snapshots, known.shape[2])
        whole[:, : known.shape[1]] = known
        found: Tensor = self.join(whole.flatten(1))
        return found


class SpatioTemporalAttention(nn.Module):
    """Attention over a task's snapshots, then over its neighbours, in turn (as ASTGCN)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.over_time = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.over_tasks = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, nodes: Tensor, batch: DecisionBatch) -> Tensor:
        """(T, layers * width): the newest snapshot of each layer's output."""
        # Without any history the newest row is visible: attention over no row would be nan.
        visible = batch.present[batch.decision].clone()
        visible[:, 0] = True
        mask = visible[:, None, None]
        found = []
        for over_time, over_tasks, norm in zip(
            self.over_time, self.over_tasks, self.norms, strict=True
        ):
            # One head: torch's fused kernel takes four axes only, and is 12 times as fast.
            query, key, value = over_time(nodes).unsqueeze(1).chunk(3, dim=-1)
            nodes = nodes + scaled_dot_product_attention(query, key, value, attn_mask=mask)[:, 0]
            nodes = norm(nodes + _attend_to_neighbours(over_tasks(nodes), batch.edges))
            found.append(nodes[:, 0])
        return torch.cat(found, dim=1)


def _attend_to_neighbours(joint: Tensor, edges: Tensor) -> Tensor:
    """Attention of each task over itself and its neighbours: (T, L, width) of (T, L, 3 width)."""
    from torch_geometric.utils import softmax

    query, key, value = joint.chunk(3, dim=-1)
    own = torch.arange(len(joint), device=joint.device)
    source, target = torch.cat([edges, torch.stack([own, own])], dim=1)
    scores = (query[target] * key[source]).sum(-1) / query.shape[-1] ** 0.5  # (M, L)
    weight = softmax(scores, target, num_nodes=len(joint))
    return torch.zeros_like(query).index_add(0, target, weight.unsqueeze(-1) * value[source])


class RecurrentConvolution(nn.Module):
    """Gated recurrent units whose state is mixed with the neighbours' in each gate (as CCRNN)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.of_input = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(2 * width, 2 * width) for _ in range(layers))
        self.update = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, nodes: Tensor, batch: DecisionBatch) -> Tensor:
        """(T, layers * width): the last state of each layer.

        In step s, layer l reads snapshot s - l: the layers below are ahead, and all step together.
        """
        source, target = batch.edges
        tasks, window, width = nodes.shape
        depth = len(self.gates)
        degree = torch.bincount(target, minlength=tasks).clamp(min=1).unsqueeze(1)

        def with_neighbours(state: Tensor) -> Tensor:
            summed = torch.zeros_like(state).index_add(1, target, state[:, source])
            return torch.cat([state, summed / degree], dim=2)

        of_input, gates, update = map(_stacked, (self.of_input, self.gates, self.update))
        oldest_first = nodes.transpose(0, 1).flip(0)  # (L, T, width)
        # (layers, steps, T, 1) where a layer reads a snapshot that exists.
        known = batch.present[batch.decision].T.flip(0).unsqueeze(2)
        reads = known.new_zeros(depth, window + depth - 1, tasks, 1)
        for layer in range(depth):
            reads[layer, layer : layer + window] = known
        state = nodes.new_zeros(depth, tasks, width)
        for step in range(window + depth - 1):
            newest = oldest_first[min(step, window - 1)].unsqueeze(0)
            inputs = torch.baddbmm(of_input[1], torch.cat([newest, state[:-1]]), of_input[0])
            to_gates, to_update = inputs[..., : 2 * width], inputs[..., 2 * width :]
            mixed = torch.baddbmm(gates[1], with_neighbours(state), gates[0])
            reset, keep = (mixed + to_gates).sigmoid().chunk(2, dim=2)
            mixed = torch.baddbmm(update[1], with_neighbours(reset * state), update[0])
            proposed = (mixed + to_update).tanh()
            later = keep * state + (1 - keep) * proposed
            state = torch.where(reads[:, step], later, state)
        return state.transpose(0, 1).flatten(1)


def _stacked(layers: nn.ModuleList) -> tuple[Tensor, Tensor]:
    """(layers, in, out) weights and (layers, 1, out) biases of linear layers of one shape."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    bias = torch.stack([layer.bias for layer in linear])
    return torch.stack([layer.weight.T for layer in linear]), bias.unsqueeze(1)
