"""DAS's bundles at work: the episodes that validation judged, and the reasons of decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.env import action_spaces
from loadmaster.envs.gpu_scheduling.observation import observation_space
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.bundle import load_bundle
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.manifest import read_manifest
from loadmaster.platform.policies.das import POLICIES
from loadmaster.platform.policies.das_policy import DasPolicy
from loadmaster.platform.policies.find import find_policy
from loadmaster.platform.rollouts.das import das_engine
from tests.bundles import make_bundle

NETWORK = {"width": 16, "heads": 2, "layers": 1}
ENVIRONMENT = {"jobs": 60, "max_queue": 9, "history": 4}
SETTINGS = GpuSchedulingSettings(**ENVIRONMENT)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "das", system="das", environment=ENVIRONMENT, **NETWORK)


@pytest.fixture
def policy(bundle: Path) -> DasPolicy:
    found = find_policy(str(bundle)).policy
    assert isinstance(found, DasPolicy)
    with torch.no_grad():  # an untrained one has hardly any opinion
        for head in (found.network.ordering.rank, found.network.placement.prior):
            head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return found


def test_it_runs_the_episodes_that_validation_judges(policy: DasPolicy) -> None:
    cluster = build_cluster(SETTINGS)
    module = DasModule(
        observation_space=observation_space(9, cluster, 4),
        action_space=spaces.Dict({**action_spaces(SETTINGS, cluster)}),
        model_config={"network": NETWORK},
    )
    module.network.load_state_dict(policy.network.state_dict())
    seeds = [0, 5]
    judged = [verdict.cost for verdict in das_engine(SETTINGS).judge(module, seeds)]
    # Whoever evaluates need not say how many jobs the policy looks at.
    asked, workload = GpuSchedulingSettings(jobs=60), load_workload(SETTINGS)
    results = [policy.run(asked, seed, workload) for seed in seeds]
    assert [result.mean_jct_s for result in results] == pytest.approx(judged, rel=1e-6)
    assert judged[0] != judged[1]
    assert all(np.isfinite(result.finish_s).all() for result in results)


@pytest.mark.parametrize("preempt", [False, True])
def test_the_compiled_loop_keeps_to_the_schedule_of_torch(policy: DasPolicy, preempt: bool) -> None:
    policy.habits["preempt"] = preempt
    busy, preemptions = SETTINGS.model_copy(update={"load": 4.0}), 0
    workload = load_workload(busy)
    for seed in (1, 2, 3):
        *_, last = policy.walk(busy, seed, workload)
        result = policy.run(busy, seed, workload)
        np.testing.assert_array_equal(result.finish_s, last.state.progress[:, at.FINISHED_S])
        preemptions += result.preemptions
    assert (preemptions > 0) == preempt


def test_clusters_with_cells_are_left_to_torch(policy: DasPolicy) -> None:
    """The same schedule: each machine has a cell of its own."""
    network = DasNetwork(DasSettings.model_validate(NETWORK | {"exact_up_to": 4}))
    network.load_state_dict(policy.network.state_dict())
    exact, by_cells = (
        one.run(SETTINGS, 1, load_workload(SETTINGS))
        for one in (policy, DasPolicy(network, SETTINGS))
    )
    np.testing.assert_allclose(by_cells.finish_s, exact.finish_s)


def test_a_recorded_episode_is_the_same_one(policy: DasPolicy) -> None:
    workload = load_workload(SETTINGS)
    plain = policy.run(SETTINGS, 3, workload)
    recorded = policy.run(SETTINGS, 3, workload, record=True)
    assert plain.trace is None
    assert recorded.trace is not None
    assert set(recorded.trace.job) == set(range(60))
    np.testing.assert_array_equal(plain.finish_s, recorded.finish_s)


def test_reasons_are_those_of_the_decision_made(policy: DasPolicy) -> None:
    workload = load_workload(SETTINGS)
    told = policy.explain(SETTINGS, 3, workload, 3)
    recorded = policy.run(SETTINGS, 3, workload, record=True)
    trace, jobs = recorded.trace, recorded.jobs
    assert trace is not None
    assert len(told) == 3
    assert sorted(one.time_s for one in told) == [one.time_s for one in told]
    for one in told:
        chosen = one.record["chosen"]
        job = int(np.flatnonzero(jobs.job_id == chosen["job"])[0])
        assert recorded.start_s[job] == pytest.approx(one.time_s)
        assert chosen["machine"] in trace.machine[trace.job == job]
        assert chosen["job"] == one.record["jobs"][0]["job"]
        for options in one.options:
            assert options.chosen == 0
            assert 0 < sum(options.probabilities) <= 1 + 1e-9
            assert options.others or sum(options.probabilities) == pytest.approx(1)


def test_the_nearest_bundle_is_the_one_for_such_a_cluster(tmp_path: Path, bundle: Path) -> None:
    large = make_bundle(
        tmp_path / "large", system="das", environment={"cluster": "large"}, **NETWORK
    )
    knowing = make_bundle(
        tmp_path / "knowing", system="das", environment={"durations": "known"}, **NETWORK
    )
    folders = (bundle, large, knowing)

    def nearest(**settings: str) -> Path:
        wanted = GpuSchedulingSettings.model_validate(settings)
        return min(folders, key=lambda each: POLICIES.distance(read_manifest(each), wanted))

    assert nearest() == bundle
    assert nearest(cluster="large") == large
    assert nearest(durations="known", cluster="large") == knowing


def test_a_bundle_says_what_it_was_trained_on(bundle: Path) -> None:
    manifest = load_bundle(bundle)
    assert POLICIES.settings(manifest) == SETTINGS
    assert POLICIES.trained_on(manifest).startswith("pai-like, 60 jobs at load 1.2, small cluster")
