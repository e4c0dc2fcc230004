"""From a rule's number to its decision, in compiled code."""

from __future__ import annotations

from loadmaster.envs.compiled import compiled
from loadmaster.envs.dag_scheduling import baselines as rule
from loadmaster.envs.dag_scheduling.baselines.priorities import (
    any_legal,
    pack,
    shortest_job_critical_path,
    troublesome_first,
)
from loadmaster.envs.dag_scheduling.baselines.shares import EVERYTHING, share
from loadmaster.envs.dag_scheduling.observation import Observation


@compiled
def decide(
    rule_number: int,
    alpha: float,
    threshold: float,
    release: bool,
    view: Observation,
    seed: int,
    count: int,
) -> tuple[int, int]:
    """(stage row, parallelism limit). `seed` and `count` feed the one rule that draws at random."""
    if rule_number == rule.FIFO:
        alpha = EVERYTHING
    if rule_number == rule.FIFO or rule_number == rule.FAIR or rule_number == rule.WEIGHTED:
        return share(view, alpha, release)
    if rule_number == rule.SHORTEST:
        return shortest_job_critical_path(view)
    if rule_number == rule.PACK:
        return pack(view)
    if rule_number == rule.TROUBLESOME:
        return troublesome_first(view, alpha, threshold, release)
    return any_legal(view, seed, count)
