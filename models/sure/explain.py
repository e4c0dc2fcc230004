"""Explanations of SURE's decisions: the change of each task, and the subgraph it drew."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.describe import describe_plan
from loadmaster.models.policy import ExplainedDecision, Explanation, Option
from loadmaster.models.sure.graph import NONE, job_graph
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
    decision: ScalingDecision,
    names: Sequence[str],
    edges: NDArray[np.int64],
    hops: int,
    before: Ints,
    after: Ints,
    minute: int,
) -> ExplainedDecision:
    """The same with its record in JSON: all tasks, and all drawn snapshots and neighbours."""
    candidates = job_graph(edges, len(names), hops).candidates
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
                "read": drawn(decision, task, names, candidates),
            }
            for task, name in enumerate(names)
        ],
    }
    return ExplainedDecision(60.0 * minute, explain(decision, names, before, after), record)


def drawn(
    decision: ScalingDecision, task: int, names: Sequence[str], candidates: Ints
) -> list[dict[str, Any]]:
    """Snapshots that a task drew, with their weights and the neighbours drawn in each."""
    if decision.draw is None:
        return []
    found = []
    for slot, age in enumerate(decision.draw.snapshot[task].tolist()):
        if age == NONE:
            continue
        columns = [c for c in decision.draw.neighbour[task, slot].tolist() if c != NONE]
        entry: dict[str, Any] = {"minutes_ago": age}
        if decision.weight is not None:
            entry["weight"] = round(float(decision.weight[task, slot]), 6)
        entry["neighbours"] = [names[int(candidates[task, column])] for column in columns]
        found.append(entry)
    return found


def _summary(decision: ScalingDecision, before: Ints, after: Ints) -> str:
    if not decision.act:
        return f"{describe_plan(before, after)}, {1 - decision.probability:.1%} sure"
    sure = f"{decision.probability:.1%} sure"
    if (before == after).all():
        return f"acted, {sure}, but kept all {before.sum()} instances"
    return f"{describe_plan(before, after)}, {sure}"


def _instances(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} -> {after}"


def _snapshots(decision: ScalingDecision, task: int) -> str:
    if decision.draw is None:
        return "all"
    ages = decision.draw.snapshot[task].tolist()
    if decision.weight is None:
        return ", ".join(str(age) for age in ages[:NAMED] if age != NONE)
    pairs = zip(ages, decision.weight[task].tolist(), strict=True)
    return ", ".join(f"{age} ({weight:.0%})" for age, weight in list(pairs)[:NAMED] if age != NONE)
