"""Rules of the environment as policies of the service, for states where the network cannot decide.

They are stateless: what they remember in an episode is computed again from the snapshots.
"""

from collections.abc import Iterator
from importlib.metadata import version

from loadmaster.envs.errors import counted, unknown_name
from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.describe import describe_plan
from loadmaster.envs.stream_scaling.snapshot import plan_of_rule
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.sure.schema import SureState, to_decision
from loadmaster.serving.systems.sure.snapshot import ParsedJob

# With their published parameters. Flink's operator also catches up with a backlog, and reduces
# only what was too much for an hour.
RULES = ("flink", "ds2")


class SureRule:
    """A rule that decides on states of the service."""

    def __init__(self, name: str) -> None:
        if name not in RULES:
            raise unknown_name("rule", name, RULES)
        self.name, self.version = name, version("loadmaster")
        self._baseline = BASELINES[name]

    def decide(self, state: SureState) -> Proposal:
        parsed, rule = state.parsed, self._baseline
        before = parsed.snapshot.parallelism
        found = plan_of_rule(parsed.snapshot, rule)
        plan = before if found is None else found
        decision = to_decision(state, dict(zip(parsed.names, plan.tolist(), strict=True)))
        waits = " (too soon after the last restart)" if found is None else ""
        summary = f"{describe_plan(before, plan)}{waits}, by {rule.name}: {rule.summary}"
        return Proposal(decision, Explanation(summary, notes=(*parsed.notes, *self._notes(parsed))))

    def _notes(self, parsed: ParsedJob) -> Iterator[str]:
        needed, given = self._baseline.parameters.get("down_min", 0), len(parsed.snapshot.metrics)
        if given < needed:
            yield (
                f"{counted(given, 'minute')} of history: {self.name} removes no instances with "
                f"less than {needed:g}"
            )
