"""Minibatches of recorded decisions on a GPU, packed without padding.

All sizes are known on the CPU before the GPU computes, so a minibatch is packed without waiting for
it. With the padded minibatches of `models/ragged.py` the GPU was idle for most of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.models.decima.features import StageBatch, job_inputs_of, stage_inputs_of
from loadmaster.models.decima.network import MessageSchedule
from loadmaster.models.decima.training_block import (
    EDGES,
    JOBS,
    STAGES,
    Decisions,
    decision_view,
    decisions_of,
)


class Options(NamedTuple):
    """What a decision chose among: the options of all decisions, end to end."""

    owner: Tensor  # (options,) index of the decision
    place: Tensor  # (options,) place among the decision's options
    chosen: Tensor  # (B,) place of the option that was chosen
    widest: int  # most options of a decision


class PackedDecisions(NamedTuple):
    """B decisions without padding."""

    batch: StageBatch
    schedule: MessageSchedule
    stages: Options
    stage_row: Tensor  # (options,) row of each schedulable stage
    limits: Options
    limit: Tensor  # (options,) the limit itself
    job: Tensor  # (B,) job of the chosen stage
    total: Tensor  # (B,) executors


class Facts(NamedTuple):
    """Sizes and choices of K decisions, H levels."""

    stages: Ints  # (K, H) stages of each height
    edges: Ints  # (K, H) edges by the height of the parent
    legal: Ints  # (K,) schedulable stages
    limits: Ints  # (K,) useful limits
    lowest: Ints  # (K,) the lowest of them
    chosen: Ints  # (K, 2) place of the chosen stage among the schedulable, of the limit
    job: Ints  # (K,) job of the chosen stage, within the decision


def facts_of(decisions: Decisions) -> Facts:
    count = len(decisions.cluster)
    levels = int(decisions.stages[:, obs_cols.HEIGHT].max(initial=0)) + 1
    facts = Facts(
        stages=np.zeros((count, levels), np.int64),
        edges=np.zeros((count, levels), np.int64),
        legal=np.zeros(count, np.int64),
        limits=np.zeros(count, np.int64),
        lowest=np.zeros(count, np.int64),
        chosen=np.zeros((count, 2), np.int64),
        job=np.zeros(count, np.int64),
    )
    fill_facts(decisions, facts)
    return facts


@compiled
def fill_facts(decisions: Decisions, facts: Facts) -> None:
    for row in range(len(decisions.cluster)):
        view = decision_view(decisions, row)
        stage, limit = decisions.actions[row]
        for own in range(len(view.stage_job)):
            facts.stages[row, int(view.stages[own, obs_cols.HEIGHT])] += 1
            if view.schedulable[own] == 1:
                if own == stage:
                    facts.chosen[row, 0] = facts.legal[row]
                facts.legal[row] += 1
        for edge in range(len(view.edges)):
            facts.edges[row, int(view.stages[view.edges[edge, 0], obs_cols.HEIGHT])] += 1
        lowest, highest = useful_limits(view, stage)
        facts.lowest[row], facts.limits[row] = lowest, highest - lowest + 1
        facts.chosen[row, 1] = min(limit, highest) - lowest
        facts.job[row] = view.stage_job[stage]


class DeviceMinibatches:
    """Recorded decisions on a GPU."""

    def __init__(self, columns: Mapping[str, Any], device: Any) -> None:
        """`columns` as recorded, with ragged observations."""
        decisions = decisions_of(columns)
        self._facts = facts_of(decisions)
        self._counts = np.diff(decisions.starts, axis=0)  # (K, 3)

        def copied(table: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(table)).to(device, non_blocking=True)

        self._tables = {name: copied(table) for name, table in decisions._asdict().items()}
        self._device_facts = {name: copied(table) for name, table in self._facts._asdict().items()}
        self._device_counts = copied(self._counts)
        self._legal = copied(np.flatnonzero(decisions.schedulable))
        self._legal_first = copied(np.cumsum(self._facts.legal) - self._facts.legal)
        self._height = copied(decisions.stages[:, obs_cols.HEIGHT].astype(np.int16))
        self._device = device
        self._columns = {
            name: copied(column)
            for name, column in columns.items()
            if name not in (Columns.OBS, Columns.ACTIONS)
        }

    def select(self, rows: Tensor) -> dict[str, Any]:
        device_rows = rows.to(self._device, non_blocking=True)
        selected = {name: column[device_rows] for name, column in self._columns.items()}
        return {**selected, Columns.OBS: self._pack(rows.numpy(), device_rows)}

    def _pack(self, rows: Ints, device_rows: Tensor) -> PackedDecisions:
        """`rows` and the same on the device."""
        tables, facts, sizes = self._tables, self._device_facts, self._counts[rows].sum(0).tolist()
        counts, starts = self._device_counts[device_rows], tables["starts"][device_rows]  # (B, 3)
        owner, within, first = _spread(counts[:, STAGES], sizes[STAGES])
        source = starts[owner, STAGES] + within  # stage rows of the whole recording
        order = torch.argsort(self._height[source], stable=True)
        source, owner = source[order], owner[order]
        new_row = torch.empty_like(order)
        new_row[order] = torch.arange(len(order), device=order.device)
        job_owner, job_within, first_job = _spread(counts[:, JOBS], sizes[JOBS])
        jobs = tables["jobs"].index_select(0, starts[job_owner, JOBS] + job_within)
        cluster = tables["cluster"].index_select(0, device_rows)
        job_inputs = job_inputs_of(jobs, cluster.index_select(0, job_owner))
        row_job = tables["stage_job"][source] + first_job[owner]
        stages = tables["stages"].index_select(0, source)
        total = cluster[:, obs_cols.TOTAL_EXECUTORS]
        height = self._height[source].long()
        edge_owner, edge_within, _ = _spread(counts[:, EDGES], sizes[EDGES])
        ends = tables["edges"].index_select(0, starts[edge_owner, EDGES] + edge_within).long()
        ends = new_row[ends + first[edge_owner, None]]
        batch = StageBatch(
            inputs=stage_inputs_of(stages, job_inputs.index_select(0, row_job), total[owner]),
            height=height,
            schedulable=tables["schedulable"][source] > 0,
            row_job=row_job,
            row_observation=owner,
            row_place=within[order],
            job_inputs=job_inputs,
            job_observation=job_owner,
            first_job=first_job,
            parent=ends[:, 0],
            child=ends[:, 1],
        )
        legal_owner, legal_place, _ = _spread(
            facts["legal"][device_rows], _sum(self._facts.legal, rows)
        )
        legal = self._legal[self._legal_first[device_rows][legal_owner] + legal_place]
        stage_row = new_row[legal - starts[legal_owner, STAGES] + first[legal_owner]]
        limits = facts["limits"][device_rows]
        limit_owner, limit_place, _ = _spread(limits, _sum(self._facts.limits, rows))
        chosen = facts["chosen"][device_rows]
        return PackedDecisions(
            batch=batch,
            schedule=self._schedule(rows, batch),
            stages=Options(
                legal_owner, legal_place, chosen[:, 0], int(self._facts.legal[rows].max())
            ),
            stage_row=stage_row,
            limits=Options(
                limit_owner, limit_place, chosen[:, 1], int(self._facts.limits[rows].max())
            ),
            limit=facts["lowest"][device_rows][limit_owner] + limit_place,
            job=first_job + facts["job"][device_rows],
            total=total,
        )

    def _schedule(self, rows: Ints, batch: StageBatch) -> MessageSchedule:
        """`network.message_schedule` with sizes from the CPU."""
        of_level = self._facts.stages[rows].sum(0)
        levels = int(np.flatnonzero(of_level)[-1]) + 1
        of_level, edges = of_level[:levels], self._facts.edges[rows].sum(0)[:levels]
        level_first = np.cumsum(of_level) - of_level
        first = torch.from_numpy(level_first).to(self._device, non_blocking=True)
        level = batch.height[batch.parent]
        ends = torch.stack([batch.child, batch.parent - first[level]])
        ends = ends[:, torch.argsort(level.to(torch.int16), stable=True)]
        return MessageSchedule(of_level.tolist(), torch.split(ends, edges.tolist(), dim=1))


def _sum(counts: Ints, rows: Ints) -> int:
    return int(counts[rows].sum())


def _spread(counts: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """(total,) owner of each item and its place there; (B,) the first item of each owner."""
    owner = torch.repeat_interleave(
        torch.arange(len(counts), device=counts.device), counts, output_size=total
    )
    first = counts.cumsum(0) - counts
    return owner, torch.arange(total, device=counts.device) - first[owner], first
