"""Schedules, their metrics and preemption worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling import decision_state as decisions
from loadmaster.envs.gpu_scheduling import features, metrics, placement, simulator, workloads
from loadmaster.envs.gpu_scheduling import scheduling_pass as passes
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.baselines import FIFO, FIRST_FIT
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult, run_episode
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuSchedulingSettings, MachineGroup
from tests.envs.gpu_scheduling import instances
from tests.envs.gpu_scheduling.instances import TOY, Row, job, jobs_of, machines, play

pytestmark = pytest.mark.slow

PRICE = (GPU_TYPES["V100"].price_per_hour or math.nan) / 3600


def setting(*groups: MachineGroup, **values: object) -> GpuSchedulingSettings:
    return GpuSchedulingSettings.model_validate({"stragglers": 0, "machines": groups, **values})


def plain(gpus: int, **values: object) -> GpuSchedulingSettings:
    """One machine without interference."""
    return setting(machines(1, gpus), interference=False, **values)


def run(policy: str, settings: GpuSchedulingSettings, *rows: Row) -> EpisodeResult:
    return play(policy, settings, Episode(build_cluster(settings), jobs_of(rows), 0))


@pytest.mark.parametrize("policy", ["fifo", "sjf", "las", "srtf"])
def test_toy_on_one_machine(policy: str) -> None:
    """0 takes a GPU to 10, 1 half a GPU to 4, 2 two GPUs from 1 to 7, 3 the other half from 2 to 4.

    The four GPUs of 4 are free when 0 ends. No job is preempted: at 4, 0 has 6 s left and 4 has 8.
    """
    result = run_episode(f"{policy}-first-fit", GpuSchedulingSettings(**TOY), seed=0)
    assert result.finish_s.tolist() == [10, 4, 7, 4, 18]
    assert result.makespan_s == 18
    assert result.queueing_s.tolist() == [0, 0, 0, 0, 7]
    gpu_s = [10, 2, 12, 1, 32]
    assert result.fee == pytest.approx(PRICE * np.array(gpu_s))
    assert result.gpu_s == sum(gpu_s)


BLOCKED = job(0, 10), job(1, 5, gpu=200), job(2, 3)
SHORTER = job(0, 10), job(2, 3), job(4, 9)
USERS = job(0, 4), job(0.5, 10), job(1, 5), job(2, 5, user=1)
SIZES = job(0, 4, gpu=200), job(1, 5), job(2, 5, gpu=200)
HALVES = job(0, 10, gpu=50), job(4, 8, gpu=50)
BOTH_S = 6 / 0.79


@pytest.mark.parametrize(
    ("policy", "settings", "rows", "finish_s"),
    [
        ("fifo", plain(2), BLOCKED, [10, 15, 5]),
        ("fifo", plain(2, backfill=False), BLOCKED, [10, 15, 18]),
        # A job that never fits blocks nothing.
        ("fifo", plain(2), [job(0, 5, gpu=300), job(1, 4)], [math.nan, 5]),
        ("sjf", plain(1, restart_s=0), SHORTER, [10, 13, 22]),
        # 2 to 5, then 0 has 8 s left, less than the 9 s of the last.
        ("srtf", plain(1, restart_s=0), SHORTER, [13, 5, 22]),
        # 0 returns to its checkpoint: it has 8.5 s left, still less than the 9 s of the last.
        ("srtf", plain(1, restart_s=0.5), SHORTER, [13.5, 5, 22.5]),
        # It loses the 2 s that it had run, no more: now the last is the shorter one.
        ("srtf", plain(1, restart_s=60), SHORTER, [24, 5, 14]),
        # Stopped at 10 it loses 5 s, at 21 the 1 s it ran since 20: it was placed with 95 s left.
        ("srtf", plain(1, restart_s=5), [job(0, 100), job(10, 10), job(21, 10)], [126, 20, 31]),
        # One GPU for 18,000 s reaches the threshold of 18,000 GPU seconds. The first replanning
        # with a pending job is at 100 s, the next at 160, 220, ...; 18,040 is the first after
        # 18,000. The demoted job repeats its last minute.
        ("las", plain(1, replan_s=60), [job(0, 20_000), job(100, 500)], [20_560, 18_540]),
        # 0 and 1 fill the machine; when 0 ends, user 1 has no share, although 2 came before 3.
        ("fifo", plain(2), USERS, [4, 10.5, 9, 14]),
        ("drf", plain(2), USERS, [4, 10.5, 14, 9]),
        # When 0 ends both GPUs are free. Alignment and work are proportional to the demands; with
        # equal durations the larger gang goes first.
        ("fifo", plain(2), SIZES, [4, 9, 14]),
        ("tetris", plain(2), SIZES, [4, 14, 9]),
        # Two halves on one GPU: combined use 1, so each runs at 0.79. The first has 10 - 4 = 6 s
        # left when the second arrives, which takes 6 / 0.79 s. The second then has 2 of 8 s left.
        ("fifo", setting(machines(1, 1)), HALVES, [4 + BOTH_S, 4 + BOTH_S + 2]),
        # No slowdown with a GPU for each, until a third job takes a whole GPU from 6 to 9: in these
        # 3 s they do 3 x 0.79 = 2.37 s of work.
        ("fifo", setting(machines(1, 2)), HALVES, [10, 12]),
        ("fifo", setting(machines(1, 2)), (*HALVES, job(6, 3)), [13 - 2.37, 15 - 2.37, 9]),
        # A gang on one machine, and spread over two of one rack or of two racks.
        ("fifo", setting(machines(2, 2)), [job(0, 10, 100, 2, comm=0.25)], [10]),
        ("fifo", setting(machines(2, 2)), [job(0, 10, 100, 4, 0.25)], [10 * (0.75 + 0.25 * 2)]),
        ("fifo", setting(machines(2, 2, per_rack=1)), [job(0, 10, 100, 4, 0.25)], [10 * 1.75]),
    ],
)
def test_ends_of_jobs(
    policy: str, settings: GpuSchedulingSettings, rows: tuple[Row, ...], finish_s: list[float]
) -> None:
    """In order of arrival, with first-fit."""
    found = run(f"{policy}-first-fit", settings, *rows).finish_s
    assert found == pytest.approx(finish_s, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("gpu", ["V100", "P100", "K80"])
def test_colocation_depends_on_gpu_type(gpu: str) -> None:
    kind, halves = GPU_TYPES[gpu], [job(0, 10, gpu=50)] * 2
    kept = 1 - (1 - kind.shared_speed) / (1 - 0.66) * (1 - 0.79)
    found = run("fifo-first-fit", setting(machines(1, 1, gpu)), *halves).finish_s
    assert found == pytest.approx([10 / (kind.speed * kept)] * 2)


def test_slowest_instance_sets_speed_and_fee_sums_prices() -> None:
    settings = setting(machines(1, 1, "V100"), machines(1, 1, "T4"), interference=False)
    result = run("fifo-first-fit", settings, job(0, 10, 100, 2))
    run_s = 10 / GPU_TYPES["T4"].speed
    assert result.finish_s == pytest.approx([run_s])
    assert result.fee == pytest.approx([run_s * build_cluster(settings).price_per_s.sum()])


def test_consolidate_uses_one_machine_or_rack() -> None:
    settings = setting(machines(4, 4, per_rack=2))
    rows = job(0, 9, 200), job(1, 9, 100, 4, 0.5), job(2, 9, 100, 5, 0.5)
    trace = run("fifo-consolidate", settings, *rows).trace
    assert trace is not None
    machines_of = [trace.machine[trace.job == number].tolist() for number in range(3)]
    assert machines_of == [[0], [1], [2, 3]]


def figures(settings: GpuSchedulingSettings) -> dict[str, float]:
    workload = workloads.load_workload(settings)
    result = run_episode("fifo-first-fit", settings, 0, workload)
    return {
        metric.name: metric.of(result) for metric in metrics.episode_metrics(settings, workload)
    }


def test_metrics_of_toy() -> None:
    """The jobs arrive at 0, 0, 1, 2 and 3 s and end at 10, 4, 7, 4 and 18 s."""
    values = figures(GpuSchedulingSettings(**TOY))
    assert list(values)[:2] == ["jct", "fee"]
    users = np.array([3.5 / 3, 1])
    assert values == pytest.approx(
        {
            "jct": (10 + 4 + 6 + 2 + 15) / 5,
            "fee": 57 / 5 * 2.48 / 3600,
            "queueing": 7 / 5,
            # Durations count as 10 s at least: only the last job, with 15 s, is slowed down.
            "slowdown": (4 + 1.5) / 5,
            "utilisation": 57 / (4 * 18),
            "fairness": users.sum() ** 2 / (2 * (users**2).sum()),
            "makespan": 18,
            "jct_p95": 14,
            "preemptions": 0,
        }
    )


def test_unfinished_jobs_are_counted_and_excluded_from_means() -> None:
    changed = {"machines": (machines(1, 3),), "oversized": "queue"}
    with pytest.warns(UserWarning, match="left in the queue"):
        values = figures(GpuSchedulingSettings(**{**TOY, **changed}))
    assert values["unfinished"] == 1
    assert values["jct"] > 0
    assert all(np.isfinite(value) for value in values.values())


def test_job_columns_have_one_row_per_job() -> None:
    result = run_episode("sjf-best-fit", GpuSchedulingSettings(**TOY), 0)
    columns = metrics.job_columns(result)
    assert {len(column) for column in columns.values()} == {5}
    assert columns["job"].tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(columns["jct_s"], columns["queueing_s"] + result.run_s)


# Preemption.


def make(*rows: Row, gpus: int = 2, count: int = 1, max_queue: int = 4) -> GpuSchedulingEnv:
    group = machines(count, gpus, per_rack=count)
    return instances.env_with(
        *rows, machines=(group,), max_queue=max_queue, preempt=True, restart_s=60
    )


def three_jobs(max_queue: int = 4) -> tuple[GpuSchedulingEnv, dict[str, Any]]:
    """A and B each hold one of the machine's two GPUs when C arrives at 2 s, which needs one."""
    env = make(job(0, 10), job(1, 10), job(2, 4), max_queue=max_queue)
    for _ in range(2):
        observations, *_ = env.step(instances.first_come_first_fit(env.runner))
    return env, observations[ORDERING]


def phase(env: GpuSchedulingEnv) -> int:
    return int(env.runner.decision_state.counts[decisions.PHASE])


def reconsider(env: GpuSchedulingEnv, priority: list[float]) -> tuple[Any, ...]:
    actions = instances.first_come_first_fit(env.runner)
    actions[ORDERING][: len(priority)] = priority
    return env.step(actions)


def test_observation_when_reconsidering() -> None:
    env, seen = three_jobs()
    assert phase(env) == decisions.RECONSIDERING
    assert seen["job_mask"].tolist() == seen["heeded"].tolist() == [True, True, True, False]
    assert not seen["held"].any()
    assert not seen["rack_held"].any()
    columns = seen["jobs"][:3]
    assert columns[:, features.RUNNING].tolist() == [1, 1, 0]
    assert not columns[:, [features.STARTS, features.BEYOND]].any()
    minutes = np.array([2, 1, 0]) / 60
    for column in (features.RAN, features.ATTAINED, features.WAITED):
        assert columns[:, column] == pytest.approx(np.log1p(minutes))


def test_attained_service_beyond_threshold_is_observed() -> None:
    """Five GPUs for 3,700 s exceed 18,000 GPU seconds."""
    env = make(job(0, 9000, instances=5), job(3700, 4, instances=5), gpus=5)
    seen = env.step(instances.first_come_first_fit(env.runner))[0][ORDERING]["jobs"]
    minutes = 5 * 3700 / 60
    assert seen[0, features.ATTAINED] == pytest.approx(np.log1p(minutes))
    assert seen[0, features.BEYOND] == pytest.approx(np.log((1 + minutes) / (1 + 300)), rel=1e-4)
    assert seen[1, features.BEYOND] == 0


@pytest.mark.parametrize(
    ("priority", "finish_s", "waited_s"),
    [
        # C replaces the job of lowest priority, which loses the 2 s (A) or 1 s (B) it had run, and
        # continues when C ends at 6 s.
        ([1, 2, 3], [16, 11, 6], [4, 0, 0]),
        ([2, 1, 3], [10, 16, 6], [0, 4, 0]),
        # Both precede C, which waits for A to end.
        ([3, 2, 1], [10, 11, 14], [0, 0, 8]),
    ],
)
def test_job_of_lowest_priority_is_preempted(
    priority: list[float], finish_s: list[float], waited_s: list[float]
) -> None:
    env, _ = three_jobs()
    seen = reconsider(env, priority)[0][ORDERING]
    if priority[2] > 1:
        assert phase(env) == decisions.PLACING_AGAIN
        assert env.result().preemptions == 1
        assert seen["job_mask"].tolist() == [True, True, False, False]
        assert seen["history_t"].tolist()[:3] == [0, 1, 2]  # one row per event
        reconsider(env, [0, 1])  # C, not the job just stopped
    instances.finish(env, instances.running_first)
    result = env.result()
    assert result.finish_s.tolist() == finish_s
    assert result.queueing_s.tolist() == waited_s
    assert result.fee == pytest.approx(result.run_s * env.cluster.price_per_s[0])


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_illegal_priority_ranks_last(wrong: float) -> None:
    env, _ = three_jobs()
    assert reconsider(env, [wrong, 2, 3])[4][ORDERING]["legal"] is False
    assert instances.running(env.runner) == {1}
    # A again, which arrived first: it loses the work of 2 s although it is placed at once.
    env.step(instances.first_come_first_fit(env.runner))
    instances.finish(env, instances.running_first)
    assert env.result().finish_s.tolist() == [12, 11, 15]


def test_without_free_rows_agents_do_not_reconsider() -> None:
    env, seen = three_jobs(max_queue=1)
    assert phase(env) == decisions.PLACING
    assert seen["jobs"][0, features.RUNNING] == 0
    assert env.runner.state.times[cols.NOW] == 10


def test_rack_share_of_whole_gang_is_exactly_one() -> None:
    """The sum of twelve twelfths in single precision is less than one."""
    env = make(job(0, 5, instances=12), gpus=1, count=12)
    observations, infos = env.reset(seed=0)
    assert observations[PLACEMENT]["rack_held"][0].tolist() == [1]
    assert infos[PLACEMENT]["hidden"] == 0


ONE, GANG = (1, 1), (2, 1)  # instances, and GPUs of each
PROTECTED = [-np.inf, 3, 1, 2]
PAIR, SINGLES = setting(machines(1, 2)), setting(machines(3, 1))


@pytest.mark.parametrize(
    ("settings", "jobs", "started", "keys", "left"),
    [
        (PAIR, [ONE, ONE, ONE], 2, [0, 1, 2], [0, 1]),  # the pending job ranks last
        (PAIR, [ONE, ONE, ONE], 2, [0, 2, 1], [0]),
        (PAIR, [ONE, ONE, ONE], 2, [2, 0, 1], [1]),
        (PAIR, [ONE, ONE, ONE], 2, [1, 2, 0], [0]),
        (PAIR, [ONE, ONE, ONE], 2, [-np.inf, -np.inf, 0], [0, 1]),  # not shown: protected
        (PAIR, [ONE, ONE, ONE], 2, [0, 1, np.inf], [0, 1]),  # without priority: reserves nothing
        # One of three machines is free, the gang needs two: one job of lower rank is stopped.
        (SINGLES, [ONE, ONE, GANG], 2, [0, 2, 1], [0]),
        (SINGLES, [ONE, ONE, GANG], 2, [2, 0, 1], [1]),
        (SINGLES, [ONE, ONE, GANG], 2, [0, 1, 2], [0, 1]),
        # A job before the gang holds two of three machines: half a gang reserves nothing.
        (SINGLES, [GANG, ONE, GANG], 2, [0, 2, 1], [0, 1]),
        # A free machine avoids preemption; a second pending job finds it reserved.
        (setting(machines(2, 1)), [ONE, ONE], 1, [1, 0], [0]),
        (setting(machines(2, 1)), [ONE, ONE, ONE], 1, [2, 0, 1], []),
        (setting(machines(2, 1)), [ONE, ONE, ONE], 1, [1, 0, 2], [0]),
        # The first pending job needs both GPUs, of which one is protected; the next needs one.
        (PAIR, [ONE, ONE, (1, 2), ONE], 2, PROTECTED, [0]),
        (setting(machines(1, 2), backfill=False), [ONE, ONE, (1, 2), ONE], 2, PROTECTED, [0, 1]),
    ],
)
def test_lower_ranked_jobs_are_stopped(
    settings: GpuSchedulingSettings,
    jobs: list[tuple[int, int]],
    started: int,
    keys: list[float],
    left: list[int],
) -> None:
    """The first `started` jobs run on the first machines, the others wait; lowest key first."""
    rows = [job(n, 100, 100 * each, instances) for n, (instances, each) in enumerate(jobs)]
    cluster, table = build_cluster(settings), jobs_of(rows)
    state = cols.new_state(settings, cluster, table, seed=0)
    for number in range(len(jobs)):
        assert simulator.advance(state, cluster, table, FIFO) == cols.DECIDE
        if number < started:
            rules = FIFO, FIRST_FIT, placement.no_preferences(table)
            assert passes.run_scheduling_pass(state, cluster, table, *rules) == 1
    state.key[:started] = keys[:started]
    waiting = np.arange(started, len(jobs))
    passes.set_priorities(state, table, waiting, -np.array(keys[started:], float), len(waiting))
    before, free = state.free.sum(0), np.zeros_like(state.free)
    stopped = passes.preempt_lower_ranked(state, cluster, table, free)
    assert np.flatnonzero(state.jobs[:-1, cols.ROWS_USED] > 0).tolist() == left
    assert state.clock[cols.PREEMPTIONS] == stopped == started - len(left)
    assert state.clock[cols.QUEUED] == len(jobs) - len(left)
    instances = sum(jobs[n][0] for n in range(started) if n not in left)  # of one GPU and one core
    assert (state.free.sum(0) - before).tolist() == [100 * instances] * 2
