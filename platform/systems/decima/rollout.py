"""Decima's engine: simulator and network in one compiled loop, an episode a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal
from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    buffers_for,
    episode_result,
    initial_state,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.random import splitmix64
from loadmaster.models.decima.compiled import Scratch, Weights, decide, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.compiled_buffer import FULL, CompiledBuffer, copy_rows
from loadmaster.platform.rl.rollout import EpisodeScore, Ragged, Recording, RolloutSpec

# Episodes under Decima's network, simulator and policy in one compiled loop.


_UNIT = 1.0 / (1 << 53)  # 53 random bits to a number in [0, 1)
_S11 = np.uint64(11)


@njit_internal
def unit_draw(luck: int, count: int) -> float:
    """A number in [0, 1) that depends on nothing but `luck` and `count`."""
    return np.float64(splitmix64(luck, count) >> _S11) * _UNIT


@compiled
def run_network(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    room: Scratch,
    luck: int,
) -> int:
    """Let the network decide until the episode ends or a table is full; the status.

    `luck` below 0 takes the best-scored stage and limit; otherwise it seeds the sampling.
    """
    while True:
        status = advance(state, bank)
        if status != at.DECIDE:
            return status
        observe(state, bank, view, rows)
        stage_draw, limit_draw = -1.0, -1.0
        if luck >= 0:
            count = 2 * state.clock[at.DECISIONS]
            stage_draw, limit_draw = unit_draw(luck, count), unit_draw(luck, count + 1)
        row, limit, _ = decide(view, weights, room, stage_draw, limit_draw)
        apply_action(state, bank, view, rows, row, limit)


def run_episode(
    network: DecimaNetwork,
    settings: DagSchedulingSettings,
    seed: int,
    workload: Workload,
    *,
    luck: int = -1,
    record: bool = False,
) -> EpisodeResult:
    """The episode of `seed` under the network: its best decisions, or samples where luck >= 0."""
    state = initial_state(settings, workload, seed, record)
    weights = weights_of(network)
    while True:
        view, rows = buffers_for(state, workload.bank)
        room = scratch_for(network, len(rows), len(state.jobs), settings.total_executors)
        status = run_network(state, workload.bank, view, rows, weights, room, luck)
        if status == at.GROW_TRACE:
            state = at.with_more_trace(state)
        elif status == at.GROW_JOBS:
            state = at.with_more_slots(state)
        else:
            return episode_result(state, workload, settings, "decima", seed)


# Rollouts under Decima's network with all that learning needs: observations, actions, rewards.


# Columns of `Tape.facts`.
LOG_PROBABILITY, TIME_MS, JOB_MS = 0, 1, 2
OUTLOOK = 3  # jobs, seconds of work, and job-seconds if the shortest jobs went first
# Places in `Tape.used`.
STEPS, KEPT, STAGE_ROWS, JOB_ROWS, EDGE_ROWS = range(5)


class Tape(NamedTuple):
    """What a rollout leaves: a row for every decision, and the tables of those kept, end to end."""

    used: NDArray[np.int64]  # (5,) rows in use: decisions, kept ones, and of the three tables
    facts: NDArray[np.float64]  # (steps, 3)
    outlook: NDArray[np.float64]  # (steps, OUTLOOK)
    kept: NDArray[np.int64]  # (steps,) which decision it was
    actions: NDArray[np.int64]  # (steps, 2) stage row, limit
    counts: NDArray[np.int64]  # (steps, 3) its rows of stages, jobs, edges
    cluster: NDArray[np.float32]  # (steps, CLUSTER_FEATURES)
    stages: NDArray[np.float32]  # (stage rows, STAGE_FEATURES)
    stage_job: NDArray[np.int32]  # (stage rows,)
    schedulable: NDArray[np.int8]  # (stage rows,)
    jobs: NDArray[np.float32]  # (job rows, JOB_FEATURES)
    edges: NDArray[np.int32]  # (edge rows, 2)


def blank_tape(decisions: int) -> Tape:
    rows = 16 * decisions  # of each table: a few observations; usual rollouts double it
    return Tape(
        used=np.zeros(5, np.int64),
        facts=np.zeros((decisions, 3)),
        outlook=np.zeros((decisions, OUTLOOK)),
        kept=np.zeros(decisions, np.int64),
        actions=np.zeros((decisions, 2), np.int64),
        counts=np.zeros((decisions, 3), np.int64),
        cluster=np.zeros((decisions, seen.CLUSTER_FEATURES), np.float32),
        stages=np.zeros((rows, seen.STAGE_FEATURES), np.float32),
        stage_job=np.zeros(rows, np.int32),
        schedulable=np.zeros(rows, np.int8),
        jobs=np.zeros((rows, seen.JOB_FEATURES), np.float32),
        edges=np.zeros((rows, 2), np.int32),
    )


@compiled
def record_network(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    room: Scratch,
    luck: int,
    keep: float,
    tape: Tape,
) -> int:
    """Let the network decide, filling the tape, until the episode ends or the tape does."""
    used = tape.used
    while True:
        # Before the simulator moves, so that a longer tape goes on where this one ended.
        if (
            used[STEPS] == len(tape.facts)
            or used[STAGE_ROWS] + len(view.stages) > len(tape.stages)
            or used[JOB_ROWS] + len(view.jobs) > len(tape.jobs)
            or used[EDGE_ROWS] + len(view.edges) > len(tape.edges)
        ):
            return FULL
        status = advance(state, bank)
        if status != at.DECIDE:
            return status
        observe(state, bank, view, rows)
        step = used[STEPS]
        stage_draw, limit_draw = unit_draw(luck, 3 * step), unit_draw(luck, 3 * step + 1)
        row, limit, log_probability = decide(view, weights, room, stage_draw, limit_draw)
        tape.facts[step, LOG_PROBABILITY] = log_probability
        tape.facts[step, TIME_MS] = state.clock[at.NOW]
        tape.facts[step, JOB_MS] = state.clock[at.JOB_MS]
        look_ahead(view, tape.outlook[step])
        if unit_draw(luck, 3 * step + 2) < keep:
            keep_view(view, tape, step, row, limit)
        apply_action(state, bank, view, rows, row, limit)
        used[STEPS] = step + 1


@njit_inline
def look_ahead(view: Observation, outlook: NDArray[np.float64]) -> None:
    """What the state promises, whoever decides: features of the return to come.

    If all executors worked on the job with the least work left, then on the next, jobs would wait
    sum over pairs of the smaller of their works, each job paired with itself as well.
    """
    jobs, total = int(view.cluster[seen.JOBS]), view.cluster[seen.TOTAL_EXECUTORS]
    work, waiting = 0.0, 0.0
    for first in range(jobs):
        own = view.jobs[first, seen.WORK_LEFT_S]
        work += own
        for second in range(first + 1):
            waiting += min(own, view.jobs[second, seen.WORK_LEFT_S])
    outlook[0], outlook[1], outlook[2] = jobs, work / total, waiting / total


@njit_inline
def keep_view(view: Observation, tape: Tape, step: int, row: int, limit: int) -> None:
    """Copy the rows in use to the tape's end."""
    used = tape.used
    place = used[KEPT]
    stages, jobs = int(view.cluster[seen.STAGES]), int(view.cluster[seen.JOBS])
    edges = int(view.cluster[seen.EDGES])
    tape.kept[place] = step
    tape.actions[place, 0], tape.actions[place, 1] = row, limit
    tape.counts[place, 0], tape.counts[place, 1], tape.counts[place, 2] = stages, jobs, edges
    for i in range(seen.CLUSTER_FEATURES):
        tape.cluster[place, i] = view.cluster[i]
    for i in range(stages):
        tape.stage_job[used[STAGE_ROWS] + i] = view.stage_job[i]
        tape.schedulable[used[STAGE_ROWS] + i] = view.schedulable[i]
    copy_rows(view.stages, tape.stages, used[STAGE_ROWS], stages)
    copy_rows(view.jobs, tape.jobs, used[JOB_ROWS], jobs)
    copy_rows(view.edges, tape.edges, used[EDGE_ROWS], edges)
    used[KEPT] += 1
    used[STAGE_ROWS] += stages
    used[JOB_ROWS] += jobs
    used[EDGE_ROWS] += edges


def record_rollout(
    network: DecimaNetwork,
    settings: DagSchedulingSettings,
    seed: int,
    workload: Workload,
    luck: int,
    keep: float = 1.0,
    reel: CompiledBuffer[Tape] | None = None,
) -> Recording:
    """Sample one rollout of the episode of `seed`; `luck` makes it differ from its fellows."""
    weights = weights_of(network)
    state = initial_state(settings, workload, seed, slots=settings.total_jobs)
    view, rows = buffers_for(state, workload.bank)
    room = scratch_for(network, len(rows), len(state.jobs), settings.total_executors)
    reel = reel or CompiledBuffer(blank_tape)
    reel.rewind()
    while True:
        status = record_network(
            state, workload.bank, view, rows, weights, room, luck, keep, reel.tape
        )
        if status != FULL:
            return recording_of(reel.tape, state, settings)
        reel.lengthen()


def recording_of(tape: Tape, state: SimState, settings: DagSchedulingSettings) -> Recording:
    steps, kept, stages, jobs, edges = (int(count) for count in tape.used)
    facts, counts = tape.facts[:steps], tape.counts[:kept]
    counter, end_ms = JOB_MS, state.clock[at.JOB_MS]
    if settings.objective == "makespan":
        counter, end_ms = TIME_MS, state.clock[at.NOW]
    passed = np.append(facts[:, counter], end_ms)
    passed[0] = 0  # what passed before the first decision joins its reward
    chosen = tape.kept[:kept].copy()
    done = state.completed_ms != at.NONE
    jct_ms = (state.completed_ms - state.arrivals[:, 0])[done]
    per_stage, per_job, per_edge = counts[:, 0].copy(), counts[:, 1].copy(), counts[:, 2].copy()
    return Recording(
        observations={
            "stages": Ragged(tape.stages[:stages].copy(), per_stage),
            "stage_job": Ragged(tape.stage_job[:stages].copy(), per_stage),
            # The place behind the last stage stands for idling, which no network chooses.
            "schedulable": Ragged(tape.schedulable[:stages].copy(), per_stage, spare=1),
            "jobs": Ragged(tape.jobs[:jobs].copy(), per_job),
            "edges": Ragged(tape.edges[:edges].copy(), per_edge),
            "cluster": tape.cluster[:kept].copy(),
        },
        actions=tape.actions[:kept].copy(),
        log_probability=facts[chosen, LOG_PROBABILITY],
        kept=chosen,
        rollout=Rollout(
            time_s=facts[:, TIME_MS] / 1000,
            reward=-np.diff(passed) / 1000,
            end_s=float(state.clock[at.NOW]) / 1000,
            outlook=tape.outlook[:steps].copy(),
        ),
        figures={
            "jct_s": float(jct_ms.mean()) / 1000 if len(jct_ms) else float("nan"),
            "makespan_s": float(state.clock[at.NOW]) / 1000,
            "jobs_finished": float(done.sum()),
        },
    )


class DecimaEngine:
    """A `RolloutEngine` for DecimaModule."""

    def __init__(self, settings: DagSchedulingSettings) -> None:
        self.settings = settings
        self.workload = load_workload(settings)
        self.reel = CompiledBuffer(blank_tape)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        return [
            record_rollout(
                module.network,
                self._settings_for(assignment),
                assignment.sequence,
                self.workload,
                assignment.luck,
                assignment.keep,
                self.reel,
            )
            for assignment in assignments
        ]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        results = [
            run_episode(module.network, self.settings, seed, self.workload) for seed in seeds
        ]
        makespan = self.settings.objective == "makespan"
        costs = [result.makespan_s if makespan else result.mean_jct_s for result in results]
        return [
            EpisodeScore(cost, result.decisions, cost)
            for cost, result in zip(costs, results, strict=True)
        ]

    def _settings_for(self, assignment: RolloutSpec) -> DagSchedulingSettings:
        if assignment.horizon_s is None:
            return self.settings
        return self.settings.model_copy(update={"horizon_s": assignment.horizon_s})
