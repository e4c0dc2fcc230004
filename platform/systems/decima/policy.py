"""Decima's network as a policy: greedy episodes, and the reasons of its decisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.jobs import Workload
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult, buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.models.decima.compiled import Scratch, scratch_for, weights_of
from loadmaster.models.decima.explain import Reasons, StageScore, explain
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.platform.systems.decima.rollout import run_episode
from loadmaster.platform.systems.policies import Explanation, Options
from loadmaster.platform.systems.sampling import spread

# Decima's reasons in words and figures: rows of an observation become jobs and stages.


class Moment(NamedTuple):
    """A decision as it is made."""

    state: SimState
    rows: NDArray[np.int64]  # the stage behind each row of the observation
    reasons: Reasons


class Place(NamedTuple):
    """A stage by the numbers that tables of an episode use, which count from 0."""

    job: int
    template: str
    stage: int

    def __str__(self) -> str:
        """As the replay's page counts: from 1."""
        return f"job {self.job + 1} ({self.template}), stage {self.stage + 1}"


def explanation(moment: Moment, decision: int, workload: Workload) -> Explanation:
    """Decision number `decision` of the episode, from 0."""
    reasons = moment.reasons
    places = [_place(moment, score, workload) for score in reasons.stages]
    chosen = [score.row for score in reasons.stages].index(reasons.row)
    options = [_stage_options(reasons, places, chosen)]
    outcome = f"{places[chosen]}, gets {_counted(reasons.executors, 'executor')}"
    if reasons.limits:
        options.append(_limit_options(reasons))
        outcome += f"; its job may hold {reasons.limit}"
    time_s = float(moment.state.clock[at.NOW]) / 1000
    return Explanation(
        time_s=time_s,
        situation=(
            f"{reasons.free_executors} of {reasons.total_executors} executors to place, "
            f"{_counted(reasons.jobs, 'job')} in the system, "
            f"{_counted(reasons.schedulable, 'stage')} to choose from"
        ),
        options=tuple(options),
        outcome=outcome,
        record=_record(reasons, places, chosen, decision, time_s),
    )


def _place(moment: Moment, score: StageScore, workload: Workload) -> Place:
    state = moment.state
    slot = int(state.order[score.job])
    name = workload.job_names[state.jobs[slot, at.TEMPLATE]]
    return Place(
        job=int(state.jobs[slot, at.NUMBER]),
        template=name.removeprefix(f"{workload.name}-"),
        stage=int(moment.rows[score.row] - slot * state.setup[at.STRIDE]),
    )


def _stage_options(reasons: Reasons, places: list[Place], chosen: int) -> Options:
    return Options(
        heading="stage",
        columns=("tasks left", "s a task"),
        names=tuple(str(place) for place in places),
        cells=tuple((f"{s.tasks_left:,}", f"{s.mean_s:.2f}") for s in reasons.stages),
        probabilities=tuple(score.probability for score in reasons.stages),
        chosen=chosen,
        others=reasons.schedulable - len(places),
    )


def _limit_options(reasons: Reasons) -> Options:
    limits = [score.limit for score in reasons.limits]
    return Options(
        heading="limit of its job",
        columns=(),
        names=tuple(_counted(limit, "executor") for limit in limits),
        cells=tuple(() for _ in limits),
        probabilities=tuple(score.probability for score in reasons.limits),
        chosen=limits.index(reasons.limit),
        others=reasons.useful_limits - len(limits),
    )


def _record(
    reasons: Reasons, places: list[Place], chosen: int, decision: int, time_s: float
) -> dict[str, Any]:
    return {
        "decision": decision,
        "time_s": time_s,
        "free_executors": reasons.free_executors,
        "total_executors": reasons.total_executors,
        "jobs": reasons.jobs,
        "schedulable": reasons.schedulable,
        "stages": [
            {
                **place._asdict(),
                "tasks_left": score.tasks_left,
                "mean_s": round(score.mean_s, 4),
                "probability": round(score.probability, 6),
            }
            for place, score in zip(places, reasons.stages, strict=True)
        ],
        "limits": [
            {"limit": score.limit, "probability": round(score.probability, 6)}
            for score in reasons.limits
        ],
        "chosen": {
            **places[chosen]._asdict(),
            "limit": reasons.limit,
            "executors": reasons.executors,
        },
    }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
        view, rows = buffers_for(state, workload.bank)
        room = scratch_for(self.network, len(rows), len(state.jobs), settings.total_executors)
        return view, rows, room
