"""A learned policy's episode, decision by decision: what it saw, thought and did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.rollout import EpisodeResult
from loadmaster.platform.systems.sampling import spread

if TYPE_CHECKING:  # the replay of heuristics needs no torch
    from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
    from loadmaster.envs.gpu_scheduling.jobs import Workload
    from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
    from loadmaster.envs.gpu_scheduling.state import SimState
    from loadmaster.platform.systems.das.explain import Moment
    from loadmaster.platform.systems.policies import LearnedPolicy

MAX_FIGURES = 500_000  # in all decisions of a page: about 1.5 MB
PER_JOB = 6  # figures of a job, beside its affinities


class Place(NamedTuple):
    """Instances of a job on a machine."""

    job: int
    machine: int
    instances: int


@dataclass(frozen=True)
class Step:
    """A decision about Q jobs, in order of arrival, of which S could start, and M machines."""

    number: int  # among the episode's decisions, from 1
    time_s: float
    kind: int  # on.PLACING, on.RECONSIDERING or on.PLACING_AGAIN
    jobs: NDArray[np.int64]  # (Q,)
    attained_s: NDArray[np.float64]  # (Q,) GPU-seconds that it has had so far
    mean: NDArray[np.float32]  # (Q,) of the priority
    std: NDArray[np.float32]  # (Q,)
    heeded: NDArray[np.bool_]  # (Q,) whether the priority can change anything
    running: NDArray[np.bool_]  # (Q,)
    free: NDArray[np.int64]  # (M,) percent of a GPU
    startable: NDArray[np.int64]  # (S,) rows of the jobs that could start
    affinity: NDArray[np.float32]  # (S, M) the mean; nan where a machine has no room
    held: tuple[Place, ...]  # where the running ones are
    placed: tuple[Place, ...]  # who is started, and where
    stopped: tuple[int, ...]  # jobs that must give way
    then: tuple[Place, ...] = ()  # who starts at once where others gave way

    @property
    def order(self) -> NDArray[np.intp]:
        """(Q,) rows by who goes first; those that nobody heeds come last."""
        return np.lexsort((self.jobs, -self.mean, ~self.heeded))

    @property
    def figures(self) -> int:
        return PER_JOB * len(self.jobs) + self.affinity.size


@dataclass(frozen=True)
class CaseStudy:
    """The decisions of an episode in which there was a choice."""

    steps: tuple[Step, ...]
    decisions: int  # of the episode, with a choice or without


def study(
    policy: LearnedPolicy, settings: GpuSchedulingSettings, seed: int, workload: Workload
) -> tuple[EpisodeResult, CaseStudy | None]:
    """The recorded episode of `seed`, and its decisions if the policy is one that can tell them."""
    from loadmaster.platform.systems.das.policy import DasPolicy

    if not isinstance(policy, DasPolicy):
        result: EpisodeResult = policy.run(settings, seed, workload, record=True)
        return result, None
    sitting = policy.sit(settings, seed, workload, record=True)
    steps: list[Step] = []
    decisions = 0
    while sitting.advance_to_decision():
        decisions += 1
        moment = policy.consider(sitting)
        before = _seen(moment, sitting, decisions)
        sitting.decide(moment.priorities.mean[0].numpy(), moment.placements.mean()[0].numpy())
        step = _done(before, sitting.state)
        if step.kind == on.PLACING_AGAIN and steps and steps[-1].number == decisions - 1:
            steps[-1] = replace(steps[-1], then=step.placed)
        if _has_choice(moment, step):
            steps.append(step)
    return sitting.result(), CaseStudy(tuple(steps), decisions)


def _has_choice(moment: Moment, step: Step) -> bool:
    if step.kind == on.RECONSIDERING:
        return bool(step.running.any() and not step.running.all())
    return moment.has_choice


def _seen(moment: Moment, sitting: EpisodeRunner, number: int) -> Step:
    """The decision before it is made; the arrays that will change are copied."""
    jobs, startable = moment.shown.copy(), moment.startable
    seen = moment.observation["jobs"][0].numpy()
    affinity = moment.placements.barred(moment.placements.mean())[0, startable].numpy()
    running = seen[:, told.RUNNING] > 0
    return Step(
        number=number,
        time_s=float(moment.state.times[at.NOW]),
        kind=int(sitting.desk.counts[on.MOMENT]),
        jobs=jobs,
        attained_s=60 * np.expm1(seen[:, told.ATTAINED].astype(np.float64)),
        mean=moment.priorities.mean[0].numpy(),
        std=moment.priorities.log_std[0].exp().numpy(),
        heeded=moment.priorities.mask[0].numpy().copy(),
        running=running,
        free=moment.state.free[:, at.GPU].copy(),
        startable=startable,
        affinity=np.where(np.isneginf(affinity), np.nan, affinity).astype(np.float32),
        held=_places(moment.state, jobs[running]),
        placed=(),
        stopped=(),
    )


def _done(step: Step, state: SimState) -> Step:
    """The decision once it is made."""
    on_machines = state.jobs[step.jobs, at.ROWS_USED] > 0
    return replace(
        step,
        placed=_places(state, step.jobs[on_machines & ~step.running]),
        stopped=tuple(step.jobs[step.running & ~on_machines].tolist()),
    )


def _places(state: SimState, jobs: NDArray[np.int64]) -> tuple[Place, ...]:
    found = []
    for job in jobs.tolist():
        first, used = state.jobs[job, at.FIRST_ROW], state.jobs[job, at.ROWS_USED]
        found += [
            Place(job, int(row[at.MACHINE]), int(row[at.COUNT]))
            for row in state.rows[first : first + used]
        ]
    return tuple(found)


def abridged(case: CaseStudy, most: int = MAX_FIGURES) -> tuple[Step, ...]:
    """As many decisions as `most` figures allow, spread evenly; those of one moment together."""
    moments = [list(steps) for _, steps in groupby(case.steps, lambda step: step.time_s)]
    total = sum(step.figures for step in case.steps)
    count = len(moments) if total <= most else int(len(moments) * most / total)
    kept = spread(range(len(moments)), count) if count else set()
    return tuple(step for place in sorted(kept) for step in moments[place])
