"""Why: the jobs and machines that were weighed, and the decision in a sentence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import desk as on
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.models.layers import Table
from loadmaster.serving.das.agents import Agents
from loadmaster.serving.das.schema import DasDecision, DasState, Start
from loadmaster.serving.das.tables import Tables
from loadmaster.serving.endpoint import Choice

TOLD = 5  # jobs, and machines, of a decision
IN_WORDS = 3  # starts, and stops, of a sentence; of a gang's machines too
Choices = dict[str, list[Choice]]


class Weighing:
    """What the agents weighed at the first moment that left them a choice."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._is_open = False
        self.choices: Choices = {}

    def take_in(self, tables: Tables, view: Observation, priority: Table, affinity: Table) -> None:
        """Before the moment is acted on."""
        if self._is_open:
            return
        counts = tables.desk.counts
        shown = int(counts[on.SHOWN])
        room = view.held[:shown] > 0
        is_open = counts[on.MOMENT] == on.RECONSIDERING or np.count_nonzero(room) > 1
        if self.choices and not is_open:
            return
        self._is_open = bool(is_open)
        rows = _best(np.flatnonzero(view.heeded[:shown]), priority)
        names = [f"job {tables.arrivals[tables.desk.shown[row]].id}" for row in rows]
        doubts = self._agents.priority_doubts(rows)
        self.choices = {"job": _choices(names, priority[rows], doubts)}
        # In a strict queue one that does not fit may come first, and block those behind it.
        first = int(rows[0])
        machines = _best(np.flatnonzero(room[first]), affinity[first])
        if len(machines):
            names = [tables.machines[machine].name for machine in machines]
            doubts = self._agents.affinity_doubts(first, machines)
            self.choices["machine"] = _choices(names, affinity[first, machines], doubts)


def summary_of(state: DasState, decision: DasDecision) -> str:
    """What starts where, and who makes room for whom."""
    starts, stops = {start.job: start for start in decision.start}, set(decision.stop)
    told = [
        f"job {name} {'moves to' if name in stops else 'starts on'} {_where(start)}"
        for name, start in list(starts.items())[:IN_WORDS]
    ]
    if len(starts) > IN_WORDS:
        told.append(f"{len(starts) - IN_WORDS} more start or move as well")
    halted = [name for name in decision.stop if name not in starts]
    placements = {job.id: job.placements for job in state.jobs} if halted else {}
    for name in halted[:IN_WORDS]:
        left = {one.machine for one in placements.get(name, ())}
        heirs = (
            start.job
            for start in decision.start
            if not left.isdisjoint(one.machine for one in start.placements)
        )
        heir = next(heirs, None)
        told.append(f"job {name} stops" + (f", making room for job {heir}" if heir else ""))
    if len(halted) > IN_WORDS:
        told.append(f"{len(halted) - IN_WORDS} more stop for others")
    if not told:
        told.append("nothing starts or stops")
    told.append(f"{decision.wait} {'job waits' if decision.wait == 1 else 'jobs wait'}")
    return "; ".join(told)


def _where(start: Start) -> str:
    placements = start.placements
    if len(placements) == 1:
        return placements[0].machine
    if len(placements) > IN_WORDS:
        return f"{len(placements)} machines, most wanted {placements[0].machine}"
    return " and ".join(f"{one.machine} ({one.instances})" for one in placements)


def _best(options: NDArray[np.int64], score: Table) -> NDArray[np.int64]:
    """The best few, best first; of equal ones the first."""
    return options[np.argsort(-score[options], kind="stable")[:TOLD]]


def _choices(names: list[str], scores: Table, doubts: Table) -> list[Choice]:
    return [
        Choice(name, round(score, 6), round(doubt, 6))
        for name, score, doubt in zip(names, scores.tolist(), doubts.tolist(), strict=True)
    ]
