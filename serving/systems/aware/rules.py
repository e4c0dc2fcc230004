"""Rules of the environment as policies of the service, for states where the network cannot decide.

They are stateless: what they remember in an episode is computed again from the reports
(`plan_of_rule` names the differences). Their parameters are those tuned for the generated training
set, which fit many applications.
"""

from collections.abc import Iterator
from importlib.metadata import version

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.describe import describe_plan
from loadmaster.envs.pod_scaling.settings import INTERVAL_S, PodScalingSettings
from loadmaster.envs.pod_scaling.snapshot import plan_of_rule
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.aware.schema import AwareState, to_decision
from loadmaster.serving.systems.aware.snapshot import ParsedApplication

# The first one changes no pod's size, so it restarts none, and needs the shortest history.
RULES = ("hpa", "mpa-usage", "mpa", "hpa-cpu-vpa-memory", "vpa", "window-peak", "static")
_HISTORY = ("down_min", "half_life_min", "window_min")  # parameters in minutes of reports


class AwareRule:
    """A rule that decides on states of the service."""

    def __init__(self, name: str) -> None:
        if name not in RULES:
            raise unknown_name("rule", name, RULES)
        self.name, self.version = name, version("loadmaster")
        self._baseline = tuned_baseline(name, PodScalingSettings())

    def decide(self, state: AwareState) -> Proposal:
        parsed, rule = state.parsed, self._baseline
        plan = plan_of_rule(parsed.snapshot, rule)
        summary = f"{describe_plan(parsed.snapshot.plan, plan)}, by {rule.name}: {rule.summary}"
        notes = (*parsed.notes, *self._notes(parsed))
        return Proposal(to_decision(state, plan), Explanation(summary, notes=notes))

    def _notes(self, parsed: ParsedApplication) -> Iterator[str]:
        parameters = self._baseline.parameters
        needed = min(max(parameters.get(name, 0.0) for name in _HISTORY), 60.0)
        given = len(parsed.snapshot.reports) * INTERVAL_S / 60
        if given < needed:
            yield f"{given:g} minutes of reports: {self.name} uses up to {needed:g}"
        if given < parameters.get("down_min", 0.0):
            yield f"{self.name} removes no pods with less than {parameters['down_min']:g} of them"
