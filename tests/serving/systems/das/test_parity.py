"""Decisions on states sent as JSON equal those of the simulated episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.das.schema import DasState
from loadmaster.serving.systems.das.system import ENDPOINT
from tests.bundles import make_bundle
from tests.serving.systems.das.episodes import PRETRAINED, Episode, Seen, carried_out, under_rule

pytestmark = pytest.mark.slow


def compare(policy: Policy, episode: Iterator[Seen], decisions: int) -> Counter[str]:
    """Compare the policy's decisions with those of the episode; return how many of each kind."""
    kinds = Counter[str]()
    for seen in islice(episode, decisions):
        received = DasState.model_validate_json(seen.asked.model_dump_json())
        decision = policy.decide(received).decision
        assert ENDPOINT.validate_decision(received, decision) is None
        assert carried_out(seen.before, decision) == seen.after, (seen.kind, decision)
        for start in decision.start:
            assert seen.before.get(start.job) != seen.after[start.job]
        assert decision.wait == len(received.jobs) - len(seen.after)
        kinds[seen.kind] += 1
    assert kinds.total() == decisions
    return kinds


@pytest.mark.parametrize(
    ("name", "load", "skipped", "decisions"),
    [("das-small", 1.2, 0, 690), ("das-medium", 1.5, 150, 400), ("das-large", 4.0, 450, 60)],
)
def test_phases_equal_episode(name: str, load: float, skipped: int, decisions: int) -> None:
    episode = Episode(PRETRAINED / name, seed=1, load=load).skip(skipped)
    kinds = compare(ENDPOINT.policy(PRETRAINED / name), episode.moments(), decisions)
    assert min(kinds[kind] for kind in ("placing", "reconsidering")) > 5, kinds
    assert kinds["placing again"] > 5 or name == "das-large", kinds


@pytest.mark.parametrize(
    ("name", "load", "skipped", "events"),
    [("das-small", 1.2, 0, 300), ("das-medium", 1.5, 400, 150)],
)
def test_events_equal_episode(name: str, load: float, skipped: int, events: int) -> None:
    """Without runtime noise, which a state does not contain for jobs that just started."""
    episode = Episode(PRETRAINED / name, seed=3, load=load, stragglers=0.0).skip(skipped)
    kinds = compare(ENDPOINT.policy(PRETRAINED / name), episode.events(), events)
    assert kinds["placing, reconsidering, placing again"] > 5, kinds
    assert kinds["reconsidering, placing again"] > 5, kinds


@pytest.mark.parametrize(
    ("network", "environment"),
    [
        ({"exact_up_to": 4, "cells": 3}, {"preempt": True}),  # in torch, with cells
        ({"process": False, "opening": "nothing"}, {"durations": "known", "backfill": False}),
    ],
    ids=["in torch", "a plain network in a strict queue"],
)
def test_other_networks_equal_episode(
    network: dict[str, Any], environment: dict[str, Any], tmp_path: Path
) -> None:
    """With more jobs than the policy observes."""
    environment = {"max_queue": 12, "history": 3, **environment}
    folder = make_bundle(
        tmp_path / "other", system="das", environment=environment, width=16, heads=2, **network
    )
    policy = ENDPOINT.policy(folder)
    phases = compare(policy, Episode(folder, seed=2).moments(), 120)
    events = compare(policy, Episode(folder, seed=2, stragglers=0.0).events(), 80)
    assert (phases.total(), events.total()) == (120, 80)
    assert phases["placing"] > 5, phases


@pytest.mark.parametrize("rule", ENDPOINT.rules)
@pytest.mark.parametrize("backfill", [True, False], ids=["backfill", "strict"])
def test_rules_equal_episode(rule: str, backfill: bool) -> None:
    settings = GpuSchedulingSettings(backfill=backfill, require_types=True, oversized="skip")
    kinds = compare(ENDPOINT.rule(rule), under_rule(rule, settings, seed=4), 250)
    assert kinds["placing"] > 20
    assert (kinds["event"] > 20) == rule.startswith("las")
