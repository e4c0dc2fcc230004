"""A state sent as JSON is decided as the same moment is in process: every single one."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.serving.das.endpoint import ENDPOINT
from loadmaster.serving.das.schema import DasState
from loadmaster.serving.endpoint import Policy
from tests.serving.das.episodes import PRETRAINED, Episode, Seen, carried_out, under_rule


def assert_same(policy: Policy, seen: Seen) -> None:
    """Sent and decided, it leads where the simulator went, and nothing moves without need."""
    received = DasState.model_validate_json(seen.asked.model_dump_json())
    decision = policy.decide(received).decision
    assert ENDPOINT.fault(received, decision) is None
    assert carried_out(seen.before, decision) == seen.after, (seen.kind, decision)
    for start in decision.start:
        assert seen.before.get(start.job) != seen.after[start.job]
    assert decision.wait == len(received.jobs) - len(seen.after)


@pytest.mark.parametrize(
    ("name", "load", "decisions"),
    [("das-small", 1.2, 750), ("das-medium", 0.9, 500), ("das-large", 2.0, 300)],
)
def test_moments_are_decided_as_in_process(name: str, load: float, decisions: int) -> None:
    policy, kinds = ENDPOINT.policy(PRETRAINED / name), Counter[str]()
    for seen in islice(Episode(PRETRAINED / name, seed=1, load=load).moments(), decisions):
        assert_same(policy, seen)
        kinds[seen.kind] += 1
    assert kinds.total() == decisions
    assert min(kinds[kind] for kind in ("placing", "reconsidering", "placing again")) > 5, kinds


@pytest.mark.parametrize(("name", "most"), [("das-small", 300), ("das-medium", 200)])
def test_events_are_decided_as_in_process(name: str, most: int) -> None:
    """Without luck: how lucky a job is where it was just started, nobody outside knows."""
    policy, kinds = ENDPOINT.policy(PRETRAINED / name), Counter[str]()
    for seen in islice(Episode(PRETRAINED / name, 3, stragglers=0.0).events(), most):
        assert_same(policy, seen)
        kinds[seen.kind] += 1
    assert kinds["placing, reconsidering, placing again"] > 5, kinds
    assert kinds["reconsidering, placing again"] > 5, kinds


@pytest.mark.parametrize("rule", ENDPOINT.rules)
@pytest.mark.parametrize("backfill", [True, False], ids=["backfill", "strict"])
def test_rules_decide_as_in_process(rule: str, backfill: bool) -> None:
    policy = ENDPOINT.rule(rule)
    settings = GpuSchedulingSettings(backfill=backfill, require_types=True, oversized="skip")
    kinds = Counter[str]()
    for seen in islice(under_rule(rule, settings, seed=4), 250):
        assert_same(policy, seen)
        kinds[seen.kind] += 1
    assert kinds["placing"] > 20
    assert (kinds["event"] > 20) == rule.startswith("las")
