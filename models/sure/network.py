"""SURE's network: embeddings of tasks, then whether to act, and the change of each task."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.settings import build_settings
from loadmaster.models.sure.encoders import (
    GraphLayers,
    NodeEncoder,
    OwnHistory,
    Readout,
    RecurrentConvolution,
    SpatioTemporalAttention,
)
from loadmaster.models.sure.graph import DecisionBatch, Draw, Nodes, subgraph_nodes, whole_nodes
from loadmaster.models.sure.heads import ActionDistribution, bounded, head, job_embedding
from loadmaster.models.sure.sampler import (
    NEIGHBOUR,
    SELF,
    ScoreHeads,
    Scores,
    draw_entropy,
    draw_log_prob,
    draw_subgraphs,
    task_keys,
)
from loadmaster.models.sure.settings import SureSettings


class NodeFeatures(NamedTuple):
    """What depends on a task and a snapshot alone: it may be kept while the window moves on."""

    x: Tensor  # (T, L, width)
    score_part: Tensor | None  # (T, L, 4); None: nothing is scored


class Embedding(NamedTuple):
    """Embeddings of T tasks in B decisions."""

    tasks: Tensor  # (T, D): f(g), or the task's part of f(G)
    nodes: Tensor  # (B,) encoded nodes, those in two subgraphs twice


class LogProbs(NamedTuple):
    """Log-probabilities of decisions, each part by itself; see Evaluation."""

    gate: Tensor  # (B,)
    task: Tensor  # (T,)
    sampler: Tensor  # (T,)


class Action(NamedTuple):
    """Decisions of a batch; tasks keep their parallelism where the gate is shut."""

    gate: Tensor  # (B,) bool: act
    change: Tensor  # (T,) as drawn: the environment limits it to [-1, 1]
    draw: Draw | None  # None: nothing is drawn
    nodes: Tensor  # (B,)
    log_prob: LogProbs | None  # of a sampled decision


class Evaluation(NamedTuple):
    """Log-probabilities and entropies of recorded decisions, each part by itself.

    Those of tasks are 0 where the gate is shut. One action for the job counts in equal shares for
    its tasks. Those of the sampler are given eps, whose distribution has no parameters; they are 0
    where nothing is drawn.
    """

    log_prob: LogProbs
    entropy: LogProbs
    scores: Scores | None
    embedding: Embedding


class SureNetwork(nn.Module):
    """A distribution of actions that begins as a rule's: the heads add to priors, first nothing."""

    def __init__(self, settings: SureSettings) -> None:
        super().__init__()
        width, layers = settings.width, settings.layers
        size = layers * width
        self.settings = settings
        self.nodes = NodeEncoder(width)
        self.score_heads = ScoreHeads(width) if settings.scored else None
        # Added to the nodes of the task itself: a sum does not know which of its nodes they are.
        self.anchor = nn.Parameter(torch.randn(width) / width**0.5) if settings.draws else None
        self.encoder: nn.Module
        if settings.sampler == "none":
            self.encoder = OwnHistory(width, layers, settings.snapshots)
        elif settings.encoder == "attention":
            self.encoder = SpatioTemporalAttention(width, layers)
        elif settings.encoder == "recurrent":
            self.encoder = RecurrentConvolution(width, layers)
        else:
            self.encoder = GraphLayers(width, layers)
        self.readout = Readout(size)
        self.change = head(2 * size if settings.actions == "job" else size, 100, 50, 1)
        self.gate = head(2 * size, 50, 1)
        self.log_std = nn.Parameter(torch.tensor(settings.log_std))

    def window(self, batch: DecisionBatch) -> DecisionBatch:
        """The part of the history that the settings use; all other methods expect it."""
        if self.settings.sampler == "spatial":
            return batch.newest(1)
        return batch.newest(self.settings.snapshots) if self.settings.sampler == "none" else batch

    def node_features(self, batch: DecisionBatch) -> NodeFeatures:
        x = self.nodes(batch)
        return NodeFeatures(x, None if self.score_heads is None else self.score_heads.own_part(x))

    def score(self, features: NodeFeatures, batch: DecisionBatch) -> Scores | None:
        """Scores of all nodes; None if nothing is scored."""
        if self.score_heads is None or features.score_part is None:
            return None
        found: Scores = self.score_heads(features.score_part, self.nodes.context(batch), batch)
        in_use = found.in_use.clone()
        in_use[..., SELF] &= self.settings.sampler != "spatial"
        in_use[..., NEIGHBOUR] &= self.settings.drawn_neighbours > 0
        return found._replace(in_use=in_use)

    def omega(self, scores: Scores | None, batch: DecisionBatch, key: Tensor | None) -> Tensor:
        """(T, L, 2) scores that decide the draw: sampled by keys (B,), or their means.

        Divided by the temperature; 0 for all nodes if nothing is scored.
        """
        if scores is None:
            return batch.snapshots.new_zeros(*batch.snapshots.shape[:2], 2)
        found = scores.mean if key is None else scores.sample(task_keys(key, batch))
        return found / self.settings.temperature

    def draw(
        self, scores: Scores | None, batch: DecisionBatch, key: Tensor, greedy: bool = False
    ) -> Draw | None:
        """Draw by keys (B,); greedy: by the means. A random subgraph is drawn in either case.

        Keys repeat a draw with the weights that made it. Other weights may draw otherwise: a
        learner draws once, before its first update, and keeps the draws.
        """
        if not self.settings.draws:
            return None
        by_mean = greedy and self.settings.scored
        return draw_subgraphs(
            self.omega(scores, batch, None if by_mean else key).detach(),
            batch,
            self.settings.drawn_snapshots,
            self.settings.drawn_neighbours,
            None if by_mean else task_keys(key, batch),
        )

    def embed(self, features: NodeFeatures, batch: DecisionBatch, draw: Draw | None) -> Embedding:
        """Encode the drawn subgraph of every task, or the whole graph once for all of them."""
        if draw is not None:
            nodes = subgraph_nodes(batch, draw)
        elif isinstance(self.encoder, GraphLayers):
            nodes = whole_nodes(batch)
        else:
            real = batch.present.sum(1) * batch.sizes
            encoded = self.encoder(features.x + self._context(batch), batch)
            return Embedding(self.readout.finish(encoded), real)
        encoded = self.encoder(self._inputs(features, batch, nodes, draw is not None), nodes.edges)
        return Embedding(
            self.readout(encoded, nodes.owner, len(batch.tasks)), nodes.per_decision(batch)
        )

    def embed_whole(self, features: NodeFeatures, batch: DecisionBatch) -> Tensor:
        """f(G), the embedding of each decision's whole graph: (B, D). For training alone."""
        nodes = whole_nodes(batch)
        encoded = self.encoder(self._inputs(features, batch, nodes, False), nodes.edges)
        found: Tensor = self.readout(encoded, batch.decision[nodes.task], len(batch.sizes))
        return found

    def _context(self, batch: DecisionBatch) -> Tensor:
        """(T, L, width)"""
        found: Tensor = self.nodes.context(batch)[batch.decision]
        return found

    def _inputs(
        self, features: NodeFeatures, batch: DecisionBatch, nodes: Nodes, mark: bool
    ) -> Tensor:
        """(V, width); `mark`: add the mark of a subgraph's own task."""
        window = features.x.shape[1]
        x = features.x.flatten(0, 1).index_select(0, nodes.task * window + nodes.age)
        context = self.nodes.context(batch).flatten(0, 1)
        x = x + context.index_select(0, batch.decision[nodes.task] * window + nodes.age)
        if not mark or self.anchor is None:
            return x
        return x + (nodes.task == nodes.owner).unsqueeze(1) * self.anchor

    def distribution(self, embedding: Embedding, batch: DecisionBatch) -> ActionDistribution:
        """mean = prior + bounded head, gate log-odds = prior + bounded head."""
        settings, tasks, prior = self.settings, embedding.tasks, batch.prior
        job, by_job = job_embedding(tasks, batch), settings.actions == "job"
        if by_job:
            prior, tasks = batch.sum_by_decision(prior) / batch.sizes, job
        return ActionDistribution(
            batch.gate_prior + bounded(self.gate(job), settings.gate_bound),
            prior + bounded(self.change(tasks), settings.change_bound),
            self.log_std,
            by_job,
        )

    @torch.no_grad()
    def act(self, batch: DecisionBatch, key: Tensor, greedy: bool = False) -> Action:
        """Decide by keys (B,); greedy: the likelier gate, the mean change, the best subgraph."""
        batch = self.window(batch)
        features = self.node_features(batch)
        return self.act_on(features, batch, key, greedy)

    @torch.no_grad()
    def act_on(
        self, features: NodeFeatures, batch: DecisionBatch, key: Tensor, greedy: bool = False
    ) -> Action:
        """As `act`, with features that were kept."""
        scores = self.score(features, batch)
        draw = self.draw(scores, batch, key, greedy)
        embedding = self.embed(features, batch, draw)
        found = self.distribution(embedding, batch)
        if greedy:
            return Action(*found.most_likely(batch), draw, embedding.nodes, None)
        gate, change = found.sample(batch, key)
        log_prob = self._log_prob(found, scores, batch, key, draw, gate, change)
        return Action(gate, change, draw, embedding.nodes, log_prob)

    def evaluate(
        self, batch: DecisionBatch, key: Tensor, draw: Draw | None, gate: Tensor, change: Tensor
    ) -> Evaluation:
        """Probabilities of decisions that were made with these keys, draws, gates and changes."""
        batch = self.window(batch)
        features = self.node_features(batch)
        scores = self.score(features, batch)
        embedding = self.embed(features, batch, draw)
        found = self.distribution(embedding, batch)
        log_prob = self._log_prob(found, scores, batch, key, draw, gate, change)
        of_draw = torch.zeros_like(batch.prior)
        if draw is not None:
            of_draw = draw_entropy(self.omega(scores, batch, key), batch, draw)
        entropy = LogProbs(*found.entropy(batch, gate), of_draw)
        return Evaluation(log_prob, entropy, scores, embedding)

    def _log_prob(
        self,
        found: ActionDistribution,
        scores: Scores | None,
        batch: DecisionBatch,
        key: Tensor,
        draw: Draw | None,
        gate: Tensor,
        change: Tensor,
    ) -> LogProbs:
        of_draw = torch.zeros_like(batch.prior)
        if draw is not None:
            of_draw = draw_log_prob(self.omega(scores, batch, key), batch, draw)
        return LogProbs(*found.log_prob(batch, gate, change), of_draw)


def build_network(settings: Mapping[str, Any]) -> SureNetwork:
    """Build a network from the settings of a bundle; an InputError names a wrong one."""
    return SureNetwork(build_settings(SureSettings, settings))
