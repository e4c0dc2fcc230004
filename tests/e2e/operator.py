"""A simulated cluster whose scheduler calls the decision service."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmaster.envs.dag_scheduling import observation as view_cols
from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.observation import observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.serving.client import Client
from loadmaster.serving.client.responses import Decision
from loadmaster.serving.systems.decima.examples import state_of


def operate(
    client: Client, settings: DagSchedulingSettings, seed: int, mode: str
) -> Iterator[Decision]:
    """Run an episode in which the service decides; report every finished job as feedback."""
    workload = load_workload(settings)
    state, bank = initial_state(settings, workload, seed), workload.bank
    view, rows = buffers_for(state, bank)
    done = np.zeros(len(state.completed_ms), bool)
    last: str | None = None
    while (status := advance(state, bank)) in (state_cols.DECIDE, state_cols.GROW_JOBS):
        if status == state_cols.GROW_JOBS:
            state = state_cols.with_more_slots(state)
            view, rows = buffers_for(state, bank)
            continue
        for job in np.flatnonzero((state.completed_ms != state_cols.NONE) & ~done):
            done[job] = True
            taken_ms = state.completed_ms[job] - state.arrivals[job, 0]
            work_ms = bank.work_ms[state.arrivals[job, 1]]
            client.feedback(
                "decima",
                {"job": str(job), "completion_s": taken_ms / 1000, "work_s": work_ms / 1000},
                id=last,
            )
        observe(state, bank, view, rows)
        decision = client.decide("decima", state_of(state, bank, ask="one"), mode=mode)
        last = decision.id
        row, limit = _find_row(decision.decision, state, rows, int(view.cluster[view_cols.STAGES]))
        assert apply_action(state, bank, view, rows, row if row >= 0 else len(rows), limit)
        yield decision


def _find_row(
    decision: dict[str, Any], state: state_cols.SimState, rows: np.ndarray[Any, Any], stages: int
) -> tuple[int, int]:
    """Row of the observation that was chosen (-1: none), and the limit."""
    if not decision["assignments"]:
        return -1, 0
    (chosen,) = decision["assignments"]
    stride = int(state.setup[state_cols.STRIDE])
    for row in range(stages):
        slot, stage = divmod(int(rows[row]), stride)
        job = str(state.jobs[slot, state_cols.NUMBER])
        if (job, str(stage)) == (chosen["job"], chosen["stage"]):
            return row, chosen["limit"]
    raise AssertionError(f"{chosen} is not among the stages")
