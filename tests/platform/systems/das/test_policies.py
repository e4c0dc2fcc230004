"""Bundles of DAS in evaluation: validation's episodes, printed explanations, the nearest bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import PHASES
from loadmaster.envs.gpu_scheduling.env import action_spaces
from loadmaster.envs.gpu_scheduling.observation import observation_space
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.registry import find_system
from loadmaster.models.das.module import DasModule
from loadmaster.models.manifest import read_manifest
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.systems.das.evaluation import LearnedDas
from loadmaster.platform.systems.das.rollout import DasEngine
from loadmaster.platform.systems.policies import Policies
from tests.bundles import make_bundle

NETWORK = {"width": 16, "heads": 2, "layers": 1}
ENVIRONMENT = {"jobs": 60, "max_queue": 9, "history": 4}
SETTINGS = GpuSchedulingSettings(**ENVIRONMENT)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "das", system="das", environment=ENVIRONMENT, **NETWORK)


def evaluation_policy(bundle: Path) -> LearnedDas:
    policy = find_policy(str(bundle)).policy
    assert isinstance(policy, LearnedDas)
    return policy


@pytest.mark.slow
def test_evaluation_runs_the_episodes_of_validation(bundle: Path) -> None:
    policy, cluster, seeds = evaluation_policy(bundle), build_cluster(SETTINGS), [0, 5]
    module = DasModule(
        observation_space=observation_space(9, cluster, 4),
        action_space=spaces.Dict({**action_spaces(SETTINGS, cluster)}),
        model_config={"network": NETWORK},
    )
    module.network.load_state_dict(policy.policy.network.state_dict())
    validated = [score.cost for score in DasEngine(SETTINGS).judge(module, seeds)]
    # The sizes of the observation come from the bundle, not from the evaluation's settings.
    settings, workload = GpuSchedulingSettings(jobs=60), load_workload(SETTINGS)
    results = [policy.run(settings, seed, workload) for seed in seeds]
    assert [result.mean_jct_s for result in results] == pytest.approx(validated, rel=1e-6)
    assert validated[0] != validated[1]
    assert all(np.isfinite(result.finish_s).all() for result in results)


@pytest.mark.slow
def test_printed_explanations_match_the_schedule(bundle: Path) -> None:
    policy, workload = evaluation_policy(bundle), load_workload(SETTINGS)
    explanations = policy.explain(SETTINGS, 3, workload, 3)
    recorded = policy.run(SETTINGS, 3, workload, record=True)
    trace, jobs = recorded.trace, recorded.jobs
    assert trace is not None
    assert len(explanations) == 3
    assert sorted(one.time_s for one in explanations) == [one.time_s for one in explanations]
    for one in explanations:
        chosen = one.record["chosen"]
        job = int(np.flatnonzero(jobs.job_id == chosen["job"])[0])
        assert recorded.start_s[job] == pytest.approx(one.time_s)
        assert chosen["machine"] in trace.machine[trace.job == job]
        assert chosen["job"] == one.record["jobs"][0]["job"]
        for heading, options in one.explanation.choices.items():
            assert [option.chosen for option in options] == [True] + [False] * (len(options) - 1)
            assert all(option.details.keys() == options[0].details.keys() for option in options)
            shown = sum(option.probability or 0.0 for option in options)
            assert 0 < shown <= 1 + 1e-9
            assert one.explanation.others[heading] or shown == pytest.approx(1)


@pytest.mark.slow
def test_explanations_cover_all_phases(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "max_queue": 40, "preempt": True}
    folder = make_bundle(tmp_path / "bold", system="das", environment=environment, **NETWORK)
    busy = SETTINGS.model_copy(update={"load": 4.0})
    explanations = evaluation_policy(folder).explain(busy, 3, load_workload(SETTINGS), 12)
    assert {one.record["moment"] for one in explanations} == set(PHASES.values())
    for one in explanations:
        again = "after reconsidering" in one.explanation.summary
        assert again == (one.record["moment"] == "placing again")


def test_nearest_bundle_is_chosen_by_durations_then_size(tmp_path: Path, bundle: Path) -> None:
    large, known = (
        make_bundle(tmp_path / name, system="das", environment={name: value}, **NETWORK)
        for name, value in (("cluster", "large"), ("durations", "known"))
    )

    def nearest(**settings: str) -> Path:
        wanted = GpuSchedulingSettings.model_validate(settings)
        folders = (bundle, large, known)
        return min(
            folders,
            key=lambda each: Policies(find_system("das")).distance(read_manifest(each), wanted),
        )

    assert nearest() == bundle
    assert nearest(cluster="large") == large
    assert nearest(durations="known", cluster="large") == known


def test_manifest_gives_training_settings(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    assert Policies(find_system("das")).settings(manifest) == SETTINGS
    assert (
        Policies(find_system("das"))
        .trained_on(manifest)
        .startswith("pai-like, 60 jobs at load 1.2, small cluster")
    )
