"""Decima's network as a policy: greedy episodes, and the reasons of its decisions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult, initial_state, room_for
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.models.decima.explain import explain
from loadmaster.models.decima.kernel import Scratch, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.platform.policies import Explanation
from loadmaster.platform.policies.decima_reasons import Moment, explanation
from loadmaster.platform.policies.moments import spread
from loadmaster.platform.rollouts.decima import run_episode


class DecimaPolicy:
    """Takes the best-scored stage and limit."""

    def __init__(self, network: DecimaNetwork) -> None:
        self.network = network

    def run(
        self,
        settings: DagSchedulingSettings,
        seed: int,
        workload: Workload,
        *,
        record: bool = False,
    ) -> EpisodeResult:
        return run_episode(self.network, settings, seed, workload, record=record)

    def explain(
        self, settings: DagSchedulingSettings, seed: int, workload: Workload, moments: int
    ) -> tuple[Explanation, ...]:
        walk = enumerate(self.walk(settings, seed, workload))
        open_ones = [count for count, moment in walk if moment.reasons.schedulable > 1]
        wanted = spread(open_ones, moments)
        walk = enumerate(self.walk(settings, seed, workload))
        return tuple(
            explanation(moment, count, workload) for count, moment in walk if count in wanted
        )

    def walk(
        self, settings: DagSchedulingSettings, seed: int, workload: Workload
    ) -> Iterator[Moment]:
        """The episode of `run`, decision by decision; a moment holds until the next one."""
        state, weights = initial_state(settings, workload, seed), weights_of(self.network)
        view, rows, room = self._tables(state, settings, workload)
        while (status := advance(state, workload.bank)) in (at.DECIDE, at.GROW_JOBS):
            if status == at.GROW_JOBS:
                state = at.with_more_slots(state)
                view, rows, room = self._tables(state, settings, workload)
                continue
            observe(state, workload.bank, view, rows)
            reasons = explain(view, weights, room)
            yield Moment(state, rows, reasons)
            apply_action(state, workload.bank, view, rows, reasons.row, reasons.limit)

    def _tables(
        self, state: SimState, settings: DagSchedulingSettings, workload: Workload
    ) -> tuple[Observation, NDArray[np.int64], Scratch]:
        view, rows = room_for(state, workload.bank)
        room = scratch_for(self.network, len(rows), len(state.jobs), settings.total_executors)
        return view, rows, room
