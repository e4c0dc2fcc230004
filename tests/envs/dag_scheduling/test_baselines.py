"""Rules on hand-made observations; the exact optimum, by hand and by enumeration."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.baselines.rules import decide
from loadmaster.envs.dag_scheduling.calibration import Conditions, tuned_baseline_for
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.jobs import equal_tasks
from loadmaster.envs.dag_scheduling.rollout import episode_result, initial_state, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling.cluster import TOY, simulate, workload_of

TOTAL = 10
IDLE = 6  # the row that idles


def cluster(free: int, jobs: int) -> obs.Observation:
    """Observe `jobs` jobs of 100 s, each with two schedulable stages of 8 tasks of 1 s."""
    view = obs.blank_observation(IDLE, 3, 6)
    view.cluster[[obs.JOBS, obs.STAGES]] = jobs, 2 * jobs
    view.cluster[[obs.FREE_EXECUTORS, obs.TOTAL_EXECUTORS]] = free, TOTAL
    view.schedulable[: 2 * jobs] = 1
    view.schedulable[IDLE] = 1
    view.stage_job[: 2 * jobs] = np.repeat(np.arange(jobs), 2)
    rows = view.stages[: 2 * jobs]
    rows[:, [obs.UNASSIGNED, obs.UNSTARTED, obs.FITTING]] = 8, 8, free
    rows[:, [obs.MEAN_S, obs.CRITICAL_S, obs.LONGEST_AHEAD_S, obs.RUNNABLE]] = 1
    rows[:, obs.UNLOCKED] = np.arange(1, 2 * jobs + 1)
    view.jobs[:jobs, obs.MIN_LIMIT] = 1
    view.jobs[:jobs, [obs.WORK_S, obs.WORK_LEFT_S]] = 100
    view.jobs[:jobs, obs.UNPLACED] = 16
    return view


def hold(view: obs.Observation, job: int, executors: int, source: bool = False) -> None:
    free = int(view.cluster[obs.FREE_EXECUTORS])
    view.jobs[job, obs.EXECUTORS] = executors
    view.jobs[job, obs.IS_SOURCE] = source
    view.jobs[job, obs.MIN_LIMIT] = executors + 1 - (free if source else 0)


def choose(name: str, view: obs.Observation, **parameters: float) -> tuple[int, int]:
    rule = BASELINES[name]
    changed = replace(rule, parameters={**rule.parameters, **parameters})
    return decide(changed.encoded, view, 7, 0)


@pytest.mark.parametrize(("name", "share"), [("fifo", 10), ("fair", 4), ("weighted-fair", 4)])
def test_first_job_gets_its_share_rounded_up(name: str, share: int) -> None:
    assert choose(name, cluster(free=10, jobs=3)) == (0, share)


def test_fair_serves_jobs_below_their_share() -> None:
    view = cluster(free=10, jobs=3)
    view.jobs[2, obs.UNPLACED] = 0  # without unassigned tasks it does not count
    assert choose("fair", view) == (0, 5)
    view = cluster(free=5, jobs=2)
    hold(view, 0, 5)
    assert choose("fair", view) == (2, 5)
    hold(view, 1, 5)
    assert choose("fair", view)[0] == IDLE
    view = cluster(free=3, jobs=2)
    hold(view, 1, 8, source=True)  # at their job, executors stay beyond its share
    assert choose("fair", view) == (2, 8)


@pytest.mark.parametrize("name", ["weighted-fair", "graphene"])
def test_release_moves_executors_beyond_the_share(name: str) -> None:
    view = cluster(free=3, jobs=2)
    hold(view, 1, 6, source=True)  # share 5: 3 are elsewhere, so 2 of the free ones stay
    assert choose(name, view, release=1.0) == (2, 5)
    hold(view, 1, 9, source=True)  # 6 elsewhere: none stays, the other job takes all
    assert choose(name, view, release=1.0) == (0, 3)
    hold(view, 0, 5)  # no job is below its share: they stay
    assert choose(name, view, release=1.0) == (2, 9)


def test_fair_prefers_runnable_stages() -> None:
    view = cluster(free=10, jobs=1)
    view.stages[0, [obs.RUNNABLE, obs.UNLOCKED]] = 0
    assert choose("fair", view)[0] == 1
    view.schedulable[1] = 0
    assert choose("fair", view)[0] == 0


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 5), (1.0, 2), (-1.0, 9)])
def test_weighted_shares_follow_work_to_the_alpha(alpha: float, expected: int) -> None:
    view = cluster(free=10, jobs=2)
    view.jobs[:2, obs.WORK_S] = 20, 100  # alpha 1: 10 * 20 / 120 -> 2; alpha -1: 10 * 5 / 6 -> 9
    assert choose("weighted-fair", view, alpha=alpha) == (0, expected)


def test_sjf_takes_the_critical_path_of_the_shortest_job() -> None:
    view = cluster(free=4, jobs=3)
    view.jobs[:3, obs.WORK_S] = 50, 20, 70
    view.stages[3, obs.CRITICAL_S] = 9
    assert choose("sjf-cp", view) == (3, TOTAL)


def test_tetris_prefers_better_packing_and_shorter_jobs() -> None:
    view = cluster(free=6, jobs=2)
    view.stages[1, obs.UNASSIGNED] = 2  # cannot use six
    view.jobs[:2, obs.WORK_LEFT_S] = 100, 30
    assert choose("tetris", view)[0] == 2
    view.stages[3, obs.MEMORY] = 0.5  # a larger demand packs better
    assert choose("tetris", view)[0] == 3


def test_graphene_takes_troublesome_stages_first() -> None:
    view = cluster(free=4, jobs=1)
    view.stages[1, obs.LONGEST_AHEAD_S] = 5
    assert choose("graphene", view)[0] == 1
    view.stages[0, [obs.LONGEST_AHEAD_S, obs.MEMORY]] = 5, 0.5  # both are; this packs better
    assert choose("graphene", view)[0] == 0


def test_least_work_left_is_served_up_to_its_cap() -> None:
    view = cluster(free=10, jobs=2)
    view.jobs[:2, obs.WORK_LEFT_S] = 100, 64
    view.stages[3, obs.CRITICAL_S] = 9
    caps = {"scale": 0.1, "alpha": 0.5, "share": 1.0, "stay": 0.0, "path": 0.0, "spill": 0.0}
    # 0.1 * 64^0.5 * (10 / 2) = 4, at the stage with the longer path; the other job has 5.
    assert choose("srpt-caps", view, **caps) == (3, 4)
    hold(view, 1, 4)
    assert choose("srpt-caps", view, **caps) == (0, 5)
    hold(view, 0, 5)
    assert choose("srpt-caps", view, **caps)[0] == IDLE
    assert choose("srpt-caps", view, **{**caps, "spill": 1.0}) == (3, 14)
    view.schedulable[IDLE] = 0  # idling is not allowed: beyond the cap, as with spill
    assert choose("srpt-caps", view, **caps) == (3, 14)


def test_free_executors_stay_with_their_job_unless_another_has_much_less_work() -> None:
    view = cluster(free=4, jobs=2)
    hold(view, 0, 4, source=True)
    caps = {"scale": 10.0, "alpha": 0.0, "share": 0.0, "stay": 1.0, "path": 0.0}
    view.jobs[:2, obs.WORK_LEFT_S] = 100, 50  # log 2 is less than 1
    assert choose("srpt-caps", view, **caps) == (0, 4)
    view.jobs[:2, obs.WORK_LEFT_S] = 100, 20  # log 5 is more
    assert choose("srpt-caps", view, **caps) == (2, 4)
    hold(view, 0, 6, source=True)  # two of them are elsewhere: a cap of 3 keeps one
    assert choose("srpt-caps", view, **{**caps, "stay": 8.0, "scale": 3.0}) == (0, 3)


def test_long_paths_count_between_jobs() -> None:
    view = cluster(free=4, jobs=2)
    view.jobs[:2, obs.WORK_LEFT_S] = 100, 50
    view.stages[1, obs.CRITICAL_S] = 20.0
    assert choose("srpt-caps", view, stay=0.0, path=0.0)[0] == 2
    assert choose("srpt-caps", view, stay=0.0, path=0.5)[0] == 1


def test_hesrpt_shares_are_those_of_the_paper() -> None:
    view = cluster(free=10, jobs=3)
    view.jobs[:3, obs.WORK_LEFT_S] = 300, 100, 200
    # p = 0.5: the i-th of three has (i/3)^2 - ((i-1)/3)^2 = 1/9, 3/9, 5/9 of 10 executors.
    assert choose("hesrpt", view, speedup=0.5) == (2, 6)
    view.jobs[:3, obs.WORK_LEFT_S] = 100, 100, 100  # of equals, the first has the largest share
    assert choose("hesrpt", view, speedup=0.5) == (0, 6)
    hold(view, 0, 6)
    assert choose("hesrpt", view, speedup=0.5) == (2, 4)


def test_carbyne_yields_what_a_job_does_not_need() -> None:
    view = cluster(free=10, jobs=2)
    view.jobs[:2, obs.WORK_LEFT_S] = 100, 12
    view.stages[2, obs.CRITICAL_S] = 4.0  # 3 executors end its work with its path
    assert choose("carbyne", view, altruism=1.0) == (2, 3)
    assert choose("carbyne", view, altruism=2.0) == (2, 5)  # no more than the fair share
    hold(view, 1, 3)
    assert choose("carbyne", view, altruism=1.0) == (0, 5)
    hold(view, 0, 5)
    assert choose("carbyne", view, altruism=1.0) == (2, 13)  # the rest to the least work left


def test_random_is_uniform_over_legal_stages_and_limits() -> None:
    view = cluster(free=4, jobs=2)
    view.schedulable[1] = 0
    hold(view, 1, 3)
    draws = [decide(BASELINES["random"].encoded, view, 5, count) for count in range(6000)]
    rows = np.bincount([row for row, _ in draws], minlength=IDLE + 1)
    assert rows[1] == rows[4] == rows[IDLE] == 0
    assert np.abs(rows[[0, 2, 3]] / 6000 - 1 / 3).max() < 0.03
    limits = np.bincount([limit for row, limit in draws if row == 2], minlength=TOTAL + 1)
    assert limits[:4].sum() == 0
    assert limits[4:].min() > 0.7 * limits[4:].mean()


@pytest.mark.parametrize(("better", "worse"), [("fair", "fifo"), ("srpt-caps", "fair")])
def test_better_rules_have_a_lower_mean_jct(better: str, worse: str) -> None:
    assert simulate(better, 3, jobs=8).mean_jct_s < simulate(worse, 3, jobs=8).mean_jct_s


@pytest.mark.parametrize("name", ["srpt-caps", "hesrpt"])
def test_rules_tuned_for_other_jobs_leave_no_executor_idle(name: str) -> None:
    def spill(workload: str) -> float:
        where = Conditions(workload, arrivals="poisson", load=0.5, jobs=0)
        return tuned_baseline_for(name, where).parameters["spill"]

    assert spill("untuned") == spill("") == 1
    assert name != "srpt-caps" or spill("tpch-like") == 0  # as tuned


def test_caps_tuned_for_other_jobs_do_not_stall_a_stream() -> None:
    """Without offers of executors left idle in a job, this stream took 30 times as long."""
    values = {"workload": "random-dags", "arrivals": "poisson", "load": 0.5, "jobs": 40}
    settings = DagSchedulingSettings.model_validate(values)
    workload = load_workload(settings)
    tuned = tuned_baseline_for("srpt-caps", Conditions("tpch-like", arrivals="poisson", load=0.5))
    assert tuned.parameters["spill"] == 0
    state = run_baseline(initial_state(settings, workload, 5), workload.bank, tuned)
    result = episode_result(state, workload, settings, "srpt-caps", 5)
    assert result.mean_jct_s < 1.2 * run_episode("weighted-fair", settings, 5).mean_jct_s


# The exact optimum.


def test_optimum_of_one_executor_is_shortest_job_first() -> None:
    # Three jobs drawn from tasks of 1 s and 4 s, one executor, 2 s to move. In any order the k-th
    # job ends after k moves and the first k tasks, so shortest first is best.
    workload = workload_of([equal_tasks(1, 1000)], [equal_tasks(1, 4000)])
    for seed in range(5):
        result = simulate("optimal", seed, workload, jobs=3, executors=1)
        expected = np.cumsum(2 + np.sort(np.where(result.template == 0, 1, 4)))
        assert sorted(result.completion_s) == expected.tolist()


def cheapest(env: DagSchedulingEnv, observation: dict[str, Any]) -> float:
    """Compute the least cost from here by trying every action on copies."""
    costs = []
    for row in np.flatnonzero(observation["schedulable"]):
        lowest, highest = 1, 1
        if row < env.settings.max_stages:  # else it idles
            lowest = int(observation["jobs"][observation["stage_job"][row], obs.MIN_LIMIT])
            highest = env.settings.total_executors
        for limit in range(lowest, highest + 1):
            branch = copy.deepcopy(env)
            after, reward, terminated, _, _ = branch.step(np.array([row, limit]))
            costs.append(-reward + (0 if terminated else cheapest(branch, after)))
    return min(costs)


@pytest.mark.parametrize("objective", ["jct", "makespan"])
def test_optimum_equals_enumeration_and_bounds_baselines(objective: str) -> None:
    workload = workload_of([equal_tasks(1, 2000), equal_tasks(2, 3000, 0)], [equal_tasks(2, 1000)])
    values: dict[str, Any] = {"executors": 2, "objective": objective}
    limits = {"max_jobs": 2, "max_stages": 4, "max_edges": 4}

    def cost(policy: str, *episode: Any, jobs: int) -> float:
        result = simulate(policy, *episode, jobs=jobs, **values)
        return result.jct_s.sum() if objective == "jct" else result.makespan_s

    for seed in range(2):
        env = DagSchedulingEnv(workload, jobs=2, **values, **limits)
        expected = cheapest(env, env.reset(seed=seed)[0])
        assert cost("optimal", seed, workload, jobs=2) == pytest.approx(expected)
    for seed in range(4):
        least = min(cost(policy, seed, TOY, jobs=3) for policy in BASELINES)
        assert cost("optimal", seed, TOY, jobs=3) <= least + 1e-9, seed


def test_recording_does_not_change_the_optimum() -> None:
    plain, recorded = (
        simulate("optimal", 1, TOY, record, jobs=2, executors=2) for record in (False, True)
    )
    assert recorded.trace is not None
    assert len(recorded.trace.start_ms) >= recorded.tasks
    assert recorded.completion_s.tolist() == plain.completion_s.tolist()


def test_large_instances_are_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        simulate("optimal", 0)
