"""A state in the environment's own tables, so that it is seen and acted on as in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling.cluster import WHOLE, Cluster
from loadmaster.envs.gpu_scheduling.desk import Desk, new_desk
from loadmaster.envs.gpu_scheduling.gpus import GPU_TYPES, GpuType
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE, Jobs
from loadmaster.envs.gpu_scheduling.resuming import Standing, resume
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState, new_state
from loadmaster.serving.das.ledger import percent
from loadmaster.serving.das.schema import DasState, Job, Machine

_NUMBER = {name: number for number, name in enumerate(GPU_TYPES)}
_SPEED = {gpu.name: gpu.speed for gpu in GPU_TYPES.values()}
_PRICE = {gpu.name: gpu.price_per_hour or 0.0 for gpu in GPU_TYPES.values()}
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
    cluster: Cluster
    jobs: Jobs
    state: SimState
    desk: Desk


def tables_of(
    told: DasState, settings: GpuSchedulingSettings, ordering: int, *, by_user: bool = False
) -> Tables:
    """The cluster as it stands, for a scheduler that orders jobs by that rule.

    Of the settings count what the policy looks at and may do, and the slowdown model.
    """
    number = _NUMBER
    own = {machine.gpu for machine in told.machines if machine.gpu not in _NUMBER}
    if own:
        kinds = tuple(GpuType(name=name, speed=1.0) for name in sorted(own))
        settings = settings.model_copy(update={"gpu_types": kinds})
        number = {name: place for place, name in enumerate((*_NUMBER, *sorted(own)))}
    arrivals = sorted(told.jobs, key=_last_come)
    cluster = _cluster_of(told.machines, number)
    jobs, users = _jobs_of(arrivals, number)
    state = new_state(settings, cluster, jobs, seed=0, by_user=by_user)
    desk = new_desk(settings, cluster, jobs)
    place_of = {machine.name: place for place, machine in enumerate(told.machines)}
    resume(state, cluster, jobs, desk, _standing(told, arrivals, place_of), ordering)
    _recall(told, users, place_of, desk)
    desk.counts[on.MOMENT] = _BEFORE[told.ask]
    return Tables(told.machines, arrivals, cluster, jobs, state, desk)


def _last_come(job: Job) -> float:
    return -job.age_s


def _cluster_of(machines: Sequence[Machine], number: dict[str, int]) -> Cluster:
    racks: dict[str, int] = {}
    speeds = [_SPEED[one.gpu] if one.speed is None else one.speed for one in machines]
    prices = [
        _PRICE[one.gpu] if one.price_per_hour is None else one.price_per_hour for one in machines
    ]
    return Cluster(
        gpu_capacity=np.array([WHOLE * one.gpus for one in machines], np.int64),
        cpu_capacity=np.array([percent(one.cpus) for one in machines], np.int64),
        gpu_type=np.array([number[one.gpu] for one in machines], np.int64),
        speed=np.array(speeds, np.float64),
        price_per_s=np.array(prices, np.float64) / 3600,
        rack=np.array([racks.setdefault(one.rack, len(racks)) for one in machines], np.int64),
    )


def _jobs_of(arrivals: Sequence[Job], number: dict[str, int]) -> tuple[Jobs, dict[str, int]]:
    """The jobs, and the number of each user."""
    users: dict[str, int] = {}
    kinds = [ANY_TYPE if job.gpu_type is None else number[job.gpu_type] for job in arrivals]
    jobs = Jobs(
        arrival_s=np.array([-job.age_s for job in arrivals], np.float64),
        duration_s=np.array([job.duration_s or 0.0 for job in arrivals], np.float64),
        instances=np.array([job.instances for job in arrivals], np.int64),
        gpu=np.array([percent(job.gpus) for job in arrivals], np.int64),
        cpu=np.array([percent(job.cpus) for job in arrivals], np.int64),
        gpu_type=np.array(kinds, np.int64),
        comm=np.array([job.communication for job in arrivals], np.float64),
        user=np.array([users.setdefault(job.user, len(users)) for job in arrivals], np.int64),
        job_id=np.arange(len(arrivals)),
    )
    return jobs, users


def _standing(told: DasState, arrivals: Sequence[Job], place_of: dict[str, int]) -> Standing:
    nan = float("nan")
    running = [place for place, job in enumerate(arrivals) if job.placements]
    running.sort(key=lambda place: -arrivals[place].running_s)  # who was placed first comes first
    places = [
        (place, place_of[one.machine], one.instances)
        for place in running
        for one in arrivals[place].placements
    ]
    if told.running_order:
        turn = {name: place for place, name in enumerate(told.running_order)}
        running.sort(key=lambda place: turn.get(arrivals[place].id, len(turn)))
    return Standing(
        ran_s=np.array([job.ran_s for job in arrivals], np.float64),
        running_s=np.array([job.running_s for job in arrivals], np.float64),
        speed=np.array([nan if job.speed is None else job.speed for job in arrivals], np.float64),
        places=np.array(places, np.int64).reshape(-1, 3),
        running=np.array(running, np.int64),
        kept=np.array(
            [nan if one.kept_speed is None else one.kept_speed for one in told.machines],
            np.float64,
        ),
    )


def _recall(told: DasState, users: dict[str, int], place_of: dict[str, int], desk: Desk) -> None:
    """What is known of users and of earlier decisions; machines that are gone are left out."""
    for name, finished in told.users.items():
        if name in users:
            desk.users[users[name], on.JOBS_DONE] = finished.jobs
            desk.users[users[name], on.LOG_RUN] = finished.mean_log_minutes
    notes = told.history[: len(desk.noted_s)]
    desk.counts[on.NOTED] = len(notes)
    desk.noted_s[: len(notes)] = [-note.age_s for note in notes]
    seen = [
        (row, place_of[name], speed)
        for row, note in enumerate(notes)
        for name, speed in note.speeds.items()
        if name in place_of
    ]
    if seen:
        rows, places, speeds = zip(*seen, strict=True)
        desk.noted_speed[rows, places] = speeds
        desk.noted[rows, places] = True
