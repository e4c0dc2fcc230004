"""Episodes under DAS's network, simulator and policy in one compiled loop that leaves a tape."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, part
from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.desk import Desk, to_next_decision
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.observation import Observation, observe
from loadmaster.envs.gpu_scheduling.rewards import Terms
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.hashing import mixed
from loadmaster.models.das.kernel import ORDER, PLACE, Room, Weights, decide
from loadmaster.platform.rollouts.reel import FULL, Reel, copy_rows

# Columns of `Tape.facts`; the desk's sums follow.
TIME_S, ORDER_LOG, PLACE_LOG, FIRST_SUM = 0, 1, 2, 3
# Places in `Tape.used`.
STEPS, KEPT, ROWS = range(3)


class Tape(NamedTuple):
    """What an episode leaves: a row for every decision, and the tables of those kept, end to end.

    M machines, R racks, T past decisions.
    """

    used: NDArray[np.int64]  # (3,) rows in use: decisions, kept ones, their jobs
    facts: NDArray[np.float64]  # (steps, FIRST_SUM + SUMS)
    kept: NDArray[np.int64]  # (steps,) which decision it was
    counts: NDArray[np.int64]  # (steps,) its jobs
    machines: NDArray[np.float32]  # (steps, M, MACHINE_FEATURES)
    history_y: NDArray[np.float32]  # (steps, T, M)
    history_mask: NDArray[np.bool_]  # (steps, T, M)
    history_t: NDArray[np.float32]  # (steps, T)
    jobs: NDArray[np.float32]  # (rows, JOB_FEATURES)
    heeded: NDArray[np.bool_]  # (rows,)
    held: NDArray[np.float32]  # (rows, M)
    rack_held: NDArray[np.float32]  # (rows, R)
    priority: NDArray[np.float32]  # (rows,)
    affinity: NDArray[np.float32]  # (rows, M)


def reel_for(settings: GpuSchedulingSettings, cluster: Cluster) -> Reel[Tape]:
    racks = int(cluster.rack.max()) + 1
    return Reel(partial(blank_tape, len(cluster.rack), racks, settings.history, settings.max_queue))


def blank_tape(machines: int, racks: int, past: int, queue: int, decisions: int) -> Tape:
    rows = 8 * decisions + queue  # one observation at least; usual rollouts double it

    def of_decision(*shape: int) -> NDArray[np.float32]:
        return np.zeros((decisions, *shape), np.float32)

    def of_job(*shape: int) -> NDArray[np.float32]:
        return np.zeros((rows, *shape), np.float32)

    return Tape(
        used=np.zeros(3, np.int64),
        facts=np.zeros((decisions, FIRST_SUM + on.SUMS)),
        kept=np.zeros(decisions, np.int64),
        counts=np.zeros(decisions, np.int64),
        machines=of_decision(machines, told.MACHINE_FEATURES),
        history_y=of_decision(past, machines),
        history_mask=np.zeros((decisions, past, machines), np.bool_),
        history_t=of_decision(past),
        jobs=of_job(told.JOB_FEATURES),
        heeded=np.zeros(rows, np.bool_),
        held=of_job(machines),
        rack_held=of_job(racks),
        priority=of_job(),
        affinity=of_job(machines),
    )


@compiled
def run_network(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    desk: Desk,
    terms: Terms,
    view: Observation,
    weights: Weights,
    room: Room,
    draws: bool,
    luck: int,
    keep: float,
    chance: NDArray[np.float64],
    tape: Tape,
) -> int:
    """Let the network decide until the episode ends, or the trace or the tape does; the status.

    With `draws` it samples by `luck`, without it takes the means. Decision i is kept if `chance`
    (steps,) has a number below `keep` for it.
    """
    used = tape.used
    while True:
        # Before the simulator moves, so that a longer tape goes on where this one ended.
        if used[STEPS] == len(tape.facts) or used[ROWS] + len(view.jobs) > len(tape.jobs):
            return FULL
        status = to_next_decision(state, cluster, jobs, desk)
        if status != at.DECIDE:
            return status
        observe(state, cluster, jobs, desk, view)
        step = used[STEPS]
        decide(view, weights, room, draws, np.int64(mixed(luck, step)))
        facts = tape.facts[step]
        facts[TIME_S] = state.times[at.NOW]
        facts[ORDER_LOG], facts[PLACE_LOG] = room.logs[ORDER], room.logs[PLACE]
        for place in range(on.SUMS):
            facts[FIRST_SUM + place] = desk.sums[place]
        if chance[step] < keep:
            keep_view(view, room, tape, step, desk.counts[on.SHOWN])
        apply_action(state, cluster, jobs, desk, terms, room.priority, room.affinity)
        used[STEPS] = step + 1


@part
def keep_view(view: Observation, room: Room, tape: Tape, step: int, count: int) -> None:
    """Copy the rows in use to the tape's end, and what was done about them."""
    place, start = tape.used[KEPT], tape.used[ROWS]
    tape.kept[place], tape.counts[place] = step, count
    copy_rows(view.machines, tape.machines[place], 0, len(view.machines))
    copy_rows(view.history_y, tape.history_y[place], 0, len(view.history_y))
    copy_rows(view.history_mask, tape.history_mask[place], 0, len(view.history_y))
    for past in range(len(view.history_t)):
        tape.history_t[place, past] = view.history_t[past]
    copy_rows(view.jobs, tape.jobs, start, count)
    copy_rows(view.held, tape.held, start, count)
    copy_rows(view.rack_held, tape.rack_held, start, count)
    copy_rows(room.affinity, tape.affinity, start, count)
    for row in range(count):
        tape.heeded[start + row] = view.heeded[row]
        tape.priority[start + row] = room.priority[row]
    tape.used[KEPT] = place + 1
    tape.used[ROWS] = start + count
