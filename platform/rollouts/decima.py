"""Episodes under Decima's network, simulator and policy in one compiled loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, inner
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.jobs import JobBank, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    initial_state,
    result_of,
    room_for,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.hashing import mixed
from loadmaster.models.decima.kernel import Scratch, Weights, decide, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork

_UNIT = 1.0 / (1 << 53)  # 53 random bits to a number in [0, 1)
_S11 = np.uint64(11)


@inner
def unit_draw(luck: int, count: int) -> float:
    """A number in [0, 1) that depends on nothing but `luck` and `count`."""
    return np.float64(mixed(luck, count) >> _S11) * _UNIT


@compiled
def run_network(
    state: SimState,
    bank: JobBank,
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
        view, rows = room_for(state, workload.bank)
        room = scratch_for(network, len(rows), len(state.jobs), settings.total_executors)
        status = run_network(state, workload.bank, view, rows, weights, room, luck)
        if status == at.GROW_TRACE:
            state = at.with_more_trace(state)
        elif status == at.GROW_JOBS:
            state = at.with_more_slots(state)
        else:
            return result_of(state, workload, settings, "decima", seed)
