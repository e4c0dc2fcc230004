"""Decision rounds on states of the service, by the network or by a heuristic."""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.jobs import JobTemplates
from loadmaster.envs.dag_scheduling.observation import Observation, blank_observation
from loadmaster.envs.dag_scheduling.snapshot import state_from_snapshot
from loadmaster.envs.dag_scheduling.state import SimState
from loadmaster.envs.errors import counted
from loadmaster.models.decima.explain import explain, grant, situation
from loadmaster.models.decima.policy import GRANT_COLUMNS, DecimaPolicy
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.decima.records import ROUND_MAX
from loadmaster.serving.systems.decima.schema import Assignment, DecimaDecision, DecimaState

NAMED = 3  # assignments in a summary
LONGEST_ID = 40  # characters of an id in a summary


class ServedPolicy:
    """A policy of the models that decides on states of the service."""

    def __init__(self, policy: DecimaPolicy) -> None:
        self.name, self.version = policy.name, policy.version
        self._policy = policy
        self._buffers = ObservationBuffers()

    def decide(self, state: DecimaState) -> Proposal:
        decided, (view, rows) = Round(state), self._buffers.fit(state)
        count, first = self._policy.decide_round(
            decided.state, decided.bank, view, rows, decided.granted
        )
        decision = decided.decision(count)
        options = 0 if first is None else first.schedulable
        summary = f"{state_summary(state, options)}: {decision_summary(decision)}"
        if first is None:
            return Proposal(decision, Explanation(summary))
        return Proposal(decision, explain(first, decided.stage_name, summary))


class ObservationBuffers:
    """Tables of observations, kept from state to state. Not for two threads at once."""

    def __init__(self) -> None:
        self._view: Observation = blank_observation(64, 8, 128)
        self._rows: NDArray[np.int64] = np.zeros(64, np.int64)

    def fit(self, state: DecimaState) -> tuple[Observation, NDArray[np.int64]]:
        """Tables that are large enough for the state."""
        bank, view = state.snapshot.bank, self._view
        stages, jobs, edges = len(bank.tasks), len(state.jobs), len(bank.child)
        if stages > len(view.stages) or jobs > len(view.jobs) or edges > len(view.edges):
            self._view = blank_observation(
                _grown(len(view.stages), stages),
                _grown(len(view.jobs), jobs),
                _grown(len(view.edges), edges),
            )
            self._rows = np.zeros(len(self._view.stages), np.int64)
        return self._view, self._rows


def _grown(size: int, needed: int) -> int:
    return size if needed <= size else max(needed, 2 * size)


class Round:
    """The tables of one decision round, and its result."""

    def __init__(self, request: DecimaState) -> None:
        self._request = request
        self.bank: JobTemplates = request.snapshot.bank
        self.state: SimState = state_from_snapshot(request.snapshot)
        free = int(request.snapshot.left.sum())
        most = 1 if request.ask == "one" else min(free, ROUND_MAX)
        self.granted: NDArray[np.int64] = np.zeros((most, GRANT_COLUMNS), np.int64)

    def decision(self, count: int) -> DecimaDecision:
        """The decision in the first `count` rows of `granted`."""
        assignments = []
        for stage, executors, limit in self.granted[:count].tolist():
            job_id, stage_id = self._ids(stage)
            assignments.append(
                Assignment(job=job_id, stage=stage_id, executors=executors, limit=max(limit, 1))
            )
        left = int(self.state.left.sum())
        ended = count < len(self.granted)  # the rest idles
        return DecimaDecision(
            assignments=tuple(assignments),
            idle=left if ended else 0,
            undecided=0 if ended else left,
        )

    def stage_name(self, stage: int) -> str:
        return stage_name(*self._ids(stage))

    def _ids(self, stage: int) -> tuple[str, str]:
        """Ids of job and stage behind a row of the simulator's stages."""
        slot, place = divmod(stage, int(self.state.setup[state_cols.STRIDE]))
        job = self._request.jobs[slot]
        return job.id, job.stages[place].id


def stage_name(job: str, stage: str) -> str:
    return f"job {_short(job)}, stage {_short(stage)}"


def state_summary(state: DecimaState, schedulable: int | None = None) -> str:
    """The executors to place, and the jobs."""
    source = ""
    if state.source.job is not None:
        source = f" of job {_short(state.source.job)}"
        if state.source.stage is not None:
            source += f", whose stage {_short(state.source.stage)} has no task left to start"
    free = sum(group.free for group in state.executors)
    total = sum(group.count for group in state.executors)
    return situation(free, total, len(state.jobs), schedulable, source)


def decision_summary(decision: DecimaDecision) -> str:
    """The first assignments, and the number of executors without one."""
    parts = [
        grant(stage_name(given.job, given.stage), given.executors, given.limit)
        for given in decision.assignments[:NAMED]
    ]
    if rest := decision.assignments[NAMED:]:
        executors = counted(sum(given.executors for given in rest), "executor")
        parts.append(f"{counted(len(rest), 'more stage')} get {executors}")
    parts = [f"then {part}" if number else part for number, part in enumerate(parts)]
    if not parts and not decision.undecided:
        parts.append("no stage gets any")
    if decision.idle:
        parts.append(f"{decision.idle:,} left idle")
    if decision.undecided:
        parts.append(f"{decision.undecided:,} undecided")
    return "; ".join(parts)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_ID else f"{name[: LONGEST_ID - 3]}..."
