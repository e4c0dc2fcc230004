"""The rule: restarts for less memory, OOMs, backlogs, and plans outside of their bounds."""

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.state import (
    CPU,
    MEMORY,
    P99_S,
    PLAN_COLUMNS,
    REPLICAS,
    ROW_COLUMNS,
    S_OOMS,
    SLO,
)
from loadmaster.models.aware.choice import nothing_known
from loadmaster.models.aware.estimates import W
from loadmaster.models.aware.rule import carry_out
from tests.envs.pod_scaling.episodes import last_step, setting
from tests.models.aware.parts import choose, decisions, model, policy_of
from tests.models.aware.test_plan_choice import RULE

ENOUGH = 20.0  # reports, before memory is made smaller
HUNGRY = Application("hungry", cpu_s=0.05, io_s=0.02, memory_mib=200, request_mib=40, slo_s=1.0)


def test_smaller_memory_comes_with_one_more_replica_after_enough_reports() -> None:
    (app,) = load_applications("imageResize+S3Write", None)
    settings, setup = setting(app, steps=20, workload="diurnal-like", initial_memory_mib=2000)
    policy, known = policy_of(size=0), nothing_known(4)
    runner = EpisodeRunner(settings, setup, 1)
    state, smaller, surged = runner.episode.state, 0, False
    for _, decision in policy.steps(runner, known):
        before, plan = state.plan.copy(), decision.plan
        base = before.copy()
        base[REPLICAS] -= surged
        alone, reports = np.zeros(PLAN_COLUMNS), known.estimates[W]
        surged = bool(plan[MEMORY] < before[MEMORY])
        if surged:
            smaller += 1
            assert reports >= ENOUGH
            choose(setup.constants, decision.app, decision.forecast, RULE, base,
                   np.zeros(ROW_COLUMNS), alone)  # fmt: skip
            assert plan[REPLICAS] == alone[REPLICAS] + 1
            assert plan[CPU] >= before[CPU]
        elif reports < ENOUGH:
            assert plan[MEMORY] >= before[MEMORY]
        carry_out(setup.constants, state, plan)
    assert smaller >= 1


def test_memory_grows_after_an_oom_and_then_suffices() -> None:
    settings, setup = setting(HUNGRY, steps=15, initial_memory_mib=300, initial_replicas=2)
    runner, policy = EpisodeRunner(settings, setup, 2), policy_of(size=0)
    state, killed = runner.episode.state, 0
    for _, decision in policy.steps(runner, nothing_known(4)):
        if last_step(state)[S_OOMS] > 0:
            killed += 1
            most = min(1.5 * state.plan[MEMORY], setup.constants.high[MEMORY])
            assert decision.plan[MEMORY] >= (1 - 1e-12) * most
        carry_out(setup.constants, state, decision.plan)
    assert killed >= 1
    assert last_step(state)[S_OOMS] == 0


def test_after_a_p99_far_beyond_the_slo_pods_have_memory_for_all_workers() -> None:
    settings, setup = setting(
        HUNGRY, steps=12, initial_memory_mib=400, initial_replicas=1, initial_cpu_m=300
    )
    runner, policy = EpisodeRunner(settings, setup, 2), policy_of(size=0)
    state, late = runner.episode.state, 0
    for _, decision in policy.steps(runner, nothing_known(4)):
        row = last_step(state)
        if row[P99_S] > 4 * row[SLO]:
            late += 1
            full = model(setup.constants, decision.app, decision.forecast, decision.plan)[5]
            least = max(state.plan[MEMORY], min(full, setup.constants.high[MEMORY]))
            assert decision.plan[MEMORY] >= least * 0.95  # within the tolerance of a resize
        carry_out(setup.constants, state, decision.plan)
    assert late >= 1


@pytest.mark.parametrize("outside", [{"max_replicas": 3}, {"max_cpu_m": 400}])
def test_a_plan_outside_of_its_bounds_is_moved_into_them(outside: dict[str, int]) -> None:
    """As in the service, whose bounds may change at any time."""
    settings, setup = setting(HUNGRY, steps=10, initial_replicas=8, initial_cpu_m=1500)
    state = EpisodeRunner(settings, setup, 2).episode.state
    _, narrow = setting(HUNGRY, **outside)
    decision = policy_of(size=0).choose(narrow.constants, state, nothing_known(4))
    assert (decision.plan <= narrow.constants.high).all()


def test_limits_within_the_tolerance_stay_exactly() -> None:
    """The service carries a plan out as it is: small changes would resize pods every minute."""
    (app,) = load_applications("imageResize+S3Write", None)
    settings, setup = setting(app, steps=20, workload="diurnal-like")
    same = 0
    for decision, before in decisions(policy_of(size=0), settings, setup, 4):
        for column in (CPU, MEMORY):
            change = abs(decision.plan[column] / before[column] - 1)
            assert change == 0 or change > setup.constants.tolerance
            same += change == 0
    assert same >= 5
