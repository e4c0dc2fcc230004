"""Heuristics of the environment as policies of the service."""

from importlib.metadata import version

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.placement import no_preferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import replan, run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import QUEUED
from loadmaster.models.das.decision import read_decision, summarise
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.snapshot import tables_of, to_schema

# By mean completion time: LAS is far ahead where jobs queue and 4% behind where they hardly do;
# see docs/results. The last is the default of most schedulers.
RULES = ("las-consolidate", "drf-consolidate", "fifo-consolidate", "fifo-best-fit")
_SETTINGS = {backfill: GpuSchedulingSettings(backfill=backfill) for backfill in (False, True)}


class DasRule:
    """An ordering and a placement rule.

    Preemptive orderings reconsider all jobs at every event and in the phase "reconsidering"; others
    do nothing in that phase.
    """

    def __init__(self, name: str) -> None:
        if name not in RULES:
            raise unknown_name("rule", name, RULES)
        self.name, self.version = name, version("loadmaster")
        self._rule = BASELINES[name]

    def decide(self, state: DasState) -> Proposal:
        ordering = self._rule.ordering
        tables = tables_of(state, _SETTINGS[state.backfill], ordering.rule)
        by = ordering.rule, self._rule.placement, no_preferences(tables.jobs)
        if tables.state.clock[QUEUED] > 0:
            if ordering.replans and state.ask in ("event", "reconsidering"):
                replan(*tables.simulation[:3], *by)
            elif state.ask != "reconsidering":
                run_scheduling_pass(*tables.simulation[:3], *by)
        decision = read_decision(tables)
        return Proposal(to_schema(tables, decision), Explanation(summarise(tables, decision)))
