"""DasPolicy in episodes: compiled against torch, and explanations of its decisions."""

import json
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.decision_state import PHASES, RECONSIDERING
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import FINISHED_S
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das.explain import BY_PRIORITY, FIRST_MACHINE, OPTIONS, explain
from loadmaster.models.das.policy import DasPolicy
from tests.models.das.builders import NETWORK, module_of

pytestmark = pytest.mark.slow

SETTINGS = GpuSchedulingSettings(jobs=60, max_queue=9, history=4)
WORKLOAD = load_workload(SETTINGS)


def policy_of(exact_up_to: int = 256, **environment: Any) -> DasPolicy:
    network = module_of(1.0, **NETWORK, exact_up_to=exact_up_to).network
    return DasPolicy(network, SETTINGS.model_copy(update=environment))


@pytest.mark.parametrize("preempt", [False, True])
def test_compiled_episodes_equal_torch(preempt: bool) -> None:
    policy, preemptions = policy_of(preempt=preempt), 0
    busy = SETTINGS.model_copy(update={"load": 4.0})
    for seed in (1, 2):
        *_, last = policy.iterate(busy, seed, WORKLOAD)
        plain, recorded = (policy.run(busy, seed, WORKLOAD, record=each) for each in (False, True))
        np.testing.assert_array_equal(plain.finish_s, last.state.progress[:, FINISHED_S])
        np.testing.assert_array_equal(plain.finish_s, recorded.finish_s)
        assert plain.trace is None
        assert set(recorded.trace.job) == set(range(60))
        preemptions += plain.preemptions
    assert (preemptions > 0) == preempt


def test_clusters_with_cells_run_in_torch() -> None:
    """The same schedule: each machine has a cell of its own."""
    exact, by_cells = (
        policy.run(SETTINGS, 1, WORKLOAD) for policy in (policy_of(), policy_of(exact_up_to=4))
    )
    np.testing.assert_allclose(by_cells.finish_s, exact.finish_s)


def test_queue_history_and_preemption_are_those_of_training() -> None:
    forced = SETTINGS.model_copy(update={"preempt": True})
    assert policy_of(preempt=True, max_queue=40).run(SETTINGS, 3, WORKLOAD).preemptions > 0
    assert policy_of().run(forced, 3, WORKLOAD).preemptions == 0
    other = SETTINGS.model_copy(update={"max_queue": 64, "history": 8})
    one, same = (policy_of().run(settings, 3, WORKLOAD) for settings in (SETTINGS, other))
    np.testing.assert_array_equal(one.finish_s, same.finish_s)


def test_reconsidering_explains_each_stop() -> None:
    policy, stops, phases = policy_of(max_queue=40, preempt=True), 0, set()
    result = policy.run(SETTINGS, 3, WORKLOAD, record=True)
    trace, job_id = result.trace, result.jobs.job_id
    for number, context in enumerate(policy.iterate(SETTINGS, 3, WORKLOAD)):
        phases.add(context.phase)
        if number > 120 or context.phase != RECONSIDERING:
            continue
        explained = explain(context, number)
        record, options = explained.record, explained.explanation.choices[BY_PRIORITY]
        ids = job_id[context.shown].tolist()
        waiting = [one for one, runs in zip(ids, context.is_running, strict=True) if not runs]
        priority = dict(zip(ids, context.priority.tolist(), strict=True))
        stopped = {entry["job"]: entry["for"] for entry in record["stopped"]}
        left = (trace.end_s == explained.time_s) & (result.finish_s[trace.job] != explained.time_s)
        assert set(stopped) == set(job_id[trace.job[left]].tolist())
        assert set(stopped.values()) <= set(waiting)
        assert all(priority[one] < priority[other] for one, other in stopped.items())
        assert context.has_choice or not stopped
        summary = explained.explanation.summary
        assert summary.count(" is stopped for ") == min(len(stopped), OPTIONS)
        stops += len(stopped)
        assert record["jobs_waiting"] == len(waiting)
        assert record["jobs_running"] == len(ids) - len(waiting)
        by_priority = sorted(ids, key=lambda one: -priority[one])[:OPTIONS]
        assert [entry["job"] for entry in record["jobs"]] == by_priority
        for entry, option in zip(record["jobs"], options, strict=True):
            assert entry["running"] == (entry["job"] not in waiting)
            assert option.details["now"] == ("runs" if entry["running"] else "waits")
        assert json.loads(json.dumps(record)) == record
    assert stops > 0
    assert phases == set(PHASES)


def test_strict_queue_explains_the_blocking_job() -> None:
    strict = SETTINGS.model_copy(update={"backfill": False, "load": 3.0})
    seen = {True: 0, False: 0}
    for number, context in enumerate(policy_of(backfill=False).iterate(strict, 3, WORKLOAD)):
        first = int(context.priority.argmax())
        fits = first in context.startable
        seen[fits] += 1
        if seen[fits] > 2:
            continue
        explained = explain(context, number)
        assert explained.record["chosen"]["job"] == context.job_id(first)
        assert (explained.record["chosen"]["machine"] is not None) == fits
        assert (FIRST_MACHINE in explained.explanation.choices) == fits
        assert ("blocks" in explained.explanation.summary) != fits
    assert min(seen.values()) > 0
