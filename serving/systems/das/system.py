"""DAS's endpoint: policies, rules, and checks of decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.envs.gpu_scheduling.baselines import BASELINES, GIVEN
from loadmaster.envs.gpu_scheduling.calibration import gpus_of
from loadmaster.envs.gpu_scheduling.decision_state import NOT_STARTED, PHASES
from loadmaster.envs.gpu_scheduling.settings import CLUSTERS
from loadmaster.models.policy import Proposal
from loadmaster.serving.system import Endpoint, Policy, Quantity
from loadmaster.serving.systems.das.examples import examples
from loadmaster.serving.systems.das.rules import RULES, DasRule, tuned_values
from loadmaster.serving.systems.das.schema import DasDecision, DasOutcome, DasState, Start
from loadmaster.serving.systems.das.snapshot import tables_of, to_schema

if TYPE_CHECKING:  # torch is only loaded by processes that run a bundle
    from loadmaster.models.das.policy import DasPolicy

_PHASES = {"event": NOT_STARTED, **{name: phase for phase, name in PHASES.items()}}


class BundlePolicy:
    """A `DasPolicy` that decides on states of the service."""

    def __init__(self, policy: DasPolicy) -> None:
        self.policy, self.name, self.version = policy, policy.name, policy.version
        self._settings = {
            backfill: policy.trained_in.model_copy(update={"backfill": backfill})
            for backfill in (False, True)
        }

    def decide(self, state: DasState) -> Proposal:
        guide, values, ordering = self.policy.trained_in.guide, np.zeros(0), GIVEN
        if guide is not None:
            gpus = gpus_of(state.parsed.cluster_index.cluster)
            values, ordering = np.array(tuned_values(guide, gpus)), BASELINES[guide].ordering.rule
            self.policy.tilt_rule(values)
        settings = self._settings[state.backfill]
        tables = tables_of(state, settings, ordering, values.tolist())
        decision, explanation = self.policy.decide(tables, _PHASES[state.ask])
        return Proposal(to_schema(tables, decision, ordering), explanation)


class DasEndpoint(Endpoint[DasState, DasDecision, DasOutcome]):
    system = "das"
    summary = "GPU clusters: which jobs start on which machines, and which running ones stop"
    pretrained = "das"
    rules = RULES
    state = DasState
    decision = DasDecision
    outcome = DasOutcome

    def examples(self) -> Mapping[str, DasState]:
        return examples()

    def policy(self, folder: Path) -> Policy:
        from loadmaster.models.das.policy import DasPolicy

        return BundlePolicy(DasPolicy.load(folder))

    def rule(self, name: str) -> Policy:
        return DasRule(name)

    def quantities(self, state: DasState, decision: DasDecision) -> tuple[Quantity, ...]:
        """Whether each started or stopped job runs; a job that moves runs before and after."""
        starts, stops = {start.job for start in decision.start}, set(decision.stop)
        return tuple(
            Quantity(f"job {name}", float(name in stops), float(name in starts))
            for name in [*decision.stop, *(s.job for s in decision.start if s.job not in stops)]
        )

    def constrain(
        self, state: DasState, decision: DasDecision, allowed: Mapping[str, float]
    ) -> DasDecision:
        """Drop starts and stops that are not allowed, and starts that do not fit then.

        A job that cannot move to its new machines stays where it is.
        """

        def may_run(name: str, default: bool) -> bool:
            return allowed.get(f"job {name}", float(default)) >= 0.5

        starts = tuple(start for start in decision.start if may_run(start.job, True))
        moving = {start.job for start in starts} & set(decision.stop)
        stops = tuple(name for name in decision.stop if name in moving or not may_run(name, False))
        fitting = _fitting(state, starts, stops)
        while stuck := moving - {start.job for start in fitting}:
            moving -= stuck
            starts = tuple(start for start in starts if start.job not in stuck)
            stops = tuple(name for name in stops if name not in stuck)
            fitting = _fitting(state, starts, stops)
        wait = _waiting(state, fitting, stops)
        return DasDecision(start=fitting, stop=stops, wait=wait, ranks=decision.ranks)

    def validate_decision(self, state: DasState, decision: DasDecision) -> str | None:
        jobs = state.parsed.jobs
        capacity, stopped = state.parsed.capacity.copy(), set()
        for name in decision.stop:
            job = jobs.get(name)
            if job is None:
                return f"stop: unknown job {name!r}"
            if not job.placements or name in stopped:
                return f"stop: job {name!r} does not run"
            capacity.release(job)
            stopped.add(name)
        started = set()
        for start in decision.start:
            job = jobs.get(start.job)
            if job is None:
                return f"start: unknown job {start.job!r}"
            if start.job in started or (job.placements and start.job not in stopped):
                return f"start: job {start.job!r} already runs"
            if fault := capacity.allocate(job, start.placements):
                return fault.message
            started.add(start.job)
        wait = _waiting(state, decision.start, decision.stop)
        if decision.wait != wait:
            return f"wait is {decision.wait}; expected {wait}"
        if unknown := decision.ranks.keys() - jobs.keys():
            return f"ranks: unknown job {min(unknown)!r}"
        return None

    def agreement(self, decision: DasDecision, other: DasDecision) -> float:
        """1 if both start and stop the same; ranks have no effect yet."""
        return float(decision == other.model_copy(update={"ranks": decision.ranks}))

    def features(self, state: DasState) -> dict[str, float]:
        waiting = [job for job in state.jobs if not job.placements]
        running = [job for job in state.jobs if job.placements]
        gpus = float(sum(machine.gpus for machine in state.machines))
        found = {
            "gpus": gpus,
            "jobs_waiting": float(len(waiting)),
            "jobs_running": float(len(running)),
            "gpu_utilisation": sum(job.instances * job.gpus for job in running) / gpus,
            "waited_log_min": fmean([math.log1p(job.age_s / 60) for job in waiting] or [0.0]),
        }
        if state.jobs:
            found["gpus_per_job"] = fmean(job.instances * job.gpus for job in state.jobs)
        if speeds := [job.speed for job in running if job.speed is not None]:
            found["speed"] = fmean(speeds)
        return found

    def reward(self, outcome: DasOutcome) -> float:
        """Minus log(1 + minutes) to completion, so that relative delays of all jobs count alike."""
        return -math.log1p(outcome.completion_s / 60)

    def retraining(self, features: Mapping[str, float]) -> dict[str, Any]:
        """The built-in cluster nearest in size, at about the observed load.

        Machine types and durations cannot be derived from means. The load is the share of GPUs in
        use plus those that waiting jobs need.
        """
        gpus = max(features.get("gpus", 1.0), 1.0)
        sizes = {
            name: sum(group.count * group.gpus for group in groups)
            for name, groups in CLUSTERS.items()
        }
        waiting = features.get("jobs_waiting", 0.0)
        missing = waiting * features.get("gpus_per_job", 1.0) / gpus
        load = features.get("gpu_utilisation", 0.0) + min(missing, 1.0)
        jobs = waiting + features.get("jobs_running", 0.0)
        return {
            "cluster": min(sizes, key=lambda name: abs(math.log(sizes[name] / gpus))),
            "arrivals": "poisson",
            "load": round(min(max(load, 0.2), 1.5), 2),
            "preempt": True,
            "max_queue": 64 if jobs <= 32 else 128,  # observed jobs, as in the pretrained policies
        }


def _fitting(
    state: DasState, starts: tuple[Start, ...], stops: tuple[str, ...]
) -> tuple[Start, ...]:
    """The starts that fit, allocated in their order."""
    jobs, capacity = state.parsed.jobs, state.parsed.capacity.copy()
    for name in stops:
        capacity.release(jobs[name])
    return tuple(
        start for start in starts if capacity.allocate(jobs[start.job], start.placements) is None
    )


def _waiting(state: DasState, starts: tuple[Start, ...], stops: tuple[str, ...]) -> int:
    return state.parsed.waiting + len(stops) - len(starts)


ENDPOINT = DasEndpoint()
