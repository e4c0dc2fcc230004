"""DAS's bundles at work: the episodes that validation judged, and the reasons of decisions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.env import action_spaces
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.observation import observation_space
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.bundle import load_bundle
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.manifest import read_manifest
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.systems.das.explain import TOLD, explanation
from loadmaster.platform.systems.das.policies import POLICIES
from loadmaster.platform.systems.das.policy import DasPolicy
from loadmaster.platform.systems.das.rollout import das_engine
from tests.bundles import make_bundle

NETWORK = {"width": 16, "heads": 2, "layers": 1}
ENVIRONMENT = {"jobs": 60, "max_queue": 9, "history": 4}
SETTINGS = GpuSchedulingSettings(**ENVIRONMENT)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "das", system="das", environment=ENVIRONMENT, **NETWORK)


@pytest.fixture
def policy(bundle: Path) -> DasPolicy:
    return opinionated(bundle)


@pytest.fixture
def preempting(tmp_path: Path) -> DasPolicy:
    environment = {**ENVIRONMENT, "max_queue": 40, "preempt": True}
    return opinionated(
        make_bundle(tmp_path / "preempting", system="das", environment=environment, **NETWORK)
    )


def opinionated(bundle: Path) -> DasPolicy:
    """An untrained one has hardly any opinion of its own."""
    found = find_policy(str(bundle)).policy
    assert isinstance(found, DasPolicy)
    with torch.no_grad():
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


def stopped_at(result: EpisodeResult, time_s: float) -> set[int]:
    """Ids of the jobs that were taken off their machines then."""
    trace = result.trace
    assert trace is not None
    left = (trace.end_s == time_s) & (result.finish_s[trace.job] != time_s)
    return set(result.jobs.job_id[trace.job[left]].tolist())


def test_preempting_is_part_of_the_policy(preempting: DasPolicy, policy: DasPolicy) -> None:
    workload = load_workload(SETTINGS)
    assert preempting.run(SETTINGS, 3, workload).preemptions > 0
    forced = SETTINGS.model_copy(update={"preempt": True})
    assert policy.run(forced, 3, workload).preemptions == 0


def test_every_kind_of_moment_is_told_as_it_was(preempting: DasPolicy) -> None:
    workload = load_workload(SETTINGS)
    result = preempting.run(SETTINGS, 3, workload, record=True)
    assert result.trace is not None
    stops, kinds = 0, set()
    for number, moment in enumerate(preempting.walk(SETTINGS, 3, workload)):
        kinds.add(moment.kind)
        if number > 120:
            continue
        ids = result.jobs.job_id[moment.shown].tolist()
        if moment.kind != on.RECONSIDERING:
            continue
        told = explanation(moment, number)
        waiting = [one for one, runs in zip(ids, moment.runs, strict=True) if not runs]
        priority = dict(zip(ids, moment.priority.tolist(), strict=True))
        stopped = {entry["job"]: entry["for"] for entry in told.record["stopped"]}
        assert set(stopped) == stopped_at(result, told.time_s)
        assert set(stopped.values()) <= set(waiting)
        assert all(priority[one] < priority[other] for one, other in stopped.items())
        assert moment.has_choice or not stopped
        assert told.outcome.count(" is stopped for ") == min(len(stopped), TOLD)
        assert stopped or told.outcome == "nobody is stopped"
        stops += len(stopped)
        record, (options,) = told.record, told.options
        assert record["moment"] == "reconsidering"
        assert record["jobs_waiting"] == len(waiting)
        assert record["jobs_running"] == len(ids) - len(waiting)
        assert [entry["job"] for entry in record["jobs"]] == sorted(
            ids, key=lambda one: -priority[one]
        )[:TOLD]
        for entry, cells in zip(record["jobs"], options.cells, strict=True):
            assert cells[2] == ("waits" if entry["job"] in waiting else "runs")
            assert entry["running"] == (entry["job"] not in waiting)
        assert json.loads(json.dumps(record)) == record
    assert stops > 0
    assert kinds == set(on.PHASES)


def test_reasons_come_from_all_kinds_of_moments(preempting: DasPolicy) -> None:
    told = preempting.explain(SETTINGS, 3, load_workload(SETTINGS), 12)
    kinds = {one.record["moment"] for one in told}
    assert kinds == set(on.PHASES.values())
    for one in told:
        assert 0 < sum(one.options[0].probabilities) <= 1 + 1e-9
        again = "after reconsidering" in one.situation
        assert again == (one.record["moment"] == "placing again")


def test_what_blocks_a_strict_queue_is_told(tmp_path: Path) -> None:
    strict = SETTINGS.model_copy(update={"backfill": False, "load": 3.0})
    folder = make_bundle(
        tmp_path / "strict", system="das", environment={**ENVIRONMENT, "backfill": False}, **NETWORK
    )
    seen = {True: 0, False: 0}
    walk = opinionated(folder).walk(strict, 3, load_workload(SETTINGS))
    for number, moment in enumerate(walk):
        first = int(moment.priority.argmax())
        fits = first in moment.startable
        seen[fits] += 1
        if seen[fits] > 2:
            continue
        told = explanation(moment, number)
        assert told.record["chosen"]["job"] == moment.job_id(first)
        assert (told.record["chosen"]["machine"] is not None) == fits
        assert told.outcome.endswith("and blocks those behind it") != fits
    assert min(seen.values()) > 0


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
