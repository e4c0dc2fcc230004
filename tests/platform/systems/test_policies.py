"""Learned policies: found by name or folder, and at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.systems import registry as systems
from loadmaster.platform.systems.bundle_ref import best_pretrained, find_policy
from loadmaster.platform.systems.decima.policies import DecimaPolicies
from loadmaster.platform.systems.decima.policy import DecimaPolicy
from loadmaster.platform.systems.decima.rollout import run_episode
from loadmaster.platform.systems.sampling import spread
from tests.bundles import make_bundle, make_run

TINY_SETTINGS = DagSchedulingSettings(jobs=4, executors=8)


# ------------------------------------------------------------------------------------- finding


def test_a_policy_is_found_by_name_bundle_and_run(here: Path, shipped: Path) -> None:
    make_bundle(here / "bundles" / "mine")
    make_run(here / "run", "best", "last")
    make_run(here / "young", "last")
    make_bundle(here / "decima-batch", name="in this folder")
    for spec, folder in {
        "decima-fast": shipped / "decima-fast",
        "bundles/mine": here / "bundles" / "mine",
        str(here / "bundles" / "mine"): here / "bundles" / "mine",
        "run": here / "run" / "best",
        "run/last": here / "run" / "last",
        "young": here / "young" / "last",
        "decima-batch": shipped / "decima-batch",  # a name comes first
        "./decima-batch": here / "decima-batch",
    }.items():
        assert find_policy(spec).folder.resolve() == folder.resolve(), spec
    assert find_policy("run").system.environment == "dag_scheduling"


def test_what_cannot_be_found(here: Path, shipped: Path) -> None:
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


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "batch"),
        ({"executors": 10, "workload": "toy"}, "batch"),
        ({"objective": "makespan"}, "makespan"),
        ({"objective": "makespan", "arrivals": "poisson"}, "makespan"),  # the objective comes first
        ({"arrivals": "poisson"}, "slow"),
        ({"arrivals": "poisson", "interarrival_s": 40}, "slow"),
        ({"arrivals": "poisson", "interarrival_s": 18}, "fast"),
        ({"arrivals": "poisson", "load": 1.2}, "fast"),  # a load is a gap, with this workload
        ({"arrivals": "poisson", "load": 0.3}, "slow"),
    ],
)
def test_the_pretrained_policy_that_fits_best(
    values: dict[str, Any], name: str, shipped: Path
) -> None:
    settings = DagSchedulingSettings(**values)
    found = best_pretrained(systems.find_system("decima"), settings)
    assert found.folder.name == f"decima-{name}"


def test_free_migration_is_another_problem(shipped: Path) -> None:
    make_bundle(shipped / "decima-free", environment={"moving_delay_s": 0.0})
    system = systems.find_system("decima")
    free = DagSchedulingSettings(moving_delay_s=0)
    assert best_pretrained(system, free).folder.name == "decima-free"
    assert best_pretrained(system, DagSchedulingSettings()).folder.name == "decima-batch"


def test_a_damaged_one_that_ships_is_passed_over(shipped: Path) -> None:
    (shipped / "decima-batch" / "manifest.json").write_text("{")
    found = best_pretrained(systems.find_system("decima"), DagSchedulingSettings())
    assert found.folder.name != "decima-batch"


# ----------------------------------------------------------------------------------- at work


@pytest.fixture
def policy(tmp_path: Path) -> DecimaPolicy:
    bundle = load_bundle(make_bundle(tmp_path / "policy"))
    return DecimaPolicies().load(bundle)


def test_the_loaded_network_runs_its_own_episodes(policy: DecimaPolicy) -> None:
    workload = load_workload(TINY_SETTINGS)
    for seed in range(3):
        expected = run_episode(policy.network, TINY_SETTINGS, seed, workload)
        result = policy.run(TINY_SETTINGS, seed, workload)
        assert result.completion_s.tolist() == expected.completion_s.tolist()


@pytest.mark.parametrize(
    "settings",
    [TINY_SETTINGS, DagSchedulingSettings(arrivals="poisson", jobs=12, interarrival_s=4)],
)
def test_explained_decisions_are_those_of_the_episode(
    policy: DecimaPolicy, settings: DagSchedulingSettings
) -> None:
    """Also where a stream makes the tables grow on the way."""
    workload = load_workload(settings)
    moments = list(policy.walk(settings, 1, workload))
    result = policy.run(settings, 1, workload)
    assert len(moments) == result.decisions
    assert moments[-1].state.completed_ms.tolist() == np.round(result.completion_s * 1000).tolist()
    for reasons in (moment.reasons for moment in moments):
        assert reasons.stages[0].row == reasons.row
        assert reasons.limits[0].limit == reasons.limit
        assert 1 <= reasons.executors <= reasons.free_executors
        chances = [score.probability for score in reasons.stages]
        assert chances == sorted(chances, reverse=True)
        if reasons.schedulable <= len(chances):
            assert sum(chances) == pytest.approx(1)
        else:
            assert 0 < sum(chances) < 1


def test_probabilities_are_those_of_the_network(policy: DecimaPolicy) -> None:
    import torch

    from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
    from loadmaster.envs.dag_scheduling.observation import Observation
    from loadmaster.models.decima.compiled import scratch_for, weights_of
    from loadmaster.models.decima.explain import explain

    env = DagSchedulingEnv(jobs=4, executors=8, max_jobs=4, max_stages=80, max_edges=100)
    observation, _ = env.reset(seed=3)
    view = Observation(**observation)
    room = scratch_for(policy.network, 80, 4, 8)
    reasons = explain(view, weights_of(policy.network), room, top=100)
    tables = {name: torch.as_tensor(table)[None] for name, table in observation.items()}
    with torch.no_grad():
        scores, batch, embedded = policy.network(tables)
        row = torch.tensor([reasons.row])
        limits = policy.network.limit_scores(tables, batch, embedded, row, 8)
    stages = scores.softmax(1)[0]
    assert len(reasons.stages) == reasons.schedulable == int(observation["schedulable"][:-1].sum())
    for stage in reasons.stages:
        assert stage.probability == pytest.approx(float(stages[stage.row]), abs=1e-5)
    for limit in reasons.limits:
        expected = float(limits.softmax(1)[0, limit.limit - 1])
        assert limit.probability == pytest.approx(expected, abs=1e-5)
    assert sum(limit.probability for limit in reasons.limits) == pytest.approx(1)


def test_a_network_without_limits_explains_none(tmp_path: Path) -> None:
    bundle = load_bundle(make_bundle(tmp_path / "free", limits=False))
    policy = DecimaPolicies().load(bundle)
    workload = load_workload(TINY_SETTINGS)
    for explanation in policy.explain(TINY_SETTINGS, 0, workload, 3):
        assert explanation.record["limits"] == []
        assert explanation.record["chosen"]["limit"] == 8
        assert [options.heading for options in explanation.options] == ["stage"]


def test_moments_are_spread_over_the_episode() -> None:
    assert spread(range(100), 4) == {12, 37, 62, 87}
    assert spread([3, 5, 8], 1) == {5}
    assert spread([3, 5, 8], 9) == {3, 5, 8}
    assert spread([], 2) == set()
