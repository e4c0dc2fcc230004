"""Episodes whose every decision is also asked of the endpoint, as states that went through JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loadmaster.envs.dag_scheduling import state as at
from loadmaster.envs.dag_scheduling.actions import apply_action, executors_granted
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.decima.compiled import decide, scratch_for, weights_of
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.serving.systems.decima.examples import state_of
from loadmaster.serving.systems.decima.schema import DecimaDecision, DecimaState

Given = tuple[str, str, int, int]  # job, stage, executors, limit
Decide = Callable[[Observation], tuple[int, int]]  # (stage row, limit)

FOUR_CLASSES: Any = (
    {"count": 12, "memory": 0.25},
    {"count": 13, "memory": 0.5},
    {"count": 12, "memory": 0.75},
    {"count": 13},
)
EPISODES: dict[str, dict[str, Any]] = {
    "batch": {"jobs": 15},
    "stream": {"arrivals": "poisson", "jobs": 40, "interarrival_s": 15.0},
    "classes": {"jobs": 15, "executor_classes": FOUR_CLASSES},
    "classes, stream": {
        "arrivals": "poisson", "jobs": 40, "interarrival_s": 20.0, "executor_classes": FOUR_CLASSES,
    },
    "no estimates": {"jobs": 10, "estimates": "missing"},
}  # fmt: skip


@dataclass
class Round:
    """What the simulator's own round decided, and the state as it was before each decision."""

    state: DecimaState
    before: list[DecimaState] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)  # one each; the last may be missing: idled
    free: int = 0


def in_process(network: DecimaNetwork) -> Decide:
    """The compiled network as training and evaluation run it."""
    weights, room = weights_of(network), scratch_for(network, 2000, 100, 50)

    def best(view: Observation) -> tuple[int, int]:
        row, limit, _ = decide(view, weights, room, -1.0, -1.0)
        return row, limit

    return best


def rounds(episode: dict[str, Any], seed: int, decide: Decide) -> Iterator[Round]:
    """The rounds of an episode under `decide`, one after another."""
    settings = DagSchedulingSettings(**episode)
    workload = load_workload(settings)
    state = initial_state(settings, workload, seed, slots=settings.total_jobs)
    view, rows = buffers_for(state, workload.bank)
    number, held = -1, None
    while advance(state, workload.bank) == at.DECIDE:
        observe(state, workload.bank, view, rows)
        now = state_of(state, workload.bank)
        if state.clock[at.ROUND] != number:
            if held is not None:
                yield held
            number = int(state.clock[at.ROUND])
            held = Round(now, free=int(state.left.sum()))
        assert held is not None
        held.before.append(now)
        row, limit = decide(view)
        if view.schedulable[row] == 1 and row < len(view.schedulable) - 1:
            slot, place = divmod(int(rows[row]), int(state.setup[at.STRIDE]))
            executors = executors_granted(view, row, limit)
            held.given.append((str(int(state.jobs[slot, at.NUMBER])), str(place), executors, limit))
        apply_action(state, workload.bank, view, rows, row, limit)
    if held is not None:
        yield held


def sent(state: DecimaState, ask: str) -> DecimaState:
    """The state as it arrives."""
    text = state.model_copy(update={"ask": ask}).model_dump_json()
    return DecimaState.model_validate_json(text)


def told(decision: DecimaDecision) -> list[Given]:
    return [(a.job, a.stage, a.executors, a.limit) for a in decision.assignments]
