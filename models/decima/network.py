"""The network: embeddings of stages, jobs and the cluster, then scores of stages and limits."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.settings import build_settings
from loadmaster.models.decima.features import (
    JOB_INPUTS,
    LIMIT_INPUTS,
    LIMIT_TERMS,
    LONGEST_PATH,
    STAGE_INPUTS,
    STAGE_TERMS,
    StageBatch,
    limit_inputs,
    limit_terms,
    pack,
    stable_order,
    stage_terms,
)
from loadmaster.models.decima.prior import KEY_TERMS, OUTPUTS, SEARCHED, TERMS, Tilts
from loadmaster.models.decima.prior_batch import limit_prior, stage_prior
from loadmaster.models.decima.settings import DecimaSettings

SLOPE = 0.2  # of LeakyReLU below 0
DEFAULTS = DecimaSettings()
ILLEGAL = -1e9  # score of what may not be chosen; finite, so that gradients stay finite


class Embeddings(NamedTuple):
    """D numbers for every stage, job and observation."""

    stage: Tensor  # (R, D)
    job: Tensor  # (J, D)
    cluster: Tensor  # (B, D)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with LeakyReLU between them, and none after the last."""
    layers: list[nn.Module] = []
    for given, made in pairwise(sizes):
        layers += [nn.Linear(given, made), nn.LeakyReLU(SLOPE, inplace=True)]
    return nn.Sequential(*layers[:-1])


def _zeros(terms: int) -> nn.Linear:
    layer = nn.Linear(terms, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


class MessageSchedule(NamedTuple):
    """Rows and edges by level (L levels, leaves first)."""

    rows: list[int]  # (L,) rows of each level
    # (L,) by the parents' level, each (2, K): row of the child, row of the parent in its level
    edges: tuple[Tensor, ...]


def message_schedule(height: Tensor, parent: Tensor, child: Tensor) -> MessageSchedule:
    """Group edges by the height of their parents; rows are sorted by height."""
    counts = torch.bincount(height, minlength=1)  # (L,)
    level = height[parent]
    in_level = parent - (counts.cumsum(0) - counts)[level]
    edges = torch.stack([child, in_level])[:, stable_order(level)]
    edge_counts = torch.bincount(level, minlength=len(counts))
    return MessageSchedule(counts.tolist(), torch.split(edges, edge_counts.tolist(), dim=1))


@cache
def _sum_messages() -> Any:
    """Message passing without weights: the sum over incoming edges.

    Imported at the first forward pass: PyTorch Geometric takes 3 s and 200 MB to import, and
    processes that decide by the compiled network need none of it.
    """
    from torch_geometric.nn import SimpleConv

    return SimpleConv(aggr="sum")


class DagEncoder(nn.Module):
    """Messages from the leaves upwards: e_v = g(sum over children w of f(e_w)) + x_v (eq. 1).

    The same f and g serve every stage and level, so a DAG may have any size and depth.
    """

    def __init__(self, settings: DecimaSettings = DEFAULTS) -> None:
        super().__init__()
        width, hidden = settings.width, settings.hidden
        self.width = width
        self.prepare = mlp(STAGE_INPUTS, hidden, width, width)
        self.message = mlp(width, hidden, width, width) if settings.graph else None  # f
        self.update = mlp(width, hidden, width, width) if settings.graph else None  # g

    def forward(self, batch: StageBatch, schedule: MessageSchedule | None = None) -> Tensor:
        """(R, width)"""
        own: Tensor = self.prepare(batch.inputs)
        if self.message is None or self.update is None:
            return own
        if schedule is None:
            schedule = message_schedule(batch.height, batch.parent, batch.child)
        embedded: list[Tensor] = []
        messages: list[Tensor] = []
        for rows, edges in zip(torch.split(own, schedule.rows), schedule.edges, strict=True):
            if embedded:
                sent = torch.cat(messages)
                size = (len(sent), len(rows))
                rows = rows + self.update(_sum_messages()((sent, None), edges, size=size))
            embedded.append(rows)
            if len(embedded) < len(schedule.rows):
                messages.append(self.message(rows))
        return torch.cat(embedded)


class DecimaNetwork(nn.Module):
    """Scores for which stage comes next, and for how many executors its job may hold."""

    tilt_prior: Tensor | None
    tilt_job: Tensor | None
    tilt_key: Tensor | None

    def __init__(self, settings: DecimaSettings = DEFAULTS) -> None:
        super().__init__()
        width, hidden = settings.width, settings.hidden
        self.settings = settings
        self.encoder = DagEncoder(settings)
        self.summarise_stage = self.summarise_job = None
        if settings.summaries:
            self.summarise_stage = mlp(STAGE_INPUTS + width, hidden, width, width)
            self.summarise_job = mlp(width, hidden, width, width)
        self.score_stage = mlp(STAGE_INPUTS + 3 * width, 32, 16, 8, 1)
        known = JOB_INPUTS + 2 * width + LIMIT_INPUTS
        self.score_limit = mlp(known, 32, 16, 8, 1) if settings.limits else None
        # Linear terms from the inputs to a score: few weights that each shift all decisions, which
        # evolution can search. In bundles and settings they are called `tilt_*`.
        self.tilt_stage = _zeros(STAGE_TERMS)
        self.tilt_limit = _zeros(LIMIT_TERMS) if settings.limits else None
        # The prior's parameters have no gradient, since caps are whole numbers.
        self.register_buffer("tilt_prior", None)
        self.register_buffer("tilt_job", None)
        self.register_buffer("tilt_key", None)
        if settings.prior is not None:
            self.tilt_prior = torch.zeros(len(SEARCHED))
            self.tilt_job = torch.zeros(OUTPUTS, TERMS)
            self.tilt_key = torch.zeros(KEY_TERMS)
            for head in (self.score_stage, self.score_limit):
                if head is not None:  # it adds nothing to the prior before it has learnt
                    for weight in head[-1].parameters():
                        nn.init.zeros_(weight)

    def embed(
        self, batch: StageBatch, observations: int, schedule: MessageSchedule | None = None
    ) -> Embeddings:
        """A job is the sum of its stages, the cluster the sum of its jobs; 0 without summaries."""
        stage = self.encoder(batch, schedule)
        width = self.encoder.width
        if self.summarise_stage is None or self.summarise_job is None:
            jobs = len(batch.job_inputs)
            return Embeddings(
                stage, stage.new_zeros(jobs, width), stage.new_zeros(observations, width)
            )
        stages = self.summarise_stage(torch.cat([batch.inputs, stage], dim=1))
        job = stages.new_zeros(len(batch.job_inputs), width).index_add(0, batch.row_job, stages)
        jobs = self.summarise_job(job)
        cluster = stages.new_zeros(observations, width).index_add(0, batch.job_observation, jobs)
        return Embeddings(stage, job, cluster)

    def without_unread(self, batch: StageBatch) -> StageBatch:
        """The batch with 0 for inputs that the network does not read."""
        if self.settings.path_inputs:
            return batch
        inputs = batch.inputs.clone()
        inputs[:, LONGEST_PATH] = 0
        return batch._replace(inputs=inputs)

    def stage_scores(self, batch: StageBatch, embedded: Embeddings, stages: int) -> Tensor:
        """(B, stages): a score for every row of the observation, ILLEGAL where not schedulable."""
        legal = batch.schedulable.nonzero().squeeze(1)
        owner = batch.row_observation.index_select(0, legal)
        scored = self.score_rows(batch, embedded, legal, owner)
        place = owner * stages + batch.row_place.index_select(0, legal)
        scores = scored.new_full((len(embedded.cluster) * stages,), ILLEGAL)
        return scores.index_copy(0, place, scored).view(-1, stages)

    def score_rows(
        self, batch: StageBatch, embedded: Embeddings, rows: Tensor, owner: Tensor
    ) -> Tensor:
        """(rows,) scores of these stages; `owner` is the observation of each."""
        parts = [
            batch.inputs.index_select(0, rows),
            embedded.stage.index_select(0, rows),
            embedded.job.index_select(0, batch.row_job.index_select(0, rows)),
            embedded.cluster.index_select(0, owner),
        ]
        scored: Tensor = self.score_stage(torch.cat(parts, dim=1))
        linear: Tensor = self.tilt_stage(stage_terms(parts[0]))
        score = (scored + linear).squeeze(1)
        if self.settings.prior is None or self.tilts is None:
            return score
        return score + stage_prior(batch, self.settings.prior, self.tilts, rows, owner)

    def limit_scores(
        self,
        observation: dict[str, Tensor],
        batch: StageBatch,
        embedded: Embeddings,
        stage: Tensor,
        limits: int,
    ) -> Tensor:
        """(B, limits): scores of the limits 1, 2 .. for the job of each observation's `stage`.

        Limits that place no executor, or no more than a lower one, are ILLEGAL and not computed.
        """
        each = torch.arange(len(stage), device=stage.device)
        total = observation["cluster"][:, obs_cols.TOTAL_EXECUTORS].long()
        scores = observation["cluster"].new_full((len(stage), limits), ILLEGAL)
        if self.score_limit is None or self.tilt_limit is None:
            return scores.index_put((each, total - 1), scores.new_zeros(()))
        place = observation["stage_job"][each, stage].long()
        chosen = observation["stages"][each, stage]
        placed = torch.minimum(chosen[:, obs_cols.UNASSIGNED], chosen[:, obs_cols.FITTING]).long()
        lowest = observation["jobs"][each, place, obs_cols.MIN_LIMIT].long().clamp(min=1)
        useful = torch.minimum(placed.clamp(min=1), total - lowest + 1).clamp(min=1)
        owner = torch.repeat_interleave(each, useful)
        within = torch.arange(len(owner), device=owner.device) - (useful.cumsum(0) - useful)[owner]
        level = lowest[owner] + within  # (L,) of all observations, end to end
        scored = self.score_levels(batch, embedded, batch.first_job + place, total, owner, level)
        return scores.index_put((owner, level - 1), scored)

    def score_levels(
        self,
        batch: StageBatch,
        embedded: Embeddings,
        job: Tensor,
        total: Tensor,
        owner: Tensor,
        level: Tensor,
    ) -> Tensor:
        """(L,) scores of limits; `owner` is the observation of each, `job` (B,) its job."""
        assert self.score_limit is not None
        assert self.tilt_limit is not None
        known = torch.cat(
            [batch.job_inputs[job], embedded.job.index_select(0, job), embedded.cluster], dim=1
        )
        of_level = limit_inputs(level, total[owner])
        scored: Tensor = self.score_limit(
            torch.cat([known.index_select(0, owner), of_level], dim=1)
        )
        own_job = batch.job_inputs.index_select(0, job.index_select(0, owner))
        linear: Tensor = self.tilt_limit(limit_terms(of_level, own_job))
        score = (scored + linear).squeeze(1)
        if self.settings.prior is None or self.tilts is None:
            return score
        return score + limit_prior(batch, self.settings.prior, self.tilts, job, owner, level)

    @property
    def tilts(self) -> Tilts | None:
        """Weights of the prior, where there is one."""
        if self.tilt_prior is None or self.tilt_job is None or self.tilt_key is None:
            return None
        return Tilts(self.tilt_prior, self.tilt_job, self.tilt_key)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, StageBatch, Embeddings]:
        """Stage scores (B, N), and the inputs and embeddings that `limit_scores` takes."""
        batch = self.without_unread(pack(observation))
        embedded = self.embed(batch, len(observation["cluster"]))
        scores = self.stage_scores(batch, embedded, observation["stages"].shape[1])
        return scores, batch, embedded


def build_network(settings: Mapping[str, Any]) -> DecimaNetwork:
    """Build a network from the settings of a bundle; an InputError names a wrong one."""
    return DecimaNetwork(build_settings(DecimaSettings, settings))
