"""Pods and nodes, compiled: scaling, scheduling, resizes, restarts after OOM, new nodes.

`reconcile` moves the pods towards the plan, as far as a moment allows: the disruption budget limits
restarts, a node without room defers, and pods without a node wait for a new one.
"""

import math

from loadmaster.envs.compiled import njit_internal, normal
from loadmaster.envs.pod_scaling.settings import INTERVAL_S
from loadmaster.envs.pod_scaling.state import (
    BACKOFFS,
    CPU,
    EMPTY_SINCE,
    END_CORES,
    END_PODS,
    HELD,
    HELD_CORES,
    HELD_MIB,
    KEY,
    LEAST_MIB,
    MEMORY,
    NEVER,
    NODE,
    NODE_CPU,
    NODE_MEMORY,
    NODE_READY_AT,
    NOW,
    OOMS,
    POD_COLUMNS,
    PODS,
    READY,
    READY_AT,
    READY_CORES,
    REPLICAS,
    RESTARTS,
    S_OOMS,
    S_RESTARTS,
    SETTLED,
    SimConstants,
    SimState,
)

MOST_BACKOFF_S, BACKOFF_RESET_S = 300.0, 600.0
NODE_SIGMA = 0.25  # of the lognormal time until a new node is ready
NODE_IDLE_S = 600.0  # until an empty node is removed
_POD_STARTS, _NODE_STARTS = 1, 2  # added to KEY: purposes of random numbers
_SLACK = 1e-9


@njit_internal
def reconcile(constants: SimConstants, state: SimState, start_s: float) -> None:
    """Move pods towards the plan at the begin of an interval, and sum up what they hold.

    SETTLED is set if nothing is left to do; until the plan changes or a pod fails, nothing will be.
    """
    clock = state.clock
    now = float(clock[NOW] * INTERVAL_S)
    wanted = int(state.plan[REPLICAS])
    while clock[PODS] > wanted:
        _remove_pod(constants, state)
    while clock[PODS] < wanted:
        _set_pod(state, clock[PODS], -1.0, NEVER)
        state.pods[clock[PODS], BACKOFFS] = 0.0
        clock[PODS] += 1
    done = _resize_pods(constants, state, start_s, now)
    done = _place_pods(constants, state, start_s, now) and done
    done = _remove_idle_nodes(constants, state, now) and done
    sum_pods(state, now)
    for pod in range(clock[PODS]):
        done = done and state.pods[pod, READY_AT] <= now
    clock[SETTLED] = done


@njit_internal
def _set_pod(state: SimState, pod: int, node: float, ready_at: float) -> None:
    """Give a pod the size of the plan, on a node or waiting for one."""
    state.pods[pod, CPU], state.pods[pod, MEMORY] = state.plan[CPU], state.plan[MEMORY]
    state.pods[pod, NODE], state.pods[pod, READY_AT] = node, ready_at


@njit_internal
def sum_pods(state: SimState, now: float) -> None:
    """Write `totals`: pods and cores that are ready, weighted by their part of the interval."""
    totals = state.totals
    totals[READY] = totals[READY_CORES] = totals[END_PODS] = totals[END_CORES] = 0.0
    totals[HELD] = totals[HELD_CORES] = totals[HELD_MIB] = 0.0
    totals[LEAST_MIB] = math.inf
    for number in range(state.clock[PODS]):
        pod = state.pods[number]
        if pod[NODE] < 0:
            continue
        totals[HELD] += 1.0
        totals[HELD_CORES] += pod[CPU]
        totals[HELD_MIB] += pod[MEMORY]
        share = min(max((now + INTERVAL_S - pod[READY_AT]) / INTERVAL_S, 0.0), 1.0)
        if share > 0:
            totals[READY] += share
            totals[END_PODS] += 1.0
            totals[END_CORES] += pod[CPU]
            totals[READY_CORES] += share * pod[CPU]
            totals[LEAST_MIB] = min(totals[LEAST_MIB], pod[MEMORY])


@njit_internal
def _start_time(constants: SimConstants, state: SimState, start_s: float, pod: int) -> float:
    """Lognormal start of a container, and its readiness."""
    count = state.clock[NOW] * len(state.pods) + pod
    drawn = normal(state.clock[KEY] + _POD_STARTS, count)
    return start_s * math.exp(constants.start_sigma * drawn) + constants.readiness_s


@njit_internal
def _give_back(constants: SimConstants, state: SimState, number: int) -> None:
    """Free what a pod holds of its node."""
    pod = state.pods[number]
    if pod[NODE] >= 0:
        node = state.nodes[int(pod[NODE])]
        node[NODE_CPU] += constants.request_share * pod[CPU]
        node[NODE_MEMORY] += constants.request_share * pod[MEMORY]


@njit_internal
def _remove_pod(constants: SimConstants, state: SimState) -> None:
    """Remove the pod that is ready last: one that waits or starts, else the newest."""
    last = state.clock[PODS] - 1
    victim = last
    for pod in range(last, -1, -1):
        if state.pods[pod, READY_AT] > state.pods[victim, READY_AT]:
            victim = pod
    _give_back(constants, state, victim)
    for column in range(POD_COLUMNS):
        state.pods[victim, column] = state.pods[last, column]
    state.clock[PODS] = last


@njit_internal
def _resize_pods(constants: SimConstants, state: SimState, start_s: float, now: float) -> bool:
    """Resize pods on nodes, by eviction or in place; whether all have the size of the plan."""
    count, available, done = state.clock[PODS], 0, True
    for pod in range(count):
        available += state.pods[pod, READY_AT] <= now
    # At most half of the pods at once, and no more than the disruption budget leaves.
    most = min(math.ceil(constants.max_unavailable * count - _SLACK), max(count // 2, 1))
    left = most - (count - available)
    for number in range(count):
        pod = state.pods[number]
        if pod[NODE] < 0 or (pod[CPU] == state.plan[CPU] and pod[MEMORY] == state.plan[MEMORY]):
            continue
        ready = pod[READY_AT] <= now
        if constants.in_place:
            restarted = _resize_in_place(
                constants, state, number, start_s, now, left > 0 or not ready
            )
            done = done and pod[CPU] == state.plan[CPU] and pod[MEMORY] == state.plan[MEMORY]
        elif left > 0 or not ready:
            _give_back(constants, state, number)
            _set_pod(state, number, -1.0, NEVER)
            pod[BACKOFFS] = 0.0
            restarted = True
        else:
            restarted, done = False, False
        if restarted:
            left -= ready
            _count_restart(state)
    return done


@njit_internal
def _resize_in_place(
    constants: SimConstants,
    state: SimState,
    number: int,
    start_s: float,
    now: float,
    may_restart: bool,
) -> bool:
    """Change what the node has room for, else defer; whether the container restarts.

    Less memory takes a restart. A size beyond the whole node is infeasible: it is deferred for
    ever.
    """
    pod, node = state.pods[number], state.nodes[int(state.pods[number, NODE])]
    cores = constants.request_share * (state.plan[CPU] - pod[CPU])
    if cores <= node[NODE_CPU] + _SLACK:
        node[NODE_CPU] -= cores
        pod[CPU] = state.plan[CPU]
    mib = constants.request_share * (state.plan[MEMORY] - pod[MEMORY])
    if mib == 0 or mib > node[NODE_MEMORY] + _SLACK or (mib < 0 and not may_restart):
        return False
    node[NODE_MEMORY] -= mib
    pod[MEMORY] = state.plan[MEMORY]
    if mib > 0:
        return False
    pod[READY_AT] = now + _start_time(constants, state, start_s, number)
    return True


@njit_internal
def _count_restart(state: SimState) -> None:
    state.clock[RESTARTS] += 1
    state.step[S_RESTARTS] += 1.0


@njit_internal
def _place_pods(constants: SimConstants, state: SimState, start_s: float, now: float) -> bool:
    """Put waiting pods on the first node with room, and start nodes for the others."""
    share, waiting = constants.request_share, 0
    for pod in range(state.clock[PODS]):
        if state.pods[pod, NODE] >= 0:
            continue
        chosen = -1
        cores, mib = share * state.plan[CPU], share * state.plan[MEMORY]
        for number in range(len(state.nodes)):
            node = state.nodes[number]
            room = node[NODE_CPU] >= cores - _SLACK and node[NODE_MEMORY] >= mib - _SLACK
            if node[NODE_READY_AT] <= now and room:
                chosen = number
                break
        if chosen < 0:
            _set_pod(state, pod, -1.0, NEVER)
            waiting += 1
            continue
        state.nodes[chosen, NODE_CPU] -= cores
        state.nodes[chosen, NODE_MEMORY] -= mib
        # An episode begins with ready pods.
        ready_at = now + _start_time(constants, state, start_s, pod) if now > 0 else 0.0
        _set_pod(state, pod, chosen, ready_at)
    if waiting:
        cores = waiting * share * state.plan[CPU] / constants.node_cores
        mib = waiting * share * state.plan[MEMORY] / constants.node_mib
        _start_nodes(constants, state, math.ceil(max(cores, mib)), now)
    return waiting == 0


@njit_internal
def _start_nodes(constants: SimConstants, state: SimState, wanted: int, now: float) -> None:
    """Have so many nodes on their way, if the cluster may have them."""
    for number in range(len(state.nodes)):
        ready_at = state.nodes[number, NODE_READY_AT]
        if now < ready_at < NEVER:
            wanted -= 1
    for number in range(len(state.nodes)):
        node = state.nodes[number]
        if wanted > 0 and node[NODE_READY_AT] == NEVER:
            drawn = normal(
                state.clock[KEY] + _NODE_STARTS, state.clock[NOW] * len(state.nodes) + number
            )
            node[NODE_READY_AT] = now + constants.node_start_s * math.exp(NODE_SIGMA * drawn)
            node[NODE_CPU], node[NODE_MEMORY] = constants.node_cores, constants.node_mib
            node[EMPTY_SINCE] = NEVER
            wanted -= 1


@njit_internal
def _remove_idle_nodes(constants: SimConstants, state: SimState, now: float) -> bool:
    """Remove nodes beyond the least number that were empty for long; whether none is empty."""
    settled = True
    for number in range(constants.min_nodes, len(state.nodes)):
        node = state.nodes[number]
        if node[NODE_READY_AT] == NEVER:
            continue
        settled = settled and node[NODE_READY_AT] <= now
        empty = (
            node[NODE_CPU] >= constants.node_cores - _SLACK
            and node[NODE_MEMORY] >= constants.node_mib - _SLACK
        )
        if not empty or node[NODE_READY_AT] > now:
            node[EMPTY_SINCE] = NEVER
        elif node[EMPTY_SINCE] == NEVER:
            node[EMPTY_SINCE] = now
        elif now - node[EMPTY_SINCE] >= NODE_IDLE_S:
            node[NODE_READY_AT] = NEVER
        settled = settled and not empty
    return settled


@njit_internal
def restart_after_oom(
    constants: SimConstants, state: SimState, start_s: float, need_mib: float
) -> int:
    """Restart pods that needed more memory than their limit, after a back-off; how many."""
    end, count = float((state.clock[NOW] + 1) * INTERVAL_S), 0
    for number in range(state.clock[PODS]):
        pod = state.pods[number]
        if pod[NODE] < 0 or pod[READY_AT] >= end or need_mib <= pod[MEMORY]:
            continue
        if end - pod[READY_AT] > BACKOFF_RESET_S:
            pod[BACKOFFS] = 0.0
        wait = min(constants.backoff_s * 2.0 ** pod[BACKOFFS], MOST_BACKOFF_S)
        pod[BACKOFFS] += 1.0
        pod[READY_AT] = end + wait + _start_time(constants, state, start_s, number)
        count += 1
        _count_restart(state)
    state.clock[OOMS] += count
    state.step[S_OOMS] += count
    if count:
        state.clock[SETTLED] = 0
    return count
