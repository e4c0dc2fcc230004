"""Whoever runs a cluster and asks the decision service about it: here, a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmaster.envs.dag_scheduling import observation as seen
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.observation import observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.serving.client import Client
from loadmaster.serving.client.responses import Decision
from loadmaster.serving.systems.decima.recording import state_of


def operate(
    client: Client, settings: DagSchedulingSettings, seed: int, mode: str
) -> Iterator[Decision]:
    """An episode in which the service decides; it hears of every job that is done."""
    workload = load_workload(settings)
    state, bank = initial_state(settings, workload, seed), workload.bank
    view, rows = buffers_for(state, bank)
    done = np.zeros(len(state.completed_ms), bool)
    last: str | None = None
    while (status := advance(state, bank)) in (at.DECIDE, at.GROW_JOBS):
        if status == at.GROW_JOBS:
            state = at.with_more_slots(state)
            view, rows = buffers_for(state, bank)
            continue
        for job in np.flatnonzero((state.completed_ms != at.NONE) & ~done):
            done[job] = True
            taken_ms = state.completed_ms[job] - state.arrivals[job, 0]
            work_ms = bank.work_ms[state.arrivals[job, 1]]
            client.feedback(
                "decima",
                {"job": str(job), "completion_s": taken_ms / 1000, "work_s": work_ms / 1000},
                id=last,
            )
        observe(state, bank, view, rows)
        answer = client.decide("decima", state_of(state, bank, ask="one"), mode=mode)
        last = answer.id
        row, limit = _chosen(answer.decision, state, rows, int(view.cluster[seen.STAGES]))
        assert apply_action(state, bank, view, rows, row if row >= 0 else len(rows), limit)
        yield answer


def _chosen(
    decision: dict[str, Any], state: at.SimState, rows: np.ndarray[Any, Any], stages: int
) -> tuple[int, int]:
    """The row of the observation that was meant, -1 for idling, and the limit."""
    if not decision["assignments"]:
        return -1, 0
    (given,) = decision["assignments"]
    stride = int(state.setup[at.STRIDE])
    for row in range(stages):
        slot, stage = divmod(int(rows[row]), stride)
        if (str(state.jobs[slot, at.NUMBER]), str(stage)) == (given["job"], given["stage"]):
            return row, given["limit"]
    raise AssertionError(f"{given} is not among the stages")
