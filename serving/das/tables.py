"""A state in the environment's own tables, so that it is seen and acted on as in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.desk import Desk, new_desk
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.resuming import Standing, resume
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState, new_state
from loadmaster.serving.das.machines import Park
from loadmaster.serving.das.schema import DasState, Job, Machine

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
    desk: Desk

    @property
    def standing(self) -> tuple[SimState, Cluster, Jobs, Desk]:
        """What the environment's code asks for, in its order."""
        return self.state, self.cluster, self.jobs, self.desk


def tables_of(
    told: DasState, settings: GpuSchedulingSettings, ordering: int, *, by_user: bool = False
) -> Tables:
    """The cluster as it stands, for a scheduler that orders jobs by that rule.

    Of the settings count what the policy looks at and may do, and the slowdown model.
    """
    park = told.books.park
    if park.own:
        settings = settings.model_copy(update={"gpu_types": park.own})
    arrivals = sorted(told.jobs, key=_last_come)
    users: dict[str, int] = {}
    columns = _columns(arrivals, park, users)
    jobs = _jobs_of(columns)
    state = new_state(settings, park.cluster, jobs, seed=0, by_user=by_user)
    desk = new_desk(settings, park.cluster, jobs)
    standing, runs = _standing(told, arrivals, columns, park)
    resume(state, park.cluster, jobs, desk, standing, ordering)
    _recall(told, users, park, desk)
    desk.counts[on.MOMENT] = _BEFORE[told.ask]
    return Tables(told.machines, arrivals, runs, park.cluster, jobs, state, desk)


def _last_come(job: Job) -> float:
    return -job.age_s


# Rows of `_columns`: numbers of a job.
_ARRIVAL_S, _DURATION_S, _COMM, _RAN_S, _RUNNING_S, _SPEED, _PLACES = range(7)
_INSTANCES, _GPU_TYPE, _USER, _GPUS, _CPUS = range(7, 12)
_COLUMNS = 12


def _columns(arrivals: Sequence[Job], park: Park, users: dict[str, int]) -> NDArray[np.float64]:
    """(_COLUMNS, N) all numbers there are of each job; `users` are given numbers as they come.

    Jobs are walked once: what it costs to ask a record for a field is most of what tables cost.
    """
    nan, number = float("nan"), park.number
    rows = [
        (
            -job.age_s,
            job.duration_s or 0.0,
            job.communication,
            job.ran_s,
            job.running_s,
            nan if job.speed is None else job.speed,
            len(job.placements),
            job.instances,
            ANY_TYPE if job.gpu_type is None else number[job.gpu_type],
            users.setdefault(job.user, len(users)),
            job.gpus,
            job.cpus,
        )
        for job in arrivals
    ]
    flat = np.fromiter(chain.from_iterable(rows), np.float64, _COLUMNS * len(rows))
    return flat.reshape(-1, _COLUMNS).T.copy()


def _jobs_of(columns: NDArray[np.float64]) -> Jobs:
    columns[_GPUS:] = np.rint(columns[_GPUS:] * WHOLE)  # as `percent` has it
    whole = columns[_INSTANCES:].astype(np.int64)
    instances, gpu_type, user, gpu, cpu = whole
    return Jobs(
        arrival_s=columns[_ARRIVAL_S],
        duration_s=columns[_DURATION_S],
        instances=instances,
        gpu=gpu,
        cpu=cpu,
        gpu_type=gpu_type,
        comm=columns[_COMM],
        user=user,
        job_id=np.arange(columns.shape[1]),
    )


def _standing(
    told: DasState, arrivals: Sequence[Job], columns: NDArray[np.float64], park: Park
) -> tuple[Standing, NDArray[np.bool_]]:
    """Who runs where; and whether each job runs."""
    runs = columns[_PLACES] > 0
    running = runs.nonzero()[0]
    # Who was placed first comes first.
    running = running[(-columns[_RUNNING_S, running]).argsort(kind="stable")]
    places = [
        (place, park.place_of[one.machine], one.instances)
        for place in running.tolist()
        for one in arrivals[place].placements
    ]
    if told.running_order:
        turn = {name: place for place, name in enumerate(told.running_order)}
        turns = [turn.get(arrivals[place].id, len(turn)) for place in running.tolist()]
        running = running[np.array(turns).argsort(kind="stable")]
    nan = float("nan")
    standing = Standing(
        ran_s=columns[_RAN_S],
        running_s=columns[_RUNNING_S],
        speed=columns[_SPEED],
        places=np.fromiter(chain.from_iterable(places), np.int64, 3 * len(places)).reshape(-1, 3),
        running=running,
        kept=np.array(
            [nan if one.kept_speed is None else one.kept_speed for one in told.machines],
            np.float64,
        ),
    )
    return standing, runs


def _recall(told: DasState, users: dict[str, int], park: Park, desk: Desk) -> None:
    """What is known of users and of earlier decisions; machines that are gone are left out."""
    for name, finished in told.users.items():
        if name in users:
            desk.users[users[name]] = finished.jobs, finished.mean_log_minutes
    notes, place_of = told.history[: len(desk.noted_s)], park.place_of
    desk.counts[on.NOTED] = len(notes)
    desk.noted_s[: len(notes)] = [-note.age_s for note in notes]
    seen = [
        (row * len(place_of) + place_of[name], speed)
        for row, note in enumerate(notes)
        for name, speed in note.speeds.items()
        if name in place_of
    ]
    if seen:
        places, speeds = zip(*seen, strict=True)
        where = np.fromiter(places, np.int64, len(seen))
        desk.noted_speed.reshape(-1)[where] = np.fromiter(speeds, np.float32, len(seen))
        desk.noted.reshape(-1)[where] = True
