"""A state in the environment's own tables, so that it is seen and acted on as in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState, new_decision_state
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.snapshot import ClusterSnapshot, state_from_snapshot
from loadmaster.envs.gpu_scheduling.state import SimState, new_state
from loadmaster.serving.systems.das.checks import (
    AGE_S,
    COMM,
    DURATION_S,
    GPUS,
    INSTANCES,
    NUMBERS,
    PLACES,
    RAN_S,
    RUNNING_S,
    SPEED,
)
from loadmaster.serving.systems.das.schema import DasState, Job, Machine

# What is asked at an event follows from what was asked there before.
_BEFORE = {
    "event": on.NOTHING,
    "placing": on.NOTHING,
    "reconsidering": on.PLACING,
    "placing again": on.RECONSIDERING,
}


class Tables(NamedTuple):
    """M machines and N jobs as the environment's code knows them."""

    machines: tuple[Machine, ...]  # (M,)
    arrivals: Sequence[Job]  # (N,) in the order in which they arrived
    runs: NDArray[np.bool_]  # (N,) as was told
    cluster: Cluster
    jobs: Jobs
    state: SimState
    desk: DecisionState

    @property
    def standing(self) -> tuple[SimState, Cluster, Jobs, DecisionState]:
        """What the environment's code asks for, in its order."""
        return self.state, self.cluster, self.jobs, self.desk


def tables_of(
    told: DasState, settings: GpuSchedulingSettings, ordering: int, *, by_user: bool = False
) -> Tables:
    """The cluster as it stands, for a scheduler that orders jobs by that rule.

    Of the settings count what the policy looks at and may do, and the slowdown model.
    """
    books = told.books
    cluster, own = books.park.cluster, books.park.own
    if own:
        settings = settings.model_copy(update={"gpu_types": own})
    rows = np.fromiter(books.numbers, np.float64, len(books.numbers)).reshape(-1, NUMBERS)
    order = (-rows[:, AGE_S]).argsort(kind="stable")  # of arrival
    columns = rows[order].T.copy()  # (NUMBERS, N)
    arrivals = [told.jobs[place] for place in order.tolist()]
    jobs = _jobs_of(columns)
    state = new_state(settings, cluster, jobs, seed=0, by_user=by_user)
    desk = new_decision_state(settings, cluster, jobs)
    standing = _standing(told, arrivals, columns)
    state_from_snapshot(state, cluster, jobs, desk, standing, ordering)
    _recall(told, desk)
    desk.counts[on.MOMENT] = _BEFORE[told.ask]
    return Tables(told.machines, arrivals, columns[PLACES] > 0, cluster, jobs, state, desk)


def _jobs_of(columns: NDArray[np.float64]) -> Jobs:
    columns[GPUS:] = np.rint(columns[GPUS:] * WHOLE)  # as `percent` has it
    instances, gpu_type, user, gpu, cpu = columns[INSTANCES:].astype(np.int64)
    return Jobs(
        arrival_s=-columns[AGE_S],
        duration_s=columns[DURATION_S],
        instances=instances,
        gpu=gpu,
        cpu=cpu,
        gpu_type=gpu_type,
        comm=columns[COMM],
        user=user,
        job_id=np.arange(columns.shape[1]),
    )


def _standing(
    told: DasState, arrivals: Sequence[Job], columns: NDArray[np.float64]
) -> ClusterSnapshot:
    running = columns[PLACES].nonzero()[0]
    # Who was placed first comes first.
    running = running[(-columns[RUNNING_S, running]).argsort(kind="stable")]
    booked = told.books.ledger.booked
    places = [
        (place, machine, count)
        for place in running.tolist()
        for machine, count in booked[arrivals[place].id].items()
    ]
    if told.running_order:
        turn = {name: place for place, name in enumerate(told.running_order)}
        turns = [turn.get(arrivals[place].id, len(turn)) for place in running.tolist()]
        running = running[np.array(turns).argsort(kind="stable")]
    nan = float("nan")
    kept = [nan if one.kept_speed is None else one.kept_speed for one in told.machines]
    return ClusterSnapshot(
        ran_s=columns[RAN_S],
        running_s=columns[RUNNING_S],
        speed=columns[SPEED],
        places=np.fromiter(chain.from_iterable(places), np.int64, 3 * len(places)).reshape(-1, 3),
        running=running,
        kept=np.array(kept),
    )


def _recall(told: DasState, desk: DecisionState) -> None:
    """What is known of users and of earlier decisions; machines that are gone are left out."""
    users, place_of = told.books.users, told.books.park.place_of
    for name, finished in told.users.items():
        if name in users:
            desk.users[users[name]] = finished.jobs, finished.mean_log_minutes
    notes, machines = told.history[: len(desk.noted_s)], len(place_of)
    desk.counts[on.NOTED] = len(notes)
    desk.noted_s[: len(notes)] = [-note.age_s for note in notes]
    lengths = [len(note.speeds) for note in notes]
    count = sum(lengths)
    names = chain.from_iterable(note.speeds for note in notes)
    speeds = chain.from_iterable(note.speeds.values() for note in notes)
    place = np.fromiter(map(place_of.get, names, repeat(-1)), np.int64, count)
    speed = np.fromiter(speeds, np.float32, count)
    cell = place + np.arange(0, len(notes) * machines, machines).repeat(lengths)
    is_there = place >= 0
    if not is_there.all():
        cell, speed = cell[is_there], speed[is_there]
    desk.noted_speed.reshape(-1)[cell] = speed
    desk.noted.reshape(-1)[cell] = True
