"""Placement by speed and price, fragmentation, migration and predictions, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling import baselines as rules
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, PARAMETERS
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult, episode_result
from loadmaster.envs.gpu_scheduling.episode import run_baseline as run_rule
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.keys import PRIOR_LOG_RUN, predicted_left_s
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup
from loadmaster.envs.gpu_scheduling.state import SimState
from tests.envs.gpu_scheduling.instances import Row, job, jobs_of, machines

pytestmark = pytest.mark.slow

T4, V100 = machines(1, 4, "T4"), machines(1, 4, "V100")
TIRESIAS = "tiresias-consolidate"


def run(
    name: str, groups: tuple[MachineGroup, ...], *rows: Row, **parameters: float
) -> EpisodeResult:
    settings = GpuSchedulingSettings(machines=groups, stragglers=0)
    episode = Episode(build_cluster(settings), jobs_of(rows), 0)
    baseline = BASELINES[name]
    baseline = replace(baseline, parameters={**baseline.parameters, **parameters})
    state = run_rule(settings, episode, baseline, record=True)
    return episode_result(state, *episode[:2], name, 0)


def machines_of(result: EpisodeResult, number: int) -> list[int]:
    """Of a job by its place in order of arrival; in the order of its allocations."""
    assert result.trace is not None
    return result.trace.machine[result.trace.job == number].tolist()


@pytest.mark.parametrize(
    ("name", "parameters", "machine"),
    [
        ("fifo-fastest", {}, 1),
        ("fifo-cheapest", {}, 0),
        ("fifo-speed-price", {"price": 0.0}, 1),
        ("fifo-speed-price", {"price": 5.0}, 0),
    ],
)
def test_speed_and_price_choose_the_machine(
    name: str, parameters: dict[str, float], machine: int
) -> None:
    """A T4 does a dollar's work for 0.35 / 0.4, a V100 for 2.48."""
    result = run(name, (T4, V100), job(0, 100), **parameters)
    assert machines_of(result, 0) == [machine]
    assert result.finish_s[0] == pytest.approx(100 / (0.4, 1.0)[machine])


@pytest.mark.parametrize("name", ["fifo-fastest", "fifo-cheapest", "predicted-speed-price"])
def test_gang_finds_its_type_in_a_rack_of_several(name: str) -> None:
    """Racks of a real cluster may be mixed; the V100 in front holds nothing of the gang."""
    settings = GpuSchedulingSettings(machines=(V100, T4), stragglers=0)
    cluster = build_cluster(settings)
    cluster = cluster._replace(rack=np.zeros_like(cluster.rack))
    jobs = jobs_of([job(0, 100, instances=2)])
    jobs = jobs._replace(gpu_type=np.full(1, cluster.gpu_type[1]))
    episode = Episode(cluster, jobs, 0)
    state = run_rule(settings, episode, BASELINES[name], record=True)
    result = episode_result(state, *episode[:2], name, 0)
    assert machines_of(result, 0) == [1]
    assert result.finish_s[0] == pytest.approx(100 / 0.4)


def test_gang_prefers_one_slow_machine_to_two_fast_ones_if_it_communicates_much() -> None:
    """Spread over two V100s in a rack it keeps 1 / (1 + comm): 0.56 at 0.8, against 0.76."""
    fast, slow = machines(2, 2, "V100"), machines(1, 4, "P100")
    for comm, chosen in ((0.8, [2]), (0.1, [0, 1])):
        result = run("fifo-fastest", (fast, slow), job(0, 100, instances=4, comm=comm))
        assert machines_of(result, 0) == chosen
        speed = 0.76 if chosen == [2] else 1 / 1.1
        assert result.finish_s[0] == pytest.approx(100 / speed)


def test_gang_across_types_uses_the_slowest_machines_that_are_needed() -> None:
    """Six instances fit nowhere alone: the T4s are filled, and two more run on V100s."""
    result = run("fifo-fastest", (V100, T4), job(0, 100, instances=6))
    assert result.trace is not None
    assert result.trace.instances[np.argsort(result.trace.machine)].tolist() == [2, 4]
    assert result.finish_s[0] == pytest.approx(250)


def test_fgd_leaves_the_larger_block_whole() -> None:
    """Jobs of four GPUs arrived before: a job of one GPU goes where three are free."""
    rows = job(0, 10, gpu=400), job(1, 90, gpu=100), job(2, 50, gpu=100)
    result = run("fifo-fgd", (machines(3, 4),), *rows)
    assert machines_of(result, 2) == machines_of(result, 1)


@pytest.mark.parametrize(("migrate", "moves"), [(0.0, False), (1.2, True), (3.0, False)])
def test_job_migrates_if_its_time_left_falls_by_the_factor(migrate: float, moves: bool) -> None:
    """The V100 is free at 1,000 s; the second job, on the T4, then has done 399.6 s of work."""
    one = machines(1, 1, "V100"), machines(1, 1, "T4")
    rows = job(0, 1000), job(1, 4000)
    result = run("srsf-speed-price", one, *rows, migrate=migrate, size=0.0)
    assert machines_of(result, 1) == ([1, 0] if moves else [1])
    done = (1000 - 1) * 0.4
    expected = 1000 + (4000 - done + 60) if moves else 1 + 4000 / 0.4
    assert result.finish_s[1] == pytest.approx(expected)
    assert result.preemptions == moves


@pytest.mark.parametrize(("swap", "first"), [(0.0, 1), (1.5, 0)])
def test_job_takes_the_faster_machine_of_a_job_behind_it(swap: float, first: int) -> None:
    """The short job arrives while the long one holds the V100 and the T4 is free."""
    one = machines(1, 1, "V100"), machines(1, 1, "T4")
    rows = job(0, 9000), job(1000, 100)
    result = run("srsf-speed-price", one, *rows, migrate=0.0, swap=swap, size=0.0)
    assert machines_of(result, 1)[0] == first
    assert result.finish_s[1] == pytest.approx(1000 + (100 if swap else 250))
    assert (result.preemptions > 0) == (swap > 0)


def test_tiresias_with_the_published_threshold_is_las() -> None:
    rows = [job(60 * i, 2000 + 900 * (i % 7), gpu=100 * (1 + i % 4)) for i in range(40)]
    las, tuned = (run(name, (T4, V100), *rows) for name in ("las-consolidate", TIRESIAS))
    assert np.array_equal(las.finish_s, tuned.finish_s)
    changed = run(TIRESIAS, (T4, V100), *rows, threshold_gpu_s=600, promote=1.0)
    assert not np.array_equal(las.finish_s, changed.finish_s)


@compiled  # functions of compiled code alone have no wrapper for Python
def left_s(state: SimState, jobs: Jobs, job: int) -> float:
    return predicted_left_s(state, jobs, job)


@compiled
def finish(state: SimState, row: int, run_s: float) -> None:
    cols.add_finished(state.user_history, row, run_s)


def test_prediction_is_that_of_the_users_finished_jobs_and_the_age() -> None:
    settings = GpuSchedulingSettings(machines=(V100,))
    jobs = jobs_of([job(0, 1e6, user=0), job(0, 1e6, user=1)])
    state = cols.new_state(settings, build_cluster(settings), jobs, 0)
    state.rule[rules.AGE] = 0.5
    prior_s = 60 * np.expm1(PRIOR_LOG_RUN)
    of_user = [int(np.flatnonzero(jobs.user == user)[0]) for user in (0, 1)]
    assert left_s(state, jobs, of_user[0]) == pytest.approx(prior_s)
    for run_s in (60.0, 60.0, 60.0, 60.0):
        finish(state, 0, run_s)
        finish(state, len(state.user_history) - 1, run_s)
    everyone = (4 * np.log(2) + PRIOR_LOG_RUN) / 5
    own = (4 * np.log(2) + 2 * everyone) / 6
    assert left_s(state, jobs, of_user[0]) == pytest.approx(60 * np.expm1(own))
    state.progress[of_user[1], cols.RUN_S] = 1000.0
    found = left_s(state, jobs, of_user[1])
    assert found == pytest.approx(60 * np.expm1(everyone) + 500)


def test_parameters_are_in_the_order_of_their_columns() -> None:
    for name in PARAMETERS:
        values = replace(BASELINES["las-fastest"], parameters={name: 7.0}).values
        assert values[getattr(rules, name.upper())] == 7.0
        assert sum(values) == 7.0
