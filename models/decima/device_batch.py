"""Minibatches of recorded decisions on a GPU, in tables whose sizes stay the same.

With the same sizes and addresses the kernels of a training pass can be recorded once and launched
together (`platform/rl/gradient_graph.py`): Decima's network is so small that launching them one by
one takes several times as long as running them. The places of all rows are computed on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.envs.compiled import Ints, compiled
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.actions import useful_limits
from loadmaster.models.decima.device_tables import Places, Sizes, Workspace, places_in
from loadmaster.models.decima.training_block import (
    JOBS,
    STAGES,
    Decisions,
    decision_view,
    decisions_of,
)

THREADS = min(8, os.cpu_count() or 1)


class DeviceDecisions(NamedTuple):
    """A minibatch as the network takes it: rows of the recording, and where they belong."""

    sizes: Sizes
    ints: Tensor  # see `places_in`
    stages: Tensor  # (R, STAGE_FEATURES)
    jobs: Tensor  # (J, JOB_FEATURES)
    cluster: Tensor  # (B, CLUSTER_FEATURES)


def facts_of(decisions: Decisions) -> Ints:
    """(K, 2 H + 3): stages and edges by level, jobs, schedulable stages and limits of each."""
    count, heights = len(decisions.cluster), decisions.stages[:, obs_cols.HEIGHT]
    highest = in_threads(lambda _, first, end: heights[first:end].max(initial=0), len(heights))
    levels = int(max(highest)) + 1
    facts = np.zeros((count, 2 * levels + 3), np.int64)
    in_threads(lambda _, first, end: fill_facts(decisions, facts, first, end), count)
    return facts


def in_threads(work: Callable[[int, int, int], Any], count: int) -> list[Any]:
    """Run `work` on shares of `count` items: number of the share, its first item and its end."""
    bounds = [number * count // THREADS for number in range(THREADS + 1)]
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(work, range(THREADS), bounds[:-1], bounds[1:]))


@compiled
def fill_facts(decisions: Decisions, facts: Ints, first: int, end: int) -> None:
    levels = (facts.shape[1] - 3) // 2
    for row in range(first, end):
        view, to = decision_view(decisions, row), facts[row]
        for own in range(len(view.stage_job)):
            to[int(view.stages[own, obs_cols.HEIGHT])] += 1
            if view.schedulable[own] == 1:
                to[2 * levels + 1] += 1
        for edge in range(len(view.edges)):
            to[levels + int(view.stages[view.edges[edge, 0], obs_cols.HEIGHT])] += 1
        to[2 * levels] = decisions.starts[row + 1, JOBS] - decisions.starts[row, JOBS]
        lowest, highest = useful_limits(view, decisions.actions[row, 0])
        to[2 * levels + 2] = highest - lowest + 1


@compiled
def fill_places(
    decisions: Decisions,
    rows: Ints,
    first: int,
    end: int,
    level_first: Ints,
    next_free: Ints,
    to: Places,
    work: Ints,
) -> None:
    """Compute the places of the decisions from `first` to `end` of a minibatch.

    `next_free`: the first place of each kind for them, as in `facts_of`; `work` has room for the
    stages of one decision.
    """
    levels = len(level_first)
    stage_at, edge_at = next_free[:levels], next_free[levels : 2 * levels]
    jobs, legal, limits = next_free[2 * levels :]
    for decision in range(first, end):
        row = rows[decision]
        view = decision_view(decisions, row)
        stage, limit = decisions.actions[row]
        source = decisions.starts[row]
        options = 0
        for own in range(len(view.stage_job)):
            level = int(view.stages[own, obs_cols.HEIGHT])
            at = stage_at[level]
            stage_at[level] += 1
            work[own] = at
            to.stage_source[at] = source[STAGES] + own
            to.stage_decision[at] = decision
            to.stage_job[at] = jobs + view.stage_job[own]
            if view.schedulable[own] == 1:
                if own == stage:
                    to.chosen_stage[decision] = options
                to.legal_stage[legal] = at
                to.legal_decision[legal] = decision
                to.legal_place[legal] = options
                legal += 1
                options += 1
        for edge in range(len(view.edges)):
            parent, child = view.edges[edge]
            level = int(view.stages[parent, obs_cols.HEIGHT])
            at = edge_at[level]
            edge_at[level] += 1
            to.child[at] = work[child]
            to.parent[at] = work[parent] - level_first[level]
        to.job[decision] = jobs + view.stage_job[stage]
        for own in range(decisions.starts[row + 1, JOBS] - source[JOBS]):
            to.job_source[jobs] = source[JOBS] + own
            to.job_decision[jobs] = decision
            jobs += 1
        lowest, highest = useful_limits(view, stage)
        to.chosen_limit[decision] = min(limit, highest) - lowest
        for own in range(highest - lowest + 1):
            to.limit[limits] = lowest + own
            to.limit_decision[limits] = decision
            to.limit_place[limits] = own
            limits += 1
        to.source[decision] = row
        to.is_real[decision] = 1


def fill_padding(
    decisions: Decisions, count: int, level_first: Ints, used: Ints, sizes: Sizes, to: Places
) -> None:
    """Rows behind the recording, which belong to a decision that does not count.

    `used`: the end of the places in use, as in `facts_of`.
    """
    padding, no_job, levels = sizes.decisions - 1, sizes.jobs - 1, len(sizes.levels)
    edge_first = 0
    for level, (stages, edges) in enumerate(zip(sizes.levels, sizes.edges, strict=True)):
        rest = slice(used[level], level_first[level] + stages)
        to.stage_source[rest] = len(decisions.stages)
        to.stage_decision[rest], to.stage_job[rest] = padding, no_job
        rest = slice(used[levels + level], edge_first + edges)
        to.child[rest], to.parent[rest] = 0, stages - 1
        edge_first += edges
    jobs, legal, limits = used[2 * levels :]
    to.job_source[jobs:], to.job_decision[jobs:] = len(decisions.jobs), padding
    to.legal_stage[legal:], to.legal_decision[legal:] = sizes.levels[0] - 1, padding
    to.limit[limits:], to.limit_decision[limits:] = 1, padding
    to.source[count:], to.job[count:] = len(decisions.cluster), no_job
    for part in (to.legal_place[legal:], to.limit_place[limits:]):
        part[:] = 0
    for part in (to.chosen_stage, to.chosen_limit, to.is_real):
        part[count:] = 0


class DeviceMinibatches:
    """Recorded decisions on a GPU."""

    def __init__(self, columns: Mapping[str, Any], device: Any, workspace: Workspace) -> None:
        """`columns` as recorded, with ragged observations."""
        self._decisions, self._workspace = decisions_of(columns), workspace
        self._facts = facts_of(self._decisions)
        stages = np.diff(self._decisions.starts[:, STAGES]).max(initial=1)
        self._widest = tuple(self._facts[:, -2:].max(axis=0, initial=1).tolist())
        self._work = np.zeros((THREADS, stages), np.int64)

        def copied(table: NDArray[Any], padding: float) -> Tensor:
            """On the device, with a row of padding behind the last."""
            whole = torch.full((len(table) + 1, *table.shape[1:]), padding, device=device)
            whole[:-1].copy_(torch.from_numpy(np.ascontiguousarray(table)), non_blocking=True)
            return whole

        self._tables = {
            "stages": copied(self._decisions.stages, 0.0),
            "jobs": copied(self._decisions.jobs, 0.0),
            "cluster": copied(self._decisions.cluster, 1.0),  # its executors divide
        }
        self._columns = [
            name for name in columns if name not in (Columns.OBS, Columns.ACTIONS)
        ]  # fmt: skip
        self._tables |= {name: copied(columns[name], 0.0) for name in self._columns}

    def select(self, rows: Tensor) -> dict[str, Any]:
        """The batch of these decisions and of padding, in the tables of the workspace."""
        numbers, space = rows.numpy(), self._workspace
        ends = np.cumsum(self._facts[numbers], axis=0)  # (B, 2 H + 3)
        widths = {name: table.shape[1:] for name, table in self._tables.items()}
        space.fit(self._needed(len(numbers), ends[-1]), widths)
        sizes = space.sizes
        self._fill(numbers, ends, sizes, space.free_places())
        space.copy_places()
        places = places_in(space.ints, sizes)
        sources = {"stages": places.stage_source, "jobs": places.job_source}
        for name, table in self._tables.items():
            source = sources.get(name, places.source)
            torch.index_select(table, 0, source, out=space.tables[name])
        kept = {name: space.tables[name] for name in ("stages", "jobs", "cluster")}
        return {
            **{name: space.tables[name] for name in self._columns},
            Columns.LOSS_MASK: places.is_real,
            Columns.OBS: DeviceDecisions(sizes, space.ints, **kept),
        }

    @property
    def fixed(self) -> Sizes:
        """Minibatches with the same sizes have the same tables."""
        return self._workspace.sizes

    def _needed(self, count: int, totals: Ints) -> Sizes:
        found: list[int] = totals.tolist()
        levels = len(found) // 2 - 1
        jobs, legal, limits = found[2 * levels :]
        return Sizes(
            levels=tuple(found[:levels]),
            edges=tuple(found[levels : 2 * levels]),
            jobs=jobs,
            decisions=count,
            legal=legal,
            limits=limits,
            widest=self._widest,
        )

    def _fill(self, rows: Ints, ends: Ints, sizes: Sizes, to: Places) -> None:
        """Compute the places of these decisions; `ends`: (B, 2 H + 3), cumulated `facts_of`."""
        levels = (ends.shape[1] - 3) // 2
        first = np.zeros(ends.shape[1], np.int64)  # place of each kind
        first[1:levels] = np.cumsum(sizes.levels)[: levels - 1]
        first[levels + 1 : 2 * levels] = np.cumsum(sizes.edges)[: levels - 1]
        level_first = first[:levels].copy()
        before = np.zeros_like(ends)
        before[1:] = ends[:-1]

        def fill(share: int, begin: int, end: int) -> None:
            if begin < end:
                next_free, work = first + before[begin], self._work[share]
                fill_places(self._decisions, rows, begin, end, level_first, next_free, to, work)

        in_threads(fill, len(rows))
        fill_padding(self._decisions, len(rows), level_first, first + ends[-1], sizes, to)
