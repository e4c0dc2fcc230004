"""Rollouts under Decima's network with all that learning needs: observations, actions, rewards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.jobs import JobBank, Workload
from loadmaster.envs.dag_scheduling.observation import (
    FITS,
    Observation,
    blank_observation,
    observe,
    too_large,
)
from loadmaster.envs.dag_scheduling.rollout import initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.dag_scheduling.vector import view_of
from loadmaster.models.decima.kernel import Scratch, Weights, decide, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.platform.rollouts.decima import unit_draw
from loadmaster.platform.training.input_driven import Rollout

_FULL = -1  # no room for another decision


@dataclass(frozen=True)
class Recording:
    """One rollout: T decisions."""

    observations: Observation  # every table with a leading axis of T
    actions: NDArray[np.int64]  # (T, 2) stage row, limit
    log_probability: NDArray[np.float64]  # (T,)
    rollout: Rollout
    mean_jct_s: float  # over finished jobs
    truncated: bool


@compiled
def record_network(
    state: SimState,
    bank: JobBank,
    views: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    room: Scratch,
    luck: int,
    actions: NDArray[np.int64],
    facts: NDArray[np.float64],
) -> tuple[int, int, int]:
    """Fill one row a decision; the decisions made, the status, and whether the last view fitted.

    `facts` rows: log-probability, time in ms, job-ms so far.
    """
    step = 0
    while True:
        status = advance(state, bank)
        if status != at.DECIDE:
            return step, status, FITS
        if step == len(actions):
            return step, _FULL, FITS
        view = view_of(views, step)
        fit = observe(state, bank, view, rows)
        if fit != FITS:
            return step, status, fit
        stage_draw, limit_draw = unit_draw(luck, 2 * step), unit_draw(luck, 2 * step + 1)
        row, limit, log_probability = decide(view, weights, room, stage_draw, limit_draw)
        actions[step, 0], actions[step, 1] = row, limit
        facts[step, 0] = log_probability
        facts[step, 1] = state.clock[at.NOW]
        facts[step, 2] = state.clock[at.JOB_MS]
        apply_action(state, bank, view, rows, row, limit)
        step += 1


def record_rollout(
    network: DecimaNetwork,
    settings: DagSchedulingSettings,
    seed: int,
    workload: Workload,
    luck: int,
    decisions_max: int = 1024,
) -> Recording:
    """Sample one rollout of the episode of `seed`; `luck` makes it differ from its fellows."""
    weights = weights_of(network)
    while True:
        state = initial_state(settings, workload, seed, slots=settings.total_jobs)
        blank = blank_observation(settings.max_stages, settings.max_jobs, settings.max_edges)
        views = Observation._make(
            np.zeros((decisions_max, *table.shape), table.dtype) for table in blank
        )
        room = scratch_for(
            network, settings.max_stages, settings.max_jobs, settings.total_executors
        )
        rows = np.zeros(settings.max_stages, np.int64)
        actions = np.zeros((decisions_max, 2), np.int64)
        facts = np.zeros((decisions_max, 3))
        count, status, fit = record_network(
            state, workload.bank, views, rows, weights, room, luck, actions, facts
        )
        if fit != FITS:
            raise too_large(fit, settings, float(state.clock[at.NOW]) / 1000)
        if status != _FULL:
            break
        decisions_max *= 2  # the same seed and luck give the same rollout, with room for all of it
    end = np.array([state.clock[at.NOW], state.clock[at.JOB_MS]], np.float64)
    counter = 2 if settings.objective == "jct" else 1
    passed = np.append(facts[:count, counter], end[counter - 1])
    passed[0] = 0  # what passed before the first decision joins its reward
    done = state.completed_ms != at.NONE
    jct_ms = (state.completed_ms - state.arrivals[:, 0])[done]
    return Recording(
        observations=Observation._make(table[:count] for table in views),
        actions=actions[:count],
        log_probability=facts[:count, 0],
        rollout=Rollout(
            time_s=facts[:count, 1] / 1000,
            reward=-np.diff(passed) / 1000,
            end_s=float(end[0]) / 1000,
        ),
        mean_jct_s=float(jct_ms.mean()) / 1000 if len(jct_ms) else float("nan"),
        truncated=status == at.HORIZON,
    )
