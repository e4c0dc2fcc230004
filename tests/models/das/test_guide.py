"""DAS as corrections of a rule: untrained it is the rule, and its weights change the rule."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.gpu_scheduling import baselines as rules
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling.episode import run_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import FINISHED_S
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.explain import BY_PRIORITY, explain
from loadmaster.models.das.network import TILTED, DasNetwork
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.das.rule_tilt import SEARCHED, tilt_rule
from loadmaster.models.das.settings import DasSettings
from tests.models.das.builders import NETWORK, heads_of

pytestmark = pytest.mark.slow

PREDICTED, SHOCKWAVE = "predicted-speed-price", "shockwave-speed-price"
SETTINGS: dict[str, dict[str, Any]] = {
    "small": {},
    "light": {"load": 0.4},
    "heavy": {"load": 1.5, "jobs": 250},
    "strict": {"backfill": False, "jobs": 100},
    "medium": {"cluster": "medium"},
    "large": {"cluster": "large", "jobs": 300},
    "batch": {"arrivals": "batch", "jobs": 100},
    "equal": {"machines": [{"count": 4, "gpus": 4, "gpu": "V100", "cpus": 96}], "jobs": 100},
}


def network_of(std: float = 0.0, **settings: Any) -> DasNetwork:
    """Untrained, or with random linear terms and heads."""
    torch.manual_seed(5)
    values = {**NETWORK, "opening": "rule", "communicate": False, "process": False, **settings}
    network = DasNetwork(DasSettings.model_validate(values))
    tables = [network.ordering.straight, network.placement.straight, *heads_of(network)]
    for table in tables if std else ():
        torch.nn.init.normal_(table.weight, std=std)
    return network


def policy_of(
    network: DasNetwork, guide: str = PREDICTED, max_queue: int = 64, history: int = 4
) -> DasPolicy:
    values = {"guide": guide, "max_queue": max_queue, "history": history}
    return DasPolicy(network, GpuSchedulingSettings.model_validate(values))


@pytest.mark.parametrize("guide", [PREDICTED, SHOCKWAVE])
@pytest.mark.parametrize("name", SETTINGS)
def test_untrained_it_schedules_as_the_rule(name: str, guide: str) -> None:
    settings = GpuSchedulingSettings.model_validate(SETTINGS[name])
    workload, policy = load_workload(settings), policy_of(network_of(), guide)
    for seed in (1, 2):
        expected = run_episode(guide, settings, seed, workload, record=True)
        found = policy.run(settings, seed, workload, record=True)
        np.testing.assert_array_equal(found.finish_s, expected.finish_s)
        np.testing.assert_array_equal(found.fee, expected.fee)
        assert found.preemptions == expected.preemptions > 0
        assert found.trace is not None
        assert expected.trace is not None
        np.testing.assert_array_equal(found.trace.machine, expected.trace.machine)


@pytest.mark.parametrize(
    ("guide_speeds", "rule"),
    [
        ("nominal", PREDICTED),
        ("measured", "predicted-measured-speeds"),
        ("process", "predicted-process-speeds"),
        ("oracle", "predicted-true-speeds"),
    ],
)
def test_guide_expects_hidden_speeds_as_the_rule_does(guide_speeds: str, rule: str) -> None:
    values = {"speeds": "hidden", "guide_speeds": guide_speeds, "jobs": 100, "load": 1.0}
    settings = GpuSchedulingSettings.model_validate(values)
    workload, policy = load_workload(settings), policy_of(network_of())
    expected = run_episode(rule, settings, 1, workload)
    np.testing.assert_array_equal(policy.run(settings, 1, workload).finish_s, expected.finish_s)


def test_guide_without_rules_of_measured_speeds_expects_them_too() -> None:
    values = {"speeds": "hidden", "jobs": 100, "load": 1.0}
    nominal, process = (
        GpuSchedulingSettings.model_validate({**values, "guide_speeds": one})
        for one in ("nominal", "process")
    )
    workload, policy = load_workload(nominal), policy_of(network_of(), SHOCKWAVE)
    expected = run_episode(SHOCKWAVE, nominal, 1, workload)
    found, other = (policy.run(one, 1, workload) for one in (nominal, process))
    np.testing.assert_array_equal(found.finish_s, expected.finish_s)
    assert (other.finish_s != expected.finish_s).any()


def test_rows_do_not_limit_the_rule() -> None:
    """Jobs beyond the rows of the observation are ordered, stopped and moved by the rule."""
    settings = GpuSchedulingSettings.model_validate(SETTINGS["heavy"])
    workload = load_workload(settings)
    expected = run_episode(PREDICTED, settings, 1, workload)
    found = policy_of(network_of(), max_queue=2).run(settings, 1, workload)
    np.testing.assert_array_equal(found.finish_s, expected.finish_s)
    changed = policy_of(network_of(1.0), max_queue=2).run(settings, 1, workload)
    assert (changed.finish_s != expected.finish_s).any()


@pytest.mark.parametrize("variant", [{}, {"communicate": True}, {"process": True}])
def test_compiled_episodes_equal_torch(variant: dict[str, bool]) -> None:
    settings = GpuSchedulingSettings(jobs=40, load=1.5)
    workload, policy = load_workload(settings), policy_of(network_of(0.3, **variant), max_queue=20)
    *_, last = policy.iterate(settings, 3, workload)
    found = policy.run(settings, 3, workload)
    np.testing.assert_array_equal(found.finish_s, last.state.progress[:, FINISHED_S])
    assert not np.isnan(found.finish_s).any()
    assert (found.finish_s != run_episode(PREDICTED, settings, 3, workload).finish_s).any()


def test_untrained_torch_schedules_as_the_rule() -> None:
    settings = GpuSchedulingSettings(jobs=40, load=1.5)
    workload = load_workload(settings)
    expected = run_episode(PREDICTED, settings, 3, workload)
    *_, last = policy_of(network_of()).iterate(settings, 3, workload)
    np.testing.assert_array_equal(expected.finish_s, last.state.progress[:, FINISHED_S])


def test_corrections_cannot_stop_all_progress() -> None:
    """Weights that put running jobs last would stop each of them at every replanning."""
    settings, network = GpuSchedulingSettings(jobs=60, load=1.5), network_of()
    workload = load_workload(settings)
    with torch.no_grad():
        network.ordering.straight.weight[0, features.RUNNING] = -20
    found = policy_of(network).run(settings, 1, workload)
    expected = run_episode(PREDICTED, settings, 1, workload)
    assert found.preemptions > expected.preemptions
    assert found.mean_jct_s < 4 * expected.mean_jct_s


def test_weights_change_the_parameters_of_the_rule() -> None:
    network, values = network_of(), np.zeros(len(rules.PARAMETERS))
    values[[rules.SIZE, rules.AGE, rules.MIGRATE, rules.STICK]] = 0.5, 0.4, 1.5, 0.9
    assert network.tilt_rule is not None
    before = values.copy()
    tilt_rule(network, values)
    np.testing.assert_array_equal(values, before)
    network.tilt_rule += 0.2
    tilt_rule(network, values)
    assert values[rules.SIZE] == pytest.approx(0.7)
    assert values[rules.AGE] == pytest.approx(0.4 * np.exp(0.4))
    assert values[rules.MIGRATE] == pytest.approx(1 + 0.5 * np.exp(0.4))
    assert values[rules.SWAP] == 0
    assert values[rules.STICK] == 0.95
    assert len(SEARCHED) == TILTED
    settings = GpuSchedulingSettings(jobs=60)
    workload = load_workload(settings)
    tilted = policy_of(network).run(settings, 1, workload)
    assert (tilted.finish_s != policy_of(network_of()).run(settings, 1, workload).finish_s).any()


def test_other_openings_have_no_such_weights() -> None:
    names = {name for name in DasNetwork(DasSettings()).state_dict() if "tilt" in name}
    assert not names
    assert "tilt_rule" in network_of().state_dict()


def test_explanations_tell_what_the_rule_does_with_the_corrections() -> None:
    settings = GpuSchedulingSettings(jobs=60, load=1.5)
    workload, policy = load_workload(settings), policy_of(network_of(0.3), max_queue=40)
    result = policy.run(settings, 3, workload, record=True)
    trace, job_id, started, stopped = result.trace, result.jobs.job_id, 0, 0
    assert trace is not None
    for number, context in enumerate(policy.iterate(settings, 3, workload)):
        if number > 60:
            break
        explained = explain(context, number)
        record = explained.record
        ends = (trace.end_s == explained.time_s) & (result.finish_s[trace.job] != trace.end_s)
        begins = trace.start_s == explained.time_s
        assert set(record["started"]) == set(job_id[trace.job[begins]].tolist())
        assert set(record["stopped"]) <= set(job_id[trace.job[ends]].tolist())
        order = np.argsort(-context.priority, kind="stable")[: len(record["jobs"])]
        assert [entry["job"] for entry in record["jobs"]] == job_id[context.shown[order]].tolist()
        assert len(explained.explanation.choices[BY_PRIORITY]) == len(record["jobs"])
        assert json.loads(json.dumps(record)) == record
        started, stopped = started + len(record["started"]), stopped + len(record["stopped"])
    assert min(started, stopped) > 0
