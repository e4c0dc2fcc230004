"""Decima's endpoint of the decision service."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.snapshot import (
    ClusterSnapshot,
    place_executors,
    placeable_executors,
    state_from_snapshot,
)
from loadmaster.envs.errors import counted
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.serving.system import Endpoint, Quantity
from loadmaster.serving.systems.decima.examples import examples
from loadmaster.serving.systems.decima.rounds import ServedPolicy, stage_name
from loadmaster.serving.systems.decima.rules import RULES, DecimaRule
from loadmaster.serving.systems.decima.schema import DecimaDecision, DecimaOutcome, DecimaState
from loadmaster.serving.systems.decima.snapshot import MOVING, job_sums

_PREFIX = "job "  # of a quantity's name
SHORTEST_S = 0.001
INTERARRIVAL_S = (0.1, 3600.0)  # bounds of what a retraining is set to


class DecimaEndpoint(Endpoint[DecimaState, DecimaDecision, DecimaOutcome]):
    """Assigns the free executors of a cluster to stages."""

    system = "decima"
    summary = "which stage of which job gets the free executors of a cluster, and how many"
    pretrained = "decima"
    rules = RULES
    state = DecimaState
    decision = DecimaDecision
    outcome = DecimaOutcome

    def examples(self) -> Mapping[str, DecimaState]:
        return examples()

    def policy(self, folder: Path) -> ServedPolicy:
        policy = ServedPolicy(DecimaPolicy.from_bundle(load_bundle(folder)))
        policy.decide(examples()["tiny"])  # raises if the network cannot decide
        return policy

    def rule(self, name: str) -> DecimaRule:
        return DecimaRule(name)

    def quantities(self, state: DecimaState, decision: DecimaDecision) -> tuple[Quantity, ...]:
        """Executors of each job that gets some, before and after."""
        given: dict[str, int] = {}
        for part in decision.assignments:
            given[part.job] = given.get(part.job, 0) + part.executors
        held = executors_held(state.snapshot).tolist()
        have = {job.id: count for job, count in zip(state.jobs, held, strict=True)}
        return tuple(
            Quantity(f"{_PREFIX}{job}", float(have[job]), float(have[job] + more))
            for job, more in given.items()
            if job in have
        )

    def constrain(
        self, state: DecimaState, decision: DecimaDecision, allowed: Mapping[str, float]
    ) -> DecimaDecision:
        """Remove executors of some jobs from the decision; they are left idle.

        A job's last assignments are cut first, since they may depend on earlier ones.
        """
        surplus: dict[str, int] = {}  # executors to remove from a job
        most: dict[str, int] = {}  # executors it may hold
        for name, current, proposed, *_ in self.quantities(state, decision):
            bound = allowed.get(name, proposed)
            if bound < proposed:
                job = name.removeprefix(_PREFIX)
                most[job] = max(math.floor(bound), int(current))
                surplus[job] = int(proposed) - most[job]
        freed, kept = 0, []
        for part in reversed(decision.assignments):
            if part.job not in most:
                kept.append(part)
                continue
            cut = min(surplus[part.job], part.executors)
            surplus[part.job] -= cut
            freed += cut
            if cut < part.executors:
                limit = min(part.limit, most[part.job])
                kept.append(
                    part.model_copy(update={"executors": part.executors - cut, "limit": limit})
                )
        return DecimaDecision(
            assignments=tuple(reversed(kept)),
            idle=decision.idle + freed,
            undecided=decision.undecided,
        )

    def validate_decision(self, state: DecimaState, decision: DecimaDecision) -> str | None:
        """Why the decision cannot be carried out, by trying each assignment on the snapshot."""
        free = sum(group.free for group in state.executors)
        given = decision.idle + decision.undecided + sum(a.executors for a in decision.assignments)
        if given != free:
            return f"it accounts for {counted(given, 'executor')}; expected the {free} free ones"
        cluster = state_from_snapshot(state.snapshot)
        stride = int(cluster.setup[state_cols.STRIDE])
        slots = {job.id: slot for slot, job in enumerate(state.jobs)}
        assigned = np.zeros((len(decision.assignments), 2), np.int64)
        for number, part in enumerate(decision.assignments):
            slot = slots.get(part.job)
            if slot is None:
                return f"there is no job {part.job!r}"
            names = [stage.id for stage in state.jobs[slot].stages]
            if part.stage not in names:
                return f"job {part.job!r} has no stage {part.stage!r}"
            assigned[number] = slot * stride + names.index(part.stage), part.executors
        made = place_executors(cluster, state.snapshot.bank, assigned)
        if made == len(assigned):
            return None
        part = decision.assignments[made]
        most = placeable_executors(cluster, state.snapshot.bank, assigned[made, 0])
        where = stage_name(part.job, part.stage)
        if most <= 0:
            return f"{where} may not be chosen"
        return f"{where} gets {part.executors} executors; expected at most {most}"

    def features(self, state: DecimaState) -> Mapping[str, float]:
        """Load of the cluster, and sizes of its jobs."""
        snapshot, jobs = state.snapshot, len(state.jobs)
        total, free = sum(snapshot.amount.tolist()), sum(snapshot.left.tolist())
        work_ms = sum(snapshot.bank.work_ms.tolist())
        tasks, stages, waiting_ms = _sums(snapshot.stages, snapshot.bank.mean_ms)
        return {
            "executors": float(total),
            "jobs": float(jobs),
            "stages": float(stages),
            "free_share": free / total,
            "executors_per_job": sum(executors_held(snapshot).tolist()) / jobs,
            "waiting_s": waiting_ms / 1000 / total,  # work not started, per executor
            "task_s": work_ms / tasks / 1000,
            "job_work_s": work_ms / jobs / 1000,
            "youngest_job_s": min(snapshot.age_ms.tolist()) / 1000,
        }

    def reward(self, outcome: DecimaOutcome) -> float:
        """-log(completion time) + log(work) / 2.

        Of jobs that share a cluster, one with four times the work takes about twice as long. With
        the work taken out, small and large jobs count alike and the spread halves.
        """
        completion_s = max(outcome.completion_s, SHORTEST_S)
        return 0.5 * math.log(max(outcome.work_s, SHORTEST_S)) - math.log(completion_s)

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        """Settings of a stream of jobs like the observed one; the others keep their defaults.

        Two estimates of the interarrival time are mixed by load. With many jobs in the system it is
        the age of the youngest. With few, that one has often left; then the number of jobs gives
        the load, since a cluster at that load has about 1 / (1 - load) jobs while it is busy.
        """
        settings: dict[str, Any] = {"arrivals": "poisson"}
        if "executors" in features:
            settings["executors"] = max(1, round(features["executors"]))
        needed = ("executors", "jobs", "job_work_s", "youngest_job_s")
        if all(name in features for name in needed):
            executors, jobs, work_s, youngest_s = (features[name] for name in needed)
            load = float(np.clip(1 - 1 / max(jobs, 1.0), 0.05, 0.95))
            gap_s = load * youngest_s + (1 - load) * work_s / (load * max(executors, 1.0))
            settings["interarrival_s"] = round(float(np.clip(gap_s, *INTERARRIVAL_S)), 3)
        return settings


def executors_held(snapshot: ClusterSnapshot) -> NDArray[np.int64]:
    """(J,) executors of each job, moving and promised ones included, without those to place."""
    moving = job_sums(snapshot.stages, snapshot.bank.first_stage)[MOVING]
    held: NDArray[np.int64] = snapshot.members + moving + snapshot.committed_in
    if snapshot.source_job != state_cols.NONE:
        held[snapshot.source_job] -= snapshot.left.sum()
    return held


@compiled
def _sums(stages: NDArray[np.int64], mean_ms: NDArray[np.float64]) -> tuple[int, int, float]:
    """Tasks, unfinished stages, and the work of tasks that are not started."""
    tasks, unfinished, waiting_ms = 0, 0, 0.0
    for stage in range(len(stages)):
        counts = stages[stage]
        tasks += counts[state_cols.TASKS]
        unfinished += counts[state_cols.FINISHED] < counts[state_cols.TASKS]
        waiting_ms += (counts[state_cols.TASKS] - counts[state_cols.STARTED]) * mean_ms[stage]
    return tasks, unfinished, waiting_ms


ENDPOINT = DecimaEndpoint()
