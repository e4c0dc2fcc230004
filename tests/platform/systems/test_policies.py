"""Learned policies: lookup by name or folder, decisions and their explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs import registry as systems
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.observation import Observation
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from loadmaster.platform.systems.bundle_ref import best_pretrained, find_policy
from loadmaster.platform.systems.decima.evaluation import LearnedDecima
from loadmaster.platform.systems.policies import spread
from tests.bundles import make_bundle, make_run

pytestmark = pytest.mark.slow

TINY_SETTINGS = DagSchedulingSettings(jobs=4, executors=8)


def test_policy_is_found_by_name_bundle_and_run(here: Path, pretrained: Path) -> None:
    make_bundle(here / "bundles" / "mine")
    make_run(here / "run", "best", "last")
    make_run(here / "young", "last")
    make_bundle(here / "decima-batch", name="in this folder")
    for spec, folder in {
        "decima-fast": pretrained / "decima-fast",
        "bundles/mine": here / "bundles" / "mine",
        str(here / "bundles" / "mine"): here / "bundles" / "mine",
        "run": here / "run" / "best",
        "run/last": here / "run" / "last",
        "young": here / "young" / "last",
        "decima-batch": pretrained / "decima-batch",  # a name comes first
        "./decima-batch": here / "decima-batch",
    }.items():
        assert find_policy(spec).folder.resolve() == folder.resolve(), spec
    assert find_policy("run").system.environment == "dag_scheduling"


def test_unknown_policies_are_refused(here: Path, pretrained: Path) -> None:
    make_run(here / "new")
    (here / "empty").mkdir()
    for spec, message in {
        "decima-fat": "unknown policy 'decima-fat'; did you mean 'decima-fast'?",
        "fiar": "unknown policy 'fiar'; did you mean 'fair'?",
        "xyz": "expected one of: decima-batch, decima-fast, decima-makespan, decima-slow, "
        "fair, fifo, or the folder of a bundle or run",
        "nowhere/at/all": "nowhere/at/all does not exist",
        "empty": "empty has no manifest.json; expected a policy bundle",
        "new": "the run new has no best policy yet",
    }.items():
        with pytest.raises(InputError) as caught:
            find_policy(spec, ["fair", "fifo"])
        assert message in str(caught.value)


def test_nearest_pretrained_policy_that_is_whole_is_chosen(pretrained: Path) -> None:
    make_bundle(pretrained / "decima-free", environment={"moving_delay_s": 0.0})
    stream, decima = {"arrivals": "poisson"}, systems.find_system("decima")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "batch"),
        ({"executors": 10, "workload": "toy"}, "batch"),
        ({"objective": "makespan"}, "makespan"),
        ({"objective": "makespan", **stream}, "makespan"),  # the objective comes first
        (stream, "slow"),
        ({**stream, "interarrival_s": 40}, "slow"),
        ({**stream, "interarrival_s": 18}, "fast"),
        ({**stream, "load": 1.2}, "fast"),  # a load is a gap, with this workload
        ({**stream, "load": 0.3}, "slow"),
        ({"moving_delay_s": 0}, "free"),
    ]
    for values, name in cases:
        found = best_pretrained(decima, DagSchedulingSettings(**values))
        assert found.folder.name == f"decima-{name}", values
    (pretrained / "decima-batch" / "manifest.json").write_text("{")
    assert best_pretrained(decima, DagSchedulingSettings()).folder.name != "decima-batch"


def untrained(folder: Path, **network: Any) -> LearnedDecima:
    policy = find_policy(str(make_bundle(folder / "policy", **network))).policy
    assert isinstance(policy, LearnedDecima)
    return policy


@pytest.mark.parametrize(
    "settings",
    [TINY_SETTINGS, DagSchedulingSettings(arrivals="poisson", jobs=12, interarrival_s=4)],
)
def test_explained_decisions_are_those_of_the_episode(
    tmp_path: Path, settings: DagSchedulingSettings
) -> None:
    """The stream makes the tables grow on the way."""
    learned, workload = untrained(tmp_path), load_workload(settings)
    steps = list(learned.iterate(settings, 1, workload))
    result = learned.run(settings, 1, workload)
    assert len(steps) == result.decisions
    assert steps[-1].state.completed_ms.tolist() == np.round(result.completion_s * 1000).tolist()
    for step in steps:
        decision, choices = step.decision, step.explanation.choices
        assert decision.stages[0].row == decision.row
        assert decision.limits[0].limit == decision.limit
        assert decision.executors >= 1
        assert [option.chosen for option in choices["stage"]][:2] in ([True], [True, False])
        chances = [option.probability or 0 for option in choices["stage"]]
        assert chances == sorted(chances, reverse=True)
        others = decision.schedulable - len(chances)
        assert step.explanation.others["stage"] == others
        assert 0 < sum(chances) < 1 if others else sum(chances) == pytest.approx(1)


def test_probabilities_are_those_of_the_network(tmp_path: Path) -> None:
    learned = untrained(tmp_path)
    env = DagSchedulingEnv(jobs=4, executors=8, max_jobs=4, max_stages=80, max_edges=100)
    observation, _ = env.reset(seed=3)
    decision, _ = learned.decide(Observation(**observation))
    tables = {name: torch.as_tensor(table)[None] for name, table in observation.items()}
    with torch.no_grad():
        scores, batch, embedded = learned.network(tables)
        limits = learned.network.limit_scores(
            tables, batch, embedded, torch.tensor([decision.row]), 8
        )
    stages = scores.softmax(1)[0]
    assert decision.schedulable == int(observation["schedulable"][:-1].sum())
    for stage in decision.stages:
        assert stage.probability == pytest.approx(float(stages[stage.row]), abs=1e-5)
    assert len(decision.limits) == min(decision.useful_limits, 5)
    for limit in decision.limits:
        expected = float(limits.softmax(1)[0, limit.limit - 1])
        assert limit.probability == pytest.approx(expected, abs=1e-5)


def test_a_network_without_limits_explains_stages_only(tmp_path: Path) -> None:
    learned, workload = untrained(tmp_path, limits=False), load_workload(TINY_SETTINGS)
    for decision in learned.explain(TINY_SETTINGS, 0, workload, 3):
        assert decision.record["limits"] == []
        assert decision.record["chosen"]["limit"] == 8
        assert list(decision.explanation.choices) == ["stage"]


def test_spread_takes_even_distances() -> None:
    assert spread(range(100), 4) == {12, 37, 62, 87}
    assert spread([3, 5, 8], 1) == {5}
    assert spread([3, 5, 8], 9) == {3, 5, 8}
    assert spread([], 2) == set()
