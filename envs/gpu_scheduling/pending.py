"""The pending jobs: in order of arrival, and group by group in order of their keys."""

from __future__ import annotations

from loadmaster.envs.compiled import inner
from loadmaster.envs.gpu_scheduling import heaps
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.shapes import demand, undemand
from loadmaster.envs.gpu_scheduling.state import SimState


@inner
def enqueue(state: SimState, cluster: Cluster, jobs: Jobs, job: int) -> None:
    """Add a job whose key is set: a new one, or one that was stopped."""
    end = len(state.jobs) - 1
    before = state.jobs[end, at.EARLIER]
    while before != end and before > job:  # jobs are numbered in order of arrival
        before = state.jobs[before, at.EARLIER]
    after = state.jobs[before, at.LATER]
    state.jobs[before, at.LATER], state.jobs[after, at.EARLIER] = job, job
    state.jobs[job, at.LATER], state.jobs[job, at.EARLIER] = after, before
    state.clock[at.QUEUED] += 1

    group = state.jobs[job, at.GROUP]
    length = state.groups[group, at.LENGTH]
    heaps.push(
        state.heap, state.place, state.key, jobs.job_id, state.groups[group, at.HEAP], length, job
    )
    state.groups[group, at.LENGTH] = length + 1
    if length == 0:
        place = state.clock[at.WAITING_GROUPS]
        state.groups[place, at.WAITING] = group
        state.groups[group, at.WAITING_AT] = place
        state.clock[at.WAITING_GROUPS] = place + 1
        demand(state, cluster, state.groups[group, at.SHAPE])


@inner
def dequeue(state: SimState, jobs: Jobs, job: int) -> None:
    before, after = state.jobs[job, at.EARLIER], state.jobs[job, at.LATER]
    state.jobs[before, at.LATER], state.jobs[after, at.EARLIER] = after, before
    state.clock[at.QUEUED] -= 1

    group = state.jobs[job, at.GROUP]
    length = state.groups[group, at.LENGTH]
    heaps.take_out(
        state.heap, state.place, state.key, jobs.job_id, state.groups[group, at.HEAP], length, job
    )
    state.groups[group, at.LENGTH] = length - 1
    if length == 1:
        state.clock[at.WAITING_GROUPS] -= 1
        last = state.groups[state.clock[at.WAITING_GROUPS], at.WAITING]
        place = state.groups[group, at.WAITING_AT]
        state.groups[place, at.WAITING] = last
        state.groups[last, at.WAITING_AT] = place
        undemand(state, state.groups[group, at.SHAPE])


@inner
def rekey(state: SimState, jobs: Jobs, job: int, key: float) -> None:
    """Give a pending job another key."""
    group = state.jobs[job, at.GROUP]
    state.key[job] = key
    first, length = state.groups[group, at.HEAP], state.groups[group, at.LENGTH]
    heaps.move(state.heap, state.place, state.key, jobs.job_id, first, length, job)
