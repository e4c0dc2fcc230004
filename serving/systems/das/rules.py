"""Heuristics of the environment as policies of the service."""

from functools import lru_cache
from importlib.metadata import version

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, MIGRATE, SWAP
from loadmaster.envs.gpu_scheduling.calibration import gpus_of, tuned_baseline_for
from loadmaster.envs.gpu_scheduling.placement import no_preferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import replan, run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import QUEUED
from loadmaster.models.das.decision import read_decision, summarise
from loadmaster.models.policy import Explanation, Proposal
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.snapshot import tables_of, to_schema

# The first is the default. `las-fastest` and `predicted-speed-price` know the speeds of machines,
# the latter also predicts by users' finished jobs. `fifo-best-fit` is usual in schedulers.
RULES = (
    "las-consolidate",
    "las-fastest",
    "predicted-speed-price",
    "drf-consolidate",
    "fifo-consolidate",
    "fifo-best-fit",
)
# The offered load is unknown here; parameters of a loaded cluster matter most.
_LOAD = 1.0
_SETTINGS = {backfill: GpuSchedulingSettings(backfill=backfill) for backfill in (False, True)}


@lru_cache
def tuned_values(name: str, gpus: int) -> tuple[float, ...]:
    """Parameters of the rule for a cluster of this size, as shipped."""
    return tuned_baseline_for(name, load=_LOAD, gpus=max(gpus, 1)).values


class DasRule:
    """An ordering and a placement rule.

    Preemptive orderings reconsider all jobs at every event and in the phase "reconsidering"; others
    do nothing in that phase.
    """

    def __init__(self, name: str) -> None:
        if name not in RULES:
            raise unknown_name("rule", name, RULES)
        self.name, self.version = name, version("loadmaster")
        self._baseline = BASELINES[name]

    def decide(self, state: DasState) -> Proposal:
        ordering, gpus = self._baseline.ordering, gpus_of(state.parsed.cluster_index.cluster)
        values = tuned_values(self.name, gpus)
        tables = tables_of(state, _SETTINGS[state.backfill], ordering.rule, values)
        by = ordering.rule, self._baseline.placement, no_preferences(tables.jobs)
        if tables.state.clock[QUEUED] > 0 or values[MIGRATE] > 0 or values[SWAP] > 0:
            if ordering.replans and state.ask in ("event", "reconsidering"):
                replan(*tables.simulation[:3], *by)
            elif state.ask != "reconsidering":
                run_scheduling_pass(*tables.simulation[:3], *by)
        decision = read_decision(tables)
        found = to_schema(tables, decision, ordering.rule)
        return Proposal(found, Explanation(summarise(tables, decision)))
