"""A learned policy's episode, decision by decision, for the replay page and picture."""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import state as columns
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import PLACING, PLACING_AGAIN, RECONSIDERING
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.features import ATTAINED, RUNNING
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.models.das.explain import DecisionContext
from loadmaster.models.das.policy import DasPolicy
from loadmaster.platform.replay.adapters import pack
from loadmaster.platform.systems.policies import spread

MAX_NUMBERS = 500_000  # in all decisions of a page: about 1.5 MB
NUMBERS_PER_JOB = 6  # beside its affinities
LEVELS = 4000  # of a number between the lowest and the highest of its kind
KINDS = {PLACING: "placing", RECONSIDERING: "reconsidering", PLACING_AGAIN: "again"}


class Place(NamedTuple):
    """Instances of a job on a machine."""

    job: int
    machine: int
    instances: int


@dataclass(frozen=True)
class Step:
    """A decision about Q jobs in order of arrival, S of them startable, and M machines."""

    number: int  # among the episode's decisions, from 1
    time_s: float
    kind: int  # a key of KINDS
    jobs: NDArray[np.int64]  # (Q,)
    attained_s: NDArray[np.float64]  # (Q,) GPU-seconds so far
    mean: NDArray[np.float32]  # (Q,) of the priority
    std: NDArray[np.float32]  # (Q,)
    heeded: NDArray[np.bool_]  # (Q,) whether the priority has an effect
    running: NDArray[np.bool_]  # (Q,)
    free: NDArray[np.int64]  # (M,) percent of a GPU
    startable: NDArray[np.int64]  # (S,) rows of the startable jobs
    affinity: NDArray[np.float32]  # (S, M) the mean; nan where the job does not fit
    held: tuple[Place, ...]  # of the running jobs
    placed: tuple[Place, ...]  # of the jobs that are started
    stopped: tuple[int, ...]  # jobs that are preempted
    then: tuple[Place, ...] = ()  # of jobs that start next on the machines that became free

    @property
    def order(self) -> NDArray[np.intp]:
        """(Q,) rows by descending priority; those without effect come last."""
        return np.lexsort((self.jobs, -self.mean, ~self.heeded))

    @property
    def numbers(self) -> int:
        return NUMBERS_PER_JOB * len(self.jobs) + self.affinity.size


@dataclass(frozen=True)
class DecisionTrace:
    """The decisions of an episode that had a choice."""

    steps: tuple[Step, ...]
    decisions: int  # of the episode, with a choice or without


@dataclass(frozen=True)
class RecordedEpisode(EpisodeResult):
    """A result with its machines, and with the decisions if a DAS policy made them."""

    cluster: Cluster
    gpu_names: tuple[str, ...]  # of each machine
    case: DecisionTrace | None

    @property
    def arrival_s(self) -> NDArray[np.float64]:
        return self.jobs.arrival_s

    @property
    def completion_s(self) -> NDArray[np.float64]:
        return self.finish_s

    @property
    def end_s(self) -> float:
        """Time of the last arrival or completion."""
        return float(np.nanmax(np.concatenate([self.arrival_s, self.completion_s])))


def trace_episode(
    policy: DasPolicy, settings: GpuSchedulingSettings, seed: int, workload: Workload
) -> tuple[EpisodeResult, DecisionTrace]:
    """Run and record the episode of `seed`, and trace its decisions."""
    runner = policy.start_episode(settings, seed, workload, record=True)
    steps: list[Step] = []
    decisions = 0
    while runner.advance_to_decision():
        decisions += 1
        context = policy.score(runner)
        step = _apply(context, runner, decisions)
        if context.guided is not None and step.kind == RECONSIDERING:
            step = replace(step, then=step.placed)  # replanning also starts jobs
        if step.kind == PLACING_AGAIN and steps and steps[-1].number == decisions - 1:
            steps[-1] = replace(steps[-1], then=step.placed)
        both = bool(step.running.any() and not step.running.all())
        if both if step.kind == RECONSIDERING else context.has_choice:
            steps.append(step)
    return runner.result(), DecisionTrace(tuple(steps), decisions)


def _apply(context: DecisionContext, runner: EpisodeRunner, number: int) -> Step:
    """Apply the decision; the observation is valid until the next one."""
    state, jobs, startable = context.state, context.shown.copy(), context.startable
    if context.phase == RECONSIDERING:
        startable = startable[:0]
    features = context.observation["jobs"][0].numpy()
    fits = context.placements.fits[0, startable].numpy()
    running = features[:, RUNNING] > 0
    free, held = state.free[:, columns.GPU].copy(), _places(state, jobs[running])
    mean, (correction, affinity) = context.priority, context.actions
    runner.decide(correction, affinity)
    on_machines = state.jobs[jobs, columns.ROWS_USED] > 0
    return Step(
        number=number,
        time_s=context.time_s,
        kind=context.phase,
        jobs=jobs,
        attained_s=60 * np.expm1(features[:, ATTAINED].astype(np.float64)),
        mean=mean,
        std=context.priorities.log_std[0].exp().numpy(),
        heeded=context.priorities.mask[0].numpy().copy(),
        running=running,
        free=free,
        startable=startable,
        affinity=np.where(fits, affinity[startable], np.float32(np.nan)),
        held=held,
        placed=_places(state, jobs[on_machines & ~running]),
        stopped=tuple(jobs[running & ~on_machines].tolist()),
    )


def _places(state: SimState, jobs: NDArray[np.int64]) -> tuple[Place, ...]:
    found = []
    for job in jobs.tolist():
        first, used = state.jobs[job, [columns.FIRST_ROW, columns.ROWS_USED]]
        rows = state.rows[first : first + used, [columns.MACHINE, columns.COUNT]]
        found += [Place(job, machine, instances) for machine, instances in rows.tolist()]
    return tuple(found)


def thinned(trace: DecisionTrace, most: int = MAX_NUMBERS) -> tuple[Step, ...]:
    """As many steps as `most` numbers allow, spread evenly; those of one event stay together."""
    events = [list(steps) for _, steps in groupby(trace.steps, lambda step: step.time_s)]
    total = sum(step.numbers for step in trace.steps)
    count = len(events) if total <= most else int(len(events) * most / total)
    kept = sorted(spread(range(len(events)), count))
    return tuple(step for place in kept for step in events[place])


def trace_data(trace: DecisionTrace) -> dict[str, Any]:
    """The trace packed for a page; decoded by `script/gpu_scheduling/decisions.js`."""
    return {
        "decisions": trace.decisions,
        "choices": len(trace.steps),
        "steps": [_step_data(step) for step in thinned(trace)],
    }


def _step_data(step: Step) -> dict[str, Any]:
    return {
        "number": step.number,
        "time_s": round(step.time_s, 3),
        "kind": KINDS[step.kind],
        "jobs": pack(step.jobs),
        "order": pack(step.order.astype(np.int64)),
        "attained_s": pack(np.rint(step.attained_s).astype(np.int64)),
        "mean": _levels(step.mean),
        "std": _levels(step.std),
        "flags": pack(step.heeded + 2 * step.running.astype(np.int64)),
        "free": pack(step.free),
        "startable": pack(step.startable.astype(np.int64)),
        "affinity": _levels(step.affinity.ravel()),  # row by row
        "held": _pack_places(step.held),
        "placed": _pack_places(step.placed),
        "stopped": list(step.stopped),
        "then": _pack_places(step.then),
    }


def _pack_places(places: tuple[Place, ...]) -> str:
    return pack(np.array(places, np.int64).reshape(-1))


def _levels(values: NDArray[np.float32]) -> dict[str, Any]:
    """Quantised values: level n is low + (n - 1) * step; 0 is nan."""
    known = ~np.isnan(values)
    if not known.any():
        return {"low": 0, "step": 0, "levels": pack(np.zeros(len(values), np.int64))}
    low = round(float(values[known].min()), 6)
    step = max(float(f"{(float(values[known].max()) - low) / LEVELS:.6g}"), 1e-6)
    above = np.rint((np.where(known, values, low) - low) / step)
    levels = np.where(known, 1 + np.maximum(above, 0), 0)  # low may have been rounded up
    return {"low": low, "step": step, "levels": pack(levels.astype(np.int64))}
