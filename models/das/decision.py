"""A cluster in the environment's tables, and the decision read off them. Imports no torch."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from loadmaster.envs.gpu_scheduling import state as columns
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.state import SimState

LISTED = 3  # starts, stops, and machines of a gang that a summary names

Placement = dict[int, int]  # instances of a job by machine


class ClusterTables(NamedTuple):
    """N jobs on M machines; a policy or rule writes its decision into the two states."""

    state: SimState
    cluster: Cluster
    jobs: Jobs
    decision_state: DecisionState
    placed: Mapping[int, Placement]  # of the jobs that ran before the decision
    job_name: Callable[[int], str]
    machine_name: Callable[[int], str]

    @property
    def simulation(self) -> tuple[SimState, Cluster, Jobs, DecisionState]:
        """The first arguments of the environment's compiled functions."""
        return self.state, self.cluster, self.jobs, self.decision_state


class Decision(NamedTuple):
    """Stop first, then start; a job in both moves."""

    start: list[tuple[int, Placement]]  # by descending priority
    stop: list[int]
    wait: int  # jobs that wait afterwards


def read_decision(tables: ClusterTables) -> Decision:
    """Difference between `tables.state` and `tables.placed`.

    A job that was stopped and started again on the same machines was left alone.
    """
    state, placed = tables.state, tables.placed
    rows_used = state.jobs[:-1, columns.ROWS_USED]
    is_changed = (rows_used > 0) & (state.progress[:, columns.PLACED_S] == state.times[columns.NOW])
    running = np.fromiter(placed, np.int64, len(placed))
    is_changed[running[rows_used[running] == 0]] = True
    start: list[tuple[float, int, Placement]] = []
    stop: list[int] = []
    for job in is_changed.nonzero()[0].tolist():
        where = _placement(state, job)
        if not where:
            stop.append(job)
            continue
        if job in placed:
            if where == placed[job]:
                continue
            stop.append(job)
        start.append((float(state.key[job]), job, where))
    start.sort(key=lambda one: one[:2])
    wait = int(state.clock[columns.QUEUED])
    return Decision([(job, where) for _, job, where in start], stop, wait)


def placements_of(state: SimState) -> dict[int, Placement]:
    """Instances of each running job by machine."""
    running = np.flatnonzero(state.jobs[:-1, columns.ROWS_USED])
    return {job: _placement(state, job) for job in running.tolist()}


def _placement(state: SimState, job: int) -> Placement:
    first, used = state.jobs[job, columns.FIRST_ROW : columns.ROWS_USED + 1].tolist()
    rows = state.rows[first : first + used, columns.MACHINE : columns.COUNT + 1]
    return dict(rows.tolist())


def summarise(tables: ClusterTables, decision: Decision) -> str:
    """One sentence: which jobs start where, and which stop for which."""
    start, stop = decision.start, set(decision.stop)
    name = tables.job_name
    parts = [
        f"job {name(job)} {'moves to' if job in stop else 'starts on'} {_machines(tables, where)}"
        for job, where in start[:LISTED]
    ]
    if len(start) > LISTED:
        parts.append(f"{len(start) - LISTED} more start or move as well")
    moved = {job for job, _ in start}
    stopped = [job for job in decision.stop if job not in moved]
    for job in stopped[:LISTED]:
        left = tables.placed[job].keys()
        heir = next((other for other, where in start if not left.isdisjoint(where)), None)
        reason = "" if heir is None else f" for job {name(heir)}"
        parts.append(f"job {name(job)} stops{reason}")
    if len(stopped) > LISTED:
        parts.append(f"{len(stopped) - LISTED} more stop for others")
    if not parts:
        parts.append("nothing starts or stops")
    parts.append(f"{decision.wait} {'job waits' if decision.wait == 1 else 'jobs wait'}")
    return "; ".join(parts)


def _machines(tables: ClusterTables, where: Placement) -> str:
    name, first = tables.machine_name, next(iter(where))
    if len(where) == 1:
        return name(first)
    if len(where) > LISTED:
        return f"{len(where)} machines, most wanted {name(first)}"
    return " and ".join(f"{name(machine)} ({count})" for machine, count in where.items())
