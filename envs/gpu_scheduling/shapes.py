"""How many more instances of each shape the cluster could take, counted as machines change.

A gang fits if the cluster could take as many instances of its shape as it has. There are far fewer
shapes than jobs, and a job that comes or goes touches a few machines, so the count is cheap; asking
every machine for every pending job is not.
"""

from __future__ import annotations

from loadmaster.envs.compiled import njit_internal
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.jobs import ANY_TYPE
from loadmaster.envs.gpu_scheduling.state import SimState

_ANY_NUMBER = 1 << 32  # of instances that ask for nothing


@njit_internal
def fits(state: SimState, group: int) -> bool:
    """Whether a job of this group, which has pending ones, could start now."""
    shape = state.groups[group, at.SHAPE]
    return bool(state.shapes[shape, at.HOLDS] >= state.groups[group, at.INSTANCES])


@njit_internal
def held(state: SimState, shape: int, gpu: int, cpu: int) -> int:
    """How many instances a machine with so much free could take."""
    each_gpu, each_cpu = state.shapes[shape, at.EACH_GPU], state.shapes[shape, at.EACH_CPU]
    if gpu < each_gpu or cpu < each_cpu:
        return 0
    by_gpu = gpu // each_gpu if each_gpu > 0 else _ANY_NUMBER
    by_cpu = cpu // each_cpu if each_cpu > 0 else _ANY_NUMBER
    return min(by_gpu, by_cpu)


@njit_internal
def recount(state: SimState, cluster: Cluster, machine: int, gpu: int, cpu: int) -> None:
    """So much of a machine was just taken, or given back where it is negative."""
    free_gpu, free_cpu = state.free[machine, at.GPU], state.free[machine, at.CPU]
    kind = cluster.gpu_type[machine]
    for place in range(state.clock[at.WAITING_SHAPES]):
        shape = state.shapes[place, at.IN_DEMAND]
        if state.shapes[shape, at.KIND] in (ANY_TYPE, kind):
            state.shapes[shape, at.HOLDS] += held(state, shape, free_gpu, free_cpu)
            state.shapes[shape, at.HOLDS] -= held(state, shape, free_gpu + gpu, free_cpu + cpu)


@njit_internal
def demand(state: SimState, cluster: Cluster, shape: int) -> None:
    """One more group of this shape has pending jobs."""
    state.shapes[shape, at.GROUPS] += 1
    if state.shapes[shape, at.GROUPS] > 1:
        return
    place = state.clock[at.WAITING_SHAPES]
    state.shapes[place, at.IN_DEMAND] = shape
    state.shapes[shape, at.IN_DEMAND_AT] = place
    state.clock[at.WAITING_SHAPES] = place + 1
    kind, holds = state.shapes[shape, at.KIND], 0
    for machine in range(len(state.free)):
        if kind in (ANY_TYPE, cluster.gpu_type[machine]):
            holds += held(state, shape, state.free[machine, at.GPU], state.free[machine, at.CPU])
    state.shapes[shape, at.HOLDS] = holds


@njit_internal
def undemand(state: SimState, shape: int) -> None:
    """One group less: nobody keeps count of a shape without pending jobs."""
    state.shapes[shape, at.GROUPS] -= 1
    if state.shapes[shape, at.GROUPS] > 0:
        return
    state.clock[at.WAITING_SHAPES] -= 1
    last = state.shapes[state.clock[at.WAITING_SHAPES], at.IN_DEMAND]
    place = state.shapes[shape, at.IN_DEMAND_AT]
    state.shapes[place, at.IN_DEMAND] = last
    state.shapes[last, at.IN_DEMAND_AT] = place
