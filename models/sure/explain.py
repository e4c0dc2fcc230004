"""Explanations of SURE's decisions: the change of each task, and the subgraph it drew."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.describe import describe_plan
from loadmaster.models.policy import ExplainedDecision, Explanation, Option
from loadmaster.models.sure.graph import NONE
from loadmaster.models.sure.policy import ScalingDecision

TASK = "task"  # the choice of an explained decision
OPTIONS = 8  # tasks that an explanation lists
NAMED = 3  # snapshots and neighbours that are named of each task

Ints = NDArray[np.int64]


def explain(
    decision: ScalingDecision,
    names: Sequence[str],
    before: Ints,
    after: Ints,
    notes: Sequence[str] = (),
) -> Explanation:
    """Explain a decision by the instances before and after it, the largest changes first."""
    order = sorted(range(len(names)), key=lambda task: -abs(float(decision.change[task])))
    options = [
        Option(
            names[task],
            round(float(decision.change[task]), 6),
            round(decision.std, 6),
            chosen=bool(before[task] != after[task]),
            details={
                "instances": _instances(before[task], after[task]),
                "change": f"{decision.change[task]:+.2f} +- {decision.std:.2f}",
                "minutes ago (weight)": _snapshots(decision, task),
            },
        )
        for task in order[:OPTIONS]
    ]
    others = max(len(names) - OPTIONS, 0)
    return Explanation(_summary(decision, before, after), {TASK: options}, {TASK: others}, notes)


def explained(
    decision: ScalingDecision, names: Sequence[str], before: Ints, after: Ints, minute: int
) -> ExplainedDecision:
    """The same with its record in JSON: all tasks, and all drawn snapshots and neighbours."""
    record: dict[str, Any] = {
        "minute": minute,
        "act": decision.act,
        "probability": round(decision.probability, 6),
        "tasks": [
            {
                "task": name,
                "instances": int(before[task]),
                "chosen": int(after[task]),
                "mean": round(float(decision.change[task]), 6),
                "std": round(decision.std, 6),
                "read": drawn(decision, task, names),
            }
            for task, name in enumerate(names)
        ],
    }
    return ExplainedDecision(60.0 * minute, explain(decision, names, before, after), record)


def drawn(decision: ScalingDecision, task: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Snapshots that a task drew, with their weights and the neighbours drawn in each."""
    if decision.read is None:
        return []
    own = zip(*(table[task].tolist() for table in decision.read), strict=True)
    return [
        {
            "minutes_ago": age,
            "weight": round(weight, 6),
            "neighbours": [names[other] for other in neighbours if other != NONE],
        }
        for age, weight, neighbours in own
        if age != NONE
    ]


def _summary(decision: ScalingDecision, before: Ints, after: Ints) -> str:
    probability = decision.probability if decision.act else 1 - decision.probability
    if decision.act and (before == after).all():
        return f"acted with probability {probability:.1%}, kept all {before.sum()} instances"
    return f"{describe_plan(before, after)}, with probability {probability:.1%}"


def _instances(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} -> {after}"


def _snapshots(decision: ScalingDecision, task: int) -> str:
    if decision.read is None:
        return "all"
    pairs = list(zip(decision.read.snapshot[task], decision.read.weight[task], strict=True))
    return ", ".join(f"{age} ({weight:.0%})" for age, weight in pairs[:NAMED] if age != NONE)
