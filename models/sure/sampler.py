"""The neural variational subgraph sampler: scores of nodes, draws by them, and their probability.

A task draws k1 snapshots by its own scores (theta), then in each of these k2 neighbours by theirs
(phi). Both are drawn without replacement (Plackett-Luce): Gumbel numbers are added to the scores,
and the largest sums win. All numbers come from keys, so that a draw can be repeated.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from loadmaster.models.keyed_random import splitmix64, standard_gumbel, standard_normal, stream_key
from loadmaster.models.sure.graph import NONE, DecisionBatch, Draw

SELF, NEIGHBOUR = 0, 1  # last index of scores: theta and phi
MIN_LOG_VARIANCE, MAX_LOG_VARIANCE = -20.0, 2.0
ILLEGAL = -1e9  # score of what may not be drawn; finite, so that gradients stay finite

# Streams of a decision's key, and of a task's.
TASK_STREAM, GATE_STREAM, JOB_ACTION_STREAM = range(3)
SCORE_STREAM, SNAPSHOT_STREAM, NEIGHBOUR_STREAM, ACTION_STREAM = range(4)


def task_keys(key: Tensor, batch: DecisionBatch) -> Tensor:
    """(T,) keys of tasks by the keys of their decisions (B,)."""
    return splitmix64(stream_key(key, TASK_STREAM)[batch.decision], batch.place)


class Scores(NamedTuple):
    """Normal distributions of Omega: a score for each task, snapshot and role."""

    mean: Tensor  # (T, L, 2)
    log_variance: Tensor  # (T, L, 2)
    in_use: Tensor  # (T, L, 2) bool: those that a draw depends on

    def sample(self, task_key: Tensor) -> Tensor:
        """Omega = mu + sigma * eps: (T, L, 2), with eps by the keys of the tasks (T,)."""
        noise = standard_normal(task_key, self.mean.shape[1:], SCORE_STREAM)
        return self.mean + (self.log_variance / 2).exp() * noise


class ScoreHeads(nn.Module):
    """Mean and log variance of both scores, linear in a node's features but for the bounds.

    By linearity the part of a snapshot's own features can be computed once, when it arrives, and
    the part of its age added at each decision.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.Linear(width, 4)  # means of SELF and NEIGHBOUR, then log variances

    def own_part(self, features: Tensor) -> Tensor:
        """(T, L, 4) of what a snapshot has when it arrives (T, L, width)."""
        found: Tensor = self.heads(features)
        return found

    def forward(self, own_part: Tensor, context: Tensor, batch: DecisionBatch) -> Scores:
        """Add the part of the context (B, L, width) and apply the bounds."""
        of_context = context @ self.heads.weight.T
        raw = own_part + of_context[batch.decision]
        log_variance = raw[..., 2:].clamp(MIN_LOG_VARIANCE, MAX_LOG_VARIANCE)
        present = batch.present[batch.decision].unsqueeze(2).expand_as(log_variance)
        return Scores(raw[..., :2].tanh(), log_variance, present)


def draw_subgraphs(
    scores: Tensor, batch: DecisionBatch, snapshots: int, neighbours: int, task_key: Tensor | None
) -> Draw:
    """Draw by `scores` (T, L, 2) with Gumbel numbers by the tasks' keys (T,); None: the best.

    Numbers belong to a task and an age, or a pair of tasks and an age: neither the other decisions
    of the batch nor the order of tasks and candidates has an effect on them.
    """
    keys = scores[..., SELF]
    if task_key is not None:
        ages = torch.arange(keys.shape[1], device=keys.device)
        keys = keys + standard_gumbel(task_key[:, None], ages, SNAPSHOT_STREAM)
    snapshot = _largest(keys, batch.present[batch.decision], snapshots)
    if not neighbours:
        return Draw(snapshot, snapshot.new_empty(*snapshot.shape, 0))
    keys, legal = _neighbour_scores(scores, batch, snapshot)
    if task_key is not None:
        own = stream_key(task_key, NEIGHBOUR_STREAM)[:, None]
        pair_key = splitmix64(own, task_key[batch.candidates.clamp(min=0)])  # (T, K)
        keys = keys + standard_gumbel(pair_key[:, None, :], snapshot[:, :, None])
    return Draw(snapshot, _largest(keys, legal, neighbours))


def _largest(keys: Tensor, legal: Tensor, count: int) -> Tensor:
    """(..., count) places of the largest legal keys, largest first, then NONE."""
    found = keys.masked_fill(~legal, -torch.inf).topk(min(count, keys.shape[-1]))
    places = torch.where(found.values > -torch.inf, found.indices, NONE)
    return pad(places, (0, count - places.shape[-1]), value=NONE)


def _neighbour_scores(
    scores: Tensor, batch: DecisionBatch, snapshot: Tensor
) -> tuple[Tensor, Tensor]:
    """(T, k1, K): scores of the candidates in the drawn snapshots, and which are legal."""
    known = batch.candidates >= 0
    row = batch.candidates.clamp(min=0).unsqueeze(1) * scores.shape[1]
    place = row + snapshot.clamp(min=0).unsqueeze(2)
    found = scores[..., NEIGHBOUR].flatten().index_select(0, place.flatten()).view(place.shape)
    return found, known.unsqueeze(1) & (snapshot >= 0).unsqueeze(2)


def draw_log_prob(scores: Tensor, batch: DecisionBatch, draw: Draw) -> Tensor:
    """log p(g | Omega) of each task's ordered draw: (T,).

    The paper's product has p(v_l | theta) once for every neighbour; once per snapshot is meant.
    """
    return _sum_over_parts(plackett_luce_log_prob, scores, batch, draw)


def draw_entropy(scores: Tensor, batch: DecisionBatch, draw: Draw) -> Tensor:
    """(T,) sums of the entropies of each choice given those before it in the draw.

    Their mean over draws is the entropy of the draw, by the chain rule.
    """
    return _sum_over_parts(plackett_luce_entropy, scores, batch, draw)


def _sum_over_parts(
    of_part: Callable[[Tensor, Tensor, Tensor], Tensor],
    scores: Tensor,
    batch: DecisionBatch,
    draw: Draw,
) -> Tensor:
    """(T,) `of_part` of the snapshots, and of the neighbours in each."""
    total = of_part(scores[..., SELF], batch.present[batch.decision], draw.snapshot)
    if draw.neighbour.shape[2]:
        found, legal = _neighbour_scores(scores, batch, draw.snapshot)
        total = total + of_part(found, legal, draw.neighbour).sum(1)
    return total


def plackett_luce_log_prob(scores: Tensor, legal: Tensor, chosen: Tensor) -> Tensor:
    """Log-probability (...) of drawing `chosen` (..., k) in this order from options (..., n).

    sum_j s_j - log sum exp over what is left before draw j. Illegal options cannot be drawn; NONE
    in `chosen`, behind all others, is no draw.
    """
    scores = torch.where(legal, scores, ILLEGAL)
    real = chosen >= 0
    drawn = torch.where(real, scores.gather(-1, chosen.clamp(min=0)), ILLEGAL)
    rest = scores.masked_fill(_taken(scores, chosen), ILLEGAL).logsumexp(-1, keepdim=True)
    # Left before draw j: what is never drawn, and draws k, k - 1 .. j.
    left = torch.cat([rest, drawn.flip(-1)], dim=-1).logcumsumexp(-1)[..., 1:].flip(-1)
    return torch.where(real, drawn - left, 0.0).sum(-1)


def _taken(scores: Tensor, chosen: Tensor) -> Tensor:
    """(..., n) bool: options that were chosen."""
    options = scores.shape[-1]
    place = torch.where(chosen >= 0, chosen, options)
    empty = torch.zeros(*scores.shape[:-1], options + 1, dtype=torch.bool, device=scores.device)
    return empty.scatter(-1, place, True)[..., :options]


def plackett_luce_entropy(scores: Tensor, legal: Tensor, chosen: Tensor) -> Tensor:
    """Sum (...) over draws of the entropy of a draw given those before it."""
    options = torch.arange(scores.shape[-1], device=scores.device)
    match = chosen.unsqueeze(-1) == options  # (..., k, n)
    before = match.cumsum(-2) - match.long() > 0
    left = torch.where(before | ~legal.unsqueeze(-2), ILLEGAL, scores.unsqueeze(-2))
    logs = left.log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1)
    return torch.where(chosen >= 0, entropy, 0.0).sum(-1)
