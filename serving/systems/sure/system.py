"""SURE's endpoint of the decision service."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.envs.errors import counted
from loadmaster.envs.stream_scaling import state as cols
from loadmaster.envs.stream_scaling.rewards import reward_sum
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.snapshot import observe_snapshot, plan_of_action
from loadmaster.models.policy import Proposal
from loadmaster.serving.system import Endpoint, Policy, Quantity, RecordedInput
from loadmaster.serving.systems.sure.examples import examples
from loadmaster.serving.systems.sure.recorded import recorded_input
from loadmaster.serving.systems.sure.rules import RULES, SureRule
from loadmaster.serving.systems.sure.schema import (
    SureDecision,
    SureOutcome,
    SureState,
    to_decision,
)

if TYPE_CHECKING:  # torch is only loaded by processes that run a bundle
    from loadmaster.models.sure.policy import SurePolicy

_PREFIX = "task "  # of a quantity's name


class BundlePolicy:
    """A `SurePolicy` that decides on states of the service."""

    def __init__(self, policy: SurePolicy) -> None:
        self.policy, self.name, self.version = policy, policy.name, policy.version

    def decide(self, state: SureState) -> Proposal:
        from loadmaster.models.sure.explain import explain

        parsed, settings = state.parsed, self.policy.trained_in
        view = observe_snapshot(parsed.snapshot, settings.history)
        limits = settings.model_copy(update={"max_instances": state.max_instances})
        decision = self.policy.decide(view._asdict(), limits)
        before = parsed.snapshot.parallelism
        plan = plan_of_action(parsed.snapshot, decision.action, settings.action_factor)
        notes, known = parsed.notes, parsed.reported(settings.history)
        if known < settings.history:
            short = f"{counted(known, 'snapshot')} of the last {settings.history} minutes"
            notes = (*notes, f"{short}: the policy decides on a shorter history than in training")
        explanation = explain(decision, parsed.names, before, plan, notes)
        by_name = dict(zip(parsed.names, plan.tolist(), strict=True))
        return Proposal(to_decision(state, by_name), explanation)


class SureEndpoint(Endpoint[SureState, SureDecision, SureOutcome]):
    """Sets the parallelism of every task of a streaming job."""

    system = "sure"
    summary = "streaming jobs: whether to rescale, and how many instances each task gets"
    pretrained = "sure"
    rules = RULES
    state = SureState
    decision = SureDecision
    outcome = SureOutcome

    def examples(self) -> Mapping[str, SureState]:
        return examples()

    def policy(self, folder: Path) -> Policy:
        from loadmaster.models.bundle import load_bundle
        from loadmaster.models.sure.policy import SurePolicy

        policy = BundlePolicy(SurePolicy.from_bundle(load_bundle(folder)))
        policy.decide(examples()["tiny"])  # raises if the network cannot decide
        return policy

    def rule(self, name: str) -> Policy:
        return SureRule(name)

    def quantities(self, state: SureState, decision: SureDecision) -> tuple[Quantity, ...]:
        """Instances of every task, before and after; any of them may be what a backlog needs."""
        now, plan, backlog = (
            state.snapshots.parallelism[-1],
            decision.parallelism,
            state.parsed.backlog,
        )
        return tuple(
            Quantity(f"{_PREFIX}{task.name}", float(count), float(plan[task.name]), *backlog)
            for task, count in zip(state.tasks, now, strict=True)
        )

    def constrain(
        self, state: SureState, decision: SureDecision, allowed: Mapping[str, float]
    ) -> SureDecision:
        """Round what is allowed towards the present instances.

        Where falls are prevented, the last rises are reduced until the job's limit holds.
        """
        plan = dict(decision.parallelism)
        now = dict(zip(plan, map(int, state.snapshots.parallelism[-1]), strict=True))
        for task in state.tasks:
            bound = allowed.get(f"{_PREFIX}{task.name}")
            if bound is not None:
                count = now[task.name]
                whole = math.floor(bound) if bound > count else math.ceil(bound)
                plan[task.name] = min(max(whole, 1), task.max_parallelism)
        excess = sum(plan.values()) - max(state.max_instances, sum(now.values()))
        for name in reversed(plan):
            cut = min(max(plan[name] - now[name], 0), max(excess, 0))
            plan[name] -= cut
            excess -= cut
        return to_decision(state, plan)

    def validate_decision(self, state: SureState, decision: SureDecision) -> str | None:
        names = [task.name for task in state.tasks]
        if list(decision.parallelism) != names:
            other = set(decision.parallelism).symmetric_difference(names)
            return f"parallelism of {sorted(other)[:3] or 'tasks in another order'}; expected all"
        for task in state.tasks:
            count = decision.parallelism[task.name]
            if count > task.max_parallelism:
                most = f"expected at most {task.max_parallelism}"
                return f"task {task.name!r} gets {count} instances; {most}"
        plan, now = decision.parallelism, state.snapshots.parallelism[-1]
        total = sum(plan.values())
        if total > max(state.max_instances, sum(now)):
            return f"{total} instances in all; expected at most {state.max_instances}"
        bounds = {name: one.parallelism.upperBound for name, one in decision.requirements.items()}
        required = {task.id or task.name: plan[task.name] for task in state.tasks}
        if bounds != required or decision.act != (tuple(plan.values()) != tuple(now)):
            return "act or requirements do not fit the parallelism"
        return None

    def agreement(self, decision: SureDecision, other: SureDecision) -> float:
        """Mean over the tasks of the smaller parallelism over the larger one."""
        counts = [(count, other.parallelism.get(n, 0)) for n, count in decision.parallelism.items()]
        return fmean(min(pair) / max(pair) for pair in counts)

    def features(self, state: SureState) -> Mapping[str, float]:
        """Load and use of the job, of the last snapshot."""
        snapshot = state.parsed.snapshot
        last, job = snapshot.metrics[-1].astype(np.float64), snapshot.job
        count = last[:, cols.PARALLELISM]
        source = job.source >= 0
        arriving = float(last[source, cols.IN_RATE].sum())
        return {
            "tasks": float(len(count)),
            "instances": float(count.sum()),
            "busy": float((last[:, cols.BUSY] * count).sum() / count.sum()),
            "backpressured": float((last[:, cols.BLOCKED] * count).sum() / count.sum()),
            "records_per_s_log": math.log1p(arriving / 60),
            "buffer_usage": float(last[:, cols.BUFFER_USE].max()),
            "backlog_log_min": math.log1p(state.parsed.backlog[0] / 60),
        }

    def reward(self, outcome: SureOutcome) -> float:
        """The environment's, with its default weight of the latency."""
        sums = np.zeros(cols.SUM_COLUMNS)
        sums[cols.SUM_LATENCY] = outcome.latency_s / 60
        sums[cols.SUM_BUSY_SHARE] = outcome.utilisation
        return float(reward_sum(StreamScalingSettings(), sums))

    def retraining(self, features: Mapping[str, float]) -> Mapping[str, Any]:
        """None: means say nothing of the job; `recorded` has it."""
        return {}

    def recorded(self, states: Iterable[tuple[float, SureState]]) -> RecordedInput | None:
        return recorded_input(states)


ENDPOINT = SureEndpoint()
