"""Episodes of the simulator as rounds of states, with the decisions taken there."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.actions import apply_action, executors_granted
from loadmaster.envs.dag_scheduling.baselines.rules import decide as decide_by_rule
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import buffers_for, initial_state
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.decima.compiled import decide, scratch_for
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.weights import weights_of
from loadmaster.serving.systems.decima.examples import state_of
from loadmaster.serving.systems.decima.rules import tuned_rule
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


class Round(NamedTuple):
    """A round of the simulator: the states before each decision, and the assignments."""

    before: list[DecimaState]
    given: list[Given]  # a last decision may idle


def in_process(network: DecimaNetwork) -> Decide:
    """The compiled network as in training and evaluation."""
    weights, scratch = weights_of(network), scratch_for(network, 2000, 100, 50)
    return lambda view: decide(view, weights, scratch, -1.0, -1.0)[:2]


def by_rule(name: str) -> Decide:
    """A heuristic as in the environment."""
    parameters = tuned_rule(name).encoded
    return lambda view: decide_by_rule(parameters, view, 0, 0)


def rounds(episode: dict[str, Any], seed: int, decide: Decide) -> Iterator[Round]:
    """The rounds of an episode under `decide`."""
    settings = DagSchedulingSettings(**episode)
    workload = load_workload(settings)
    state = initial_state(settings, workload, seed, slots=settings.total_jobs)
    view, rows = buffers_for(state, workload.bank)
    number, current = -1, Round([], [])
    while advance(state, workload.bank) == state_cols.DECIDE:
        observe(state, workload.bank, view, rows)
        if state.clock[state_cols.ROUND] != number:
            if current.before:
                yield current
            number, current = int(state.clock[state_cols.ROUND]), Round([], [])
        current.before.append(state_of(state, workload.bank))
        row, limit = decide(view)
        if view.schedulable[row] == 1 and row < len(view.schedulable) - 1:
            slot, place = divmod(int(rows[row]), int(state.setup[state_cols.STRIDE]))
            job, granted = state.jobs[slot, state_cols.NUMBER], executors_granted(view, row, limit)
            current.given.append((str(job), str(place), granted, limit))
        apply_action(state, workload.bank, view, rows, row, limit)
    yield current


def assignments(decision: DecimaDecision) -> list[Given]:
    return [(a.job, a.stage, a.executors, a.limit) for a in decision.assignments]


def whole(decision: DecimaDecision) -> tuple[list[Given], int, int]:
    return assignments(decision), decision.idle, decision.undecided
