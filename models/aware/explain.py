"""Explanations of AWARE's decisions: the plan, what it is expected to earn, and its margins."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadmaster.envs.pod_scaling.describe import describe_plan
from loadmaster.envs.pod_scaling.state import (
    CPU_S,
    IO_S,
    MEMORY_MIB,
    REQUEST_MIB,
    Floats,
)
from loadmaster.models.aware.choice import PodDecision
from loadmaster.models.aware.settings import MARGINS, RuleSettings
from loadmaster.models.policy import ExplainedDecision, Explanation, Option

MARGIN = "margin"  # the choice of an explained decision


def explain(
    decision: PodDecision, before: Floats, rule: RuleSettings, notes: Sequence[str] = ()
) -> Explanation:
    """Explain a decision by the plan before it; the margins farthest from the rule's come first."""
    choices = {} if decision.margins is None else {MARGIN: _margins(decision, rule)}
    app, forecast = decision.app, decision.forecast
    load = f"{forecast.rate:.3g} requests/s expected, within {100 * np.expm1(forecast.sigma):.0f}%"
    needs = (
        f"a request takes {1000 * app[CPU_S]:.3g} ms of CPU and {1000 * app[IO_S]:.3g} ms of I/O"
    )
    memory = f"a pod {app[MEMORY_MIB]:.0f} MiB and {app[REQUEST_MIB]:.2g} MiB a request"
    summary = f"{describe_plan(before, decision.plan)}; {load}; {needs}, {memory}"
    return Explanation(summary, choices, {}, notes)


def _margins(decision: PodDecision, rule: RuleSettings) -> list[Option]:
    options = [
        Option(
            name,
            round(float(action), 6),
            chosen=bool(abs(action) > 0.5),
            details={"value": f"{value:.4g}", "rule": f"{base:.4g}"},
        )
        for name, action, value, base in zip(
            MARGINS, decision.action, decision.margins or (), rule.margins, strict=True
        )
    ]
    return sorted(options, key=lambda option: -abs(option.score))


def explained(
    decision: PodDecision, before: Floats, rule: RuleSettings, minute: int
) -> ExplainedDecision:
    """The same with its record in JSON."""
    cores, mib, replicas = map(float, decision.plan)
    record: dict[str, Any] = {
        "minute": minute,
        "replicas": int(replicas),
        "cpu_m": round(1000 * cores, 1),
        "memory_mib": round(mib, 1),
    }
    if decision.margins is not None:
        found = zip(MARGINS, decision.margins, strict=True)
        record["expected_reward"] = round(decision.expected, 6)
        record["margins"] = {name: round(value, 6) for name, value in found}
    return ExplainedDecision(60.0 * minute, explain(decision, before, rule), record)
