"""The pending jobs: in order of arrival, and group by group in order of their keys."""

from __future__ import annotations

from loadmaster.envs.compiled import inner
from loadmaster.envs.gpu_scheduling import heaps
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import instances_that_fit
from loadmaster.envs.gpu_scheduling.state import SimState


@inner
def enqueue(state: SimState, jobs: Jobs, job: int) -> None:
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
        state.groups[group, at.FITS] = at.OPEN  # nobody kept count while it was empty
        state.clock[at.WAITING_GROUPS] = place + 1


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


@inner
def rekey(state: SimState, jobs: Jobs, job: int, key: float) -> None:
    """Give a pending job another key."""
    group = state.jobs[job, at.GROUP]
    state.key[job] = key
    first, length = state.groups[group, at.HEAP], state.groups[group, at.LENGTH]
    heaps.move(state.heap, state.place, state.key, jobs.job_id, first, length, job)


@inner
def unblock(state: SimState) -> None:
    """Room was made: what did not fit before may fit now, with the machines that changed.

    That is about the changes of this event alone: who was not tried in the last may fit anywhere.
    """
    state.clock[at.FREED] = state.clock[at.CHANGES]
    for place in range(state.clock[at.WAITING_GROUPS]):
        group = state.groups[place, at.WAITING]
        blocked = state.groups[group, at.FITS] == at.BLOCKED
        state.groups[group, at.FITS] = at.RETRY if blocked else at.OPEN


@inner
def worth_a_try(state: SimState, cluster: Cluster, jobs: Jobs, group: int) -> bool:
    """Whether a group's first may fit. What did not, still does not where nothing has changed."""
    if state.groups[group, at.FITS] != at.RETRY:
        return bool(state.groups[group, at.FITS] == at.OPEN)
    job = state.heap[state.groups[group, at.HEAP]]
    for change in range(state.clock[at.FREED]):
        machine = state.machines[change, at.CHANGED]
        if instances_that_fit(cluster, jobs, state.free, job, machine) > 0:
            return True
    state.groups[group, at.FITS] = at.BLOCKED
    return False
