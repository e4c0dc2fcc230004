"""The network: every stage, job and the cluster embedded, then stages and limits scored."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.models.decima.features import JOB_INPUTS, STAGE_INPUTS, StageBatch, pack

SLOPE = 0.2  # of LeakyReLU below 0
ILLEGAL = -1e9  # a score that no softmax chooses, and no gradient suffers from


class Embeddings(NamedTuple):
    """D numbers for every stage, job and observation."""

    stage: Tensor  # (R, D)
    job: Tensor  # (J, D)
    cluster: Tensor  # (B, D)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with LeakyReLU between them, and none after the last."""
    layers: list[nn.Module] = []
    for given, made in pairwise(sizes):
        layers += [nn.Linear(given, made), nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1])


class DagEncoder(nn.Module):
    """Messages from the leaves upwards: e_v = g(sum over children w of f(e_w)) + x_v (eq. 1).

    The same f and g serve every stage and level, so a DAG of any size and depth will do. A stage
    hears of all that comes after it, in one sweep.
    """

    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.width = width
        self.prepare = mlp(STAGE_INPUTS, hidden, width, width)
        self.message = mlp(width, hidden, width, width)  # f
        self.update = mlp(width, hidden, width, width)  # g

    def forward(self, batch: StageBatch) -> Tensor:
        """(R, width)"""
        own: Tensor = self.prepare(batch.inputs)
        embedded = own
        edge_height = batch.height[batch.parent]
        for height in range(1, int(batch.height.max()) + 1 if len(batch.height) else 0):
            edges = (edge_height == height).nonzero().squeeze(1)
            rows = (batch.height == height).nonzero().squeeze(1)
            heard = torch.zeros_like(own).index_add(
                0, batch.parent[edges], self.message(embedded[batch.child[edges]])
            )
            embedded = embedded.index_copy(0, rows, own[rows] + self.update(heard[rows]))
        return embedded


class DecimaNetwork(nn.Module):
    """Scores for which stage comes next, and for how many executors its job may hold."""

    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.encoder = DagEncoder(width, hidden)
        self.summarise_stage = mlp(STAGE_INPUTS + width, hidden, width, width)
        self.summarise_job = mlp(width, hidden, width, width)
        self.score_stage = mlp(STAGE_INPUTS + 3 * width, 32, 16, 8, 1)
        self.score_limit = mlp(JOB_INPUTS + 2 * width + 1, 32, 16, 8, 1)

    def embed(self, batch: StageBatch, observations: int) -> Embeddings:
        """A job is the sum of its stages, the cluster the sum of its jobs: order cannot matter."""
        stage = self.encoder(batch)
        width = self.encoder.width
        told = self.summarise_stage(torch.cat([batch.inputs, stage], dim=1))
        job = told.new_zeros(len(batch.job_inputs), width).index_add(0, batch.row_job, told)
        summed = self.summarise_job(job)
        cluster = told.new_zeros(observations, width).index_add(0, batch.job_observation, summed)
        return Embeddings(stage, job, cluster)

    def stage_scores(self, batch: StageBatch, embedded: Embeddings, stages: int) -> Tensor:
        """(B, stages): a score for every row of the observation, ILLEGAL where it may not be."""
        row_scores = self.score_stage(
            torch.cat(
                [
                    batch.inputs,
                    embedded.stage,
                    embedded.job[batch.row_job],
                    embedded.cluster[batch.row_observation],
                ],
                dim=1,
            )
        ).squeeze(1)
        legal = torch.where(batch.schedulable, row_scores, ILLEGAL)
        scores = legal.new_full((len(embedded.cluster), stages), ILLEGAL)
        return scores.index_put((batch.row_observation, batch.row_place), legal)

    def limit_scores(
        self,
        observation: dict[str, Tensor],
        batch: StageBatch,
        embedded: Embeddings,
        stage: Tensor,
        limits: int,
    ) -> Tensor:
        """(B, limits): scores of the limits 1, 2 .. for the job of each observation's `stage`."""
        each = torch.arange(len(stage), device=stage.device)
        place = observation["stage_job"][each, stage].long()
        job = batch.first_job + place
        level = torch.arange(1, limits + 1, device=stage.device)
        total = observation["cluster"][:, seen.TOTAL_EXECUTORS]
        known = torch.cat([batch.job_inputs[job], embedded.job[job], embedded.cluster], dim=1)
        scores = self.score_limit(
            torch.cat(
                [
                    known[:, None, :].expand(-1, limits, -1),
                    (level / total[:, None])[:, :, None],
                ],
                dim=2,
            )
        ).squeeze(2)
        lowest = observation["jobs"][each, place, seen.MIN_LIMIT]
        legal = (level >= lowest[:, None]) & (level <= total[:, None])
        return torch.where(legal, scores, ILLEGAL)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, StageBatch, Embeddings]:
        """Stage scores (B, N), and what `limit_scores` needs once a stage is chosen."""
        batch = pack(observation)
        embedded = self.embed(batch, len(observation["cluster"]))
        scores = self.stage_scores(batch, embedded, observation["stages"].shape[1])
        return scores, batch, embedded
