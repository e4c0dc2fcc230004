"""Traced decisions against the schedule of the episode."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.decision_state import PLACING, PLACING_AGAIN, RECONSIDERING
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.platform.systems.das.decision_trace import thinned
from loadmaster.platform.systems.das.picture import DECISIONS, select_steps
from tests.platform.systems.das.traces import SEED, SMALL, recorded, traced_steps, untrained_policy

pytestmark = pytest.mark.slow


def test_traced_episode_equals_plain_run() -> None:
    result, found = recorded(), recorded().case
    plain = untrained_policy().run(SMALL, SEED, load_workload(SMALL))
    np.testing.assert_array_equal(result.finish_s, plain.finish_s)
    assert found is not None
    assert 0 < len(found.steps) <= found.decisions
    assert [step.number for step in found.steps] == sorted({s.number for s in found.steps})


def test_steps_match_the_schedule() -> None:
    result, run, steps = recorded(), recorded().trace, traced_steps()
    assert run is not None
    assert {step.kind for step in steps} == {PLACING, RECONSIDERING, PLACING_AGAIN}
    rows = set(zip(run.job, run.machine, run.instances, run.start_s, strict=True))
    for step in steps:
        for place in step.placed:
            assert (*place, step.time_s) in rows
            assert int(np.flatnonzero(step.jobs == place.job)[0]) in step.startable
        for job in step.stopped:
            assert step.time_s in run.end_s[run.job == job]
            assert result.finish_s[job] > step.time_s
        if step.kind == RECONSIDERING:
            assert not len(step.startable)
            assert {place.job for place in step.held} == set(step.jobs[step.running].tolist())
        else:
            assert step.placed
            assert not step.stopped
    stopped = sum(len(step.stopped) for step in steps)
    assert 0 < stopped <= result.preemptions


def test_highest_priority_goes_first_to_highest_affinity() -> None:
    for step in (step for step in traced_steps() if step.kind != RECONSIDERING):
        first = int(step.order[0])
        assert first in step.startable
        assert step.mean[first] == step.mean[step.startable].max()
        affinity = step.affinity[step.startable.tolist().index(first)]
        machines = {place.machine for place in step.placed if place.job == step.jobs[first]}
        assert int(np.nanargmax(affinity)) in machines
        assert not any(np.isnan(affinity[machine]) for machine in machines)


def test_stopped_jobs_have_lower_priority_than_a_waiting_one() -> None:
    stops = [step for step in traced_steps() if step.stopped]
    assert stops
    for step in stops:
        assert step.then
        for job in step.stopped:
            turn = step.jobs[step.order].tolist().index(job)
            assert (~step.running[step.order[:turn]]).any()


def test_thinned_steps_are_spread_over_the_episode() -> None:
    found = recorded().case
    assert found is not None
    assert thinned(found) == found.steps
    total = sum(step.numbers for step in found.steps)
    few = thinned(found, total // 4)
    assert 0 < len(few) < len(found.steps)
    assert few[-1].time_s > found.steps[len(found.steps) // 2].time_s
    together = {step.time_s for step in few}
    assert [s for s in found.steps if s.time_s in together] == list(few)
    assert thinned(found, 1) == ()


def test_picture_selects_successive_steps() -> None:
    steps = traced_steps()
    shown = select_steps(steps)
    first = steps.index(shown[0])
    assert tuple(shown) == steps[first : first + DECISIONS]
    assert any(step.stopped for step in shown)
    assert len(select_steps(steps[:2])) == 2
