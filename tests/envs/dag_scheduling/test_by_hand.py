"""The simulator's rules on instances whose results are worked out in the comments.

Moving to a job takes 2 s unless a test sets otherwise, and executors begin outside any job.
"""

import threading

import numpy as np
import pytest

from loadmaster.envs.dag_scheduling import observation as obs
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.envs.dag_scheduling.jobs import equal_tasks
from tests.envs.dag_scheduling.cluster import TOY, Cluster, executors_of, jct_ms, run, workload_of

SINGLE, CHAIN, DIAMOND = range(3)  # templates of TOY


@pytest.mark.parametrize(
    ("template", "executors", "expected_ms"),
    [
        (SINGLE, 2, 4000),  # move 2; 4 tasks, 2 at a time: 1 + 1
        (SINGLE, 1, 6000),  # move 2; one at a time: 4
        (SINGLE, 3, 4000),  # move 2; three tasks 1, the fourth 1
        (SINGLE, 10, 3000),  # move 2; all at once: 1
        (CHAIN, 2, 6000),  # move 2; 2 at once 1; the middle 2; 2 at once 1
        (CHAIN, 1, 8000),  # move 2; 2 + 2 + 2
        (DIAMOND, 2, 8000),  # move 2; the top 1; stage 1 2; stage 2 in two waves 2; the bottom 1
        (DIAMOND, 6, 6000),  # move 2; the top 1; both branches side by side 2; the bottom 1
    ],
)
def test_single_toy_job(template: int, executors: int, expected_ms: int) -> None:
    for policy in ("fifo", "fair", "sjf-cp"):
        result = run(policy, TOY, [(0, template)], executors=executors)
        assert jct_ms(result) == [expected_ms]


@pytest.mark.parametrize(
    ("policy", "second_ms", "delay_s", "expected_ms"),
    [
        ("fifo", 0, 2, [4000, 8000]),  # both executors: A 2..4, move 4..6, B 6..8
        ("fifo", 0, 0, [2000, 4000]),  # A 0..2, B 2..4
        ("fair", 0, 2, [6000, 6000]),  # one executor each: move 2, then 4 tasks one at a time
        ("fair", 0, 0, [4000, 4000]),
        ("fifo", 3000, 2, [4000, 5000]),  # A 2..4; B came at 3; move 4..6, B 6..8
    ],
)
def test_two_single_stage_jobs(
    policy: str, second_ms: int, delay_s: float, expected_ms: list[int]
) -> None:
    jobs = [(0, SINGLE), (second_ms, SINGLE)]
    result = run(policy, TOY, jobs, executors=2, moving_delay_s=delay_s)
    assert jct_ms(result) == expected_ms
    assert result.trace is not None
    assert result.trace.moving.any() == (delay_s > 0)


def test_idle_executors_are_offered_to_an_arriving_job() -> None:
    # A has one task for one executor, 2..12. The other one moves to B at 1, runs it 3..4.
    workload = workload_of([equal_tasks(1, 10_000)], [equal_tasks(1, 1000)])
    assert jct_ms(run("fifo", workload, [(0, 0), (1000, 1)], executors=2)) == [12_000, 3000]


def test_executor_that_finds_no_task_goes_to_the_first_schedulable_stage() -> None:
    # Executors 0 and 1 do A, 2..3. Executor 2 moves to B 2.5..4.5, 0 and 1 3..5.
    # B: executor 2 takes a task at 4.5 and the next at 4.9, executor 0 the last, 5..5.4.
    # Executor 1 finds none at 5, moves to C 5..7 and does it 7..8; C came at 4.
    workload = workload_of([equal_tasks(2, 1000)], [equal_tasks(3, 400)], [equal_tasks(1, 1000)])
    result = run("fifo", workload, [(0, 0), (2500, 1), (4000, 2)], executors=3)
    assert jct_ms(result) == [3000, 2900, 4000]
    assert executors_of(result, 1) == {0, 2}
    assert executors_of(result, 2) == {1}


def test_commitments_to_a_finished_job_are_cancelled() -> None:
    # A: two tasks 2..6, the third 6..10 on executor 0. At 6 both executors are committed to B:
    # executor 1 moves 6..8 and does all of B, 8..9, while 0 still works for A.
    # C comes at 9.5, in B's slot: executor 1 moves 9.5..11.5, does its task 11.5..12.5.
    # Executor 0, free at 10 and without a commitment, moves to D 10..12, does it 12..13.
    workload = workload_of([equal_tasks(3, 4000)], [equal_tasks(2, 500)], [equal_tasks(1, 1000)])
    sequence = [(0, 0), (1000, 1), (9500, 2), (9600, 2)]
    result = run("fifo", workload, sequence, executors=2)
    assert jct_ms(result) == [10_000, 8000, 3000, 3400]
    assert [executors_of(result, job) for job in (1, 2, 3)] == [{1}, {1}, {0}]


def moving_to_a_job_that_ends(*later: tuple[int, int]) -> Cluster:
    """Executor 0 does A from 2 on. Executor 1, done with B at 2.1, moves to A; A ends at 2.8."""
    workload = workload_of([equal_tasks(4, 200)], [equal_tasks(1, 100)], [equal_tasks(2, 1000)])
    cluster = Cluster(workload, [(0, 0), (0, 1), *later], executors=2)
    cluster.play((0, 0, 1, 1), (1, 0, 1, 1), (0, 0, 2, 1))
    assert cluster.now_ms == 2100
    return cluster


def test_episode_ends_with_its_last_job_though_an_executor_moves() -> None:
    cluster = moving_to_a_job_that_ends()  # until 4.1
    assert not cluster.decision()
    assert cluster.now_ms == 2800
    assert cluster.result().end_s == cluster.result().makespan_s == 2.8


def test_executor_that_arrives_at_a_finished_job_moves_on() -> None:
    # C comes at 3, in A's slot: executor 0 moves 3..5. Executor 1, come for A at 4.1, has to move
    # as well, 4.1..6.1; by then executor 0 has done one task, 5..6, and begun the other, 6..7.
    result = moving_to_a_job_that_ends((3000, 2)).finish("fifo")
    assert jct_ms(result) == [2800, 2100, 4000]
    assert executors_of(result, 2) == {0}


# Decisions.

TWO_STEPS = workload_of([equal_tasks(1, 1000), equal_tasks(2, 1000, 0)])


def test_executors_may_be_committed_once_the_parents_have_no_unassigned_task() -> None:
    # Executor 0 does the first stage 2..3; executor 1 comes at 2 and waits; both do the second
    # stage 3..4.
    cluster = Cluster(TWO_STEPS, [(0, 0)], executors=2)
    assert cluster.decision()
    assert cluster.options() == {(0, 0)}  # the second stage waits for the first's only task
    assert cluster.choose(0, 0, 2) == 1
    assert cluster.decision()
    assert cluster.now_ms == 0
    assert cluster.options() == {(0, 1)}  # the first is assigned, not finished
    assert cluster.view.stages[cluster.row_of(0, 1), obs.RUNNABLE] == 0
    assert cluster.choose(0, 1, 2) == 1
    assert cluster.decision()
    assert cluster.now_ms == 3000
    assert cluster.view.cluster[obs.FREE_EXECUTORS] == 2  # that of the ended task, and the waiting
    assert cluster.view.stages[cluster.row_of(0, 1), obs.RUNNABLE] == 1
    assert cluster.choose(0, 1, 2) == 2
    assert not cluster.decision()
    assert jct_ms(cluster.result()) == [4000]


def test_child_of_a_stage_with_unassigned_tasks_is_not_schedulable() -> None:
    # One executor for two tasks: the child is no option, so the other executor idles.
    workload = workload_of([equal_tasks(2, 1000), equal_tasks(1, 1000, 0)])
    cluster = Cluster(workload, [(0, 0)], executors=2)
    cluster.play((0, 0, 1, 1))
    assert cluster.decision()
    assert cluster.now_ms == 4000  # move 2, two tasks one after the other


def test_idling_needs_an_event_or_commitment_ahead() -> None:
    cluster = Cluster(TOY, [(0, SINGLE), (5000, SINGLE)], executors=2)
    assert cluster.decision()
    assert cluster.may_idle  # the second job will come
    assert cluster.idle() == 2
    assert cluster.decision()
    assert cluster.now_ms == 5000
    assert not cluster.may_idle  # nothing runs, nothing comes
    assert cluster.choose(0, 0, 1) == 1
    assert cluster.decision()
    assert cluster.may_idle  # an executor is committed


@pytest.mark.parametrize(
    ("limit", "used", "expected_ms"),
    [
        (1, 1, 6000),  # move 2, four tasks one after the other
        (2, 2, 4000),
        (3, 3, 4000),  # three at once, then the fourth
        (4, 4, 3000),
    ],
)
def test_limit_bounds_the_executors_of_a_job(limit: int, used: int, expected_ms: int) -> None:
    cluster = Cluster(TOY, [(0, SINGLE)], executors=4)
    cluster.play((0, 0, limit, used))
    assert not cluster.decision()  # no stage may be chosen twice in a round: the rest idles
    assert jct_ms(cluster.result()) == [expected_ms]
    assert len(executors_of(cluster.result(), 0)) == used


def test_limit_counts_executors_the_job_has() -> None:
    workload = workload_of([equal_tasks(2, 1000), equal_tasks(2, 1000), equal_tasks(9, 1000)])
    for limit, granted in ((1, 1), (3, 1), (4, 2), (7, 2)):
        cluster = Cluster(workload, [(0, 0)], executors=7)
        assert cluster.decision()
        assert cluster.view.jobs[0, obs.MIN_LIMIT] == 1
        assert cluster.choose(0, 0, 2) == 2
        assert cluster.decision()
        assert cluster.view.jobs[0, obs.EXECUTORS] == 2
        assert cluster.view.jobs[0, obs.MIN_LIMIT] == 3  # two are committed to it
        # At most 2, the tasks it has; at least 1, since a lower limit counts as the lowest.
        assert cluster.choose(0, 1, limit) == granted
        cluster.play((0, 2, 7, 7 - 2 - granted))


def test_free_executors_of_a_job_do_not_count_against_its_limit() -> None:
    # Both executors do stage 0, 2..3; then they are the source: one stays under limit 1.
    workload = workload_of([equal_tasks(2, 1000), equal_tasks(4, 1000, 0)])
    cluster = Cluster(workload, [(0, 0), (0, 0)], executors=2)
    cluster.play((0, 0, 2, 2))
    assert cluster.decision()
    assert cluster.now_ms == 3000
    job = cluster.view.jobs[0]
    assert (job[obs.EXECUTORS], job[obs.IS_SOURCE], job[obs.MIN_LIMIT]) == (2, 1, 1)
    assert cluster.choose(0, 1, 1) == 1
    assert cluster.decision()
    assert cluster.view.cluster[obs.FREE_EXECUTORS] == 1


@pytest.mark.parametrize("row", [-1, 1, 7, 1 << 40])  # row 1 is the child of row 0
def test_illegal_action_idles_the_round_or_takes_the_first_legal_stage(row: int) -> None:
    cluster = Cluster(TOY, [(0, CHAIN), (5000, CHAIN)], executors=4)
    assert cluster.decision()
    assert cluster.options() == {(0, 0)}
    assert cluster.act(row, 4) == (False, 4)  # all four idle
    assert cluster.decision()
    assert cluster.now_ms == 5000
    assert cluster.options() == {(0, 0), (1, 0)}
    assert not cluster.may_idle
    # Two tasks, limit 4, but an illegal row: the first legal stage at its lowest limit.
    assert cluster.act(cluster.row_of(1, 2), 4) == (False, 1)
    assert cluster.decision()
    assert cluster.options() == {(1, 0)}
    assert cluster.view.stages[cluster.row_of(0, 0), obs.UNASSIGNED] == 1
    assert cluster.act(cluster.row_of(0, 0), 4) == (False, 3)  # chosen before in this round


@pytest.mark.parametrize(
    ("objective", "rewards"),
    [
        ("jct", [-8, -4]),  # two jobs wait 0..4, one 4..8
        ("makespan", [-4, -4]),
    ],
)
def test_rewards_are_minus_the_cost_since_the_last_step(
    objective: str, rewards: list[float]
) -> None:
    # As under FIFO above: A 2..4, move 4..6, B 6..8.
    workload = workload_of([equal_tasks(4, 1000)])
    env = DagSchedulingEnv(workload, jobs=2, executors=2, objective=objective)
    env.reset(seed=0)
    first = env.step(np.array([0, 2]))
    assert first[1:] == (rewards[0], False, False, {"legal": True, "time_s": 4.0})
    # A's last task ends at this very time, so A still has a row, and B's is below it.
    assert first[0]["cluster"][obs.STAGES] == 2
    second = env.step(np.array([1, 2]))
    assert second[1:] == (rewards[1], True, False, {"legal": True, "time_s": 8.0})


# Executor classes.

BIG, SMALL = 0, 1  # the executors' numbers
BIG_AND_SMALL = ({"count": 1, "memory": 1.0}, {"count": 1, "memory": 0.5})
SMALL_THEN_BIG = workload_of(
    [equal_tasks(1, 1000, memory=0.3), equal_tasks(1, 1000, 0, memory=0.8)]
)


def test_stage_gets_the_smallest_class_that_fits() -> None:
    # A's two tasks need the big one: move 2, 1 + 1. B takes the small one: move 2, 1.
    workload = workload_of([equal_tasks(2, 1000, memory=0.8)], [equal_tasks(1, 1000, memory=0.3)])
    for arrivals in ([(0, 0), (0, 1)], [(0, 1), (0, 0)]):
        result = run("fifo", workload, arrivals, executor_classes=BIG_AND_SMALL)
        for job, (_, template) in enumerate(arrivals):
            assert executors_of(result, job) == {(BIG, SMALL)[template]}
            assert jct_ms(result)[job] == (4000, 3000)[template]


def test_both_demands_must_fit() -> None:
    workload = workload_of([equal_tasks(3, 1000, cpu=0.5, memory=0.5)])
    classes = (
        {"count": 2, "cpu": 1.0, "memory": 0.4},
        {"count": 2, "cpu": 0.4, "memory": 1.0},
        {"count": 1, "cpu": 0.5, "memory": 0.5},
    )
    result = run("fifo", workload, [(0, 0)], executor_classes=classes)
    assert executors_of(result, 0) == {4}
    assert jct_ms(result) == [5000]


def test_fitting_class_may_be_committed_ahead() -> None:
    # The small one does stage 0, 2..3; the big one waits there and does stage 1, 3..4.
    result = run("fifo", SMALL_THEN_BIG, [(0, 0)], executor_classes=BIG_AND_SMALL)
    assert jct_ms(result) == [4000]


def test_idled_executor_is_offered_an_unlocked_stage() -> None:
    # Executor 0 does stage 0, 2..3; then its own round, and one for executor 1, which was idled.
    cluster = Cluster(TWO_STEPS, [(0, 0)], executors=2)
    cluster.play((0, 0, 2, 1))
    assert cluster.decision()
    assert cluster.idle() == 1
    cluster.play((0, 1, 2, 1))
    assert cluster.now_ms == 3000
    cluster.play((0, 1, 2, 1))
    assert cluster.now_ms == 3000
    assert not cluster.decision()
    # Executor 0 runs 3..4 and 4..5 while executor 1 moves: it comes too late.
    assert jct_ms(cluster.result()) == [5000]


def test_published_simulator_offers_no_idled_executor_an_unlocked_stage() -> None:
    cluster = Cluster(TWO_STEPS, [(0, 0)], executors=2, interpolation="as-published")
    cluster.play((0, 0, 2, 1))
    assert cluster.decision()
    assert cluster.idle() == 1
    cluster.play((0, 1, 2, 1))
    assert not cluster.decision()
    assert jct_ms(cluster.result()) == [5000]


def test_executor_that_fitted_no_stage_is_offered_an_unlocked_one() -> None:
    # Stage 0 on the small one, 2..3, which does not fit stage 1: the big one moves 3..5, 5..6.
    cluster = Cluster(SMALL_THEN_BIG, [(0, 0)], executor_classes=BIG_AND_SMALL)
    cluster.play((0, 0, 2, 1))
    assert cluster.decision()
    assert cluster.idle() == 1
    cluster.play((0, 1, 2, 1))
    assert cluster.now_ms == 3000
    assert not cluster.decision()
    assert jct_ms(cluster.result()) == [6000]


def test_executor_idled_in_a_job_is_offered_when_another_job_comes() -> None:
    # Stage 0 is done 2..3. The executor idles in the job, which has tasks to start, until 10.
    cluster = Cluster(TWO_STEPS, [(0, 0), (10_000, 0)], executors=1)
    cluster.play((0, 0, 1, 1))
    assert cluster.decision()
    assert cluster.now_ms == 3000
    assert cluster.idle() == 1
    assert cluster.decision()
    assert cluster.now_ms == 10_000
    assert cluster.options() == {(0, 1), (1, 0)}
    assert cluster.choose(0, 1, 1) == 1  # it still belongs to the job and need not move
    assert jct_ms(cluster.finish("fifo"))[0] == 12_000


def test_busy_executors_of_an_idled_round_get_rounds_of_their_own() -> None:
    # Both do a task of job 0, 2..3. The first to end idles its round; the second has another, and
    # the end of job 0 offers the first again.
    workload = workload_of([equal_tasks(2, 1000)])
    cluster = Cluster(workload, [(0, 0), (0, 0)], executors=2)
    cluster.play((0, 0, 2, 2))
    assert cluster.decision()
    assert cluster.view.cluster[obs.FREE_EXECUTORS] == 2  # the busy one may be committed ahead
    assert cluster.idle() == 2
    for _ in range(2):
        assert cluster.decision()
        assert cluster.now_ms == 3000
        assert cluster.view.cluster[obs.FREE_EXECUTORS] == 1
        assert cluster.choose(1, 0, 2) == 1
    assert not cluster.decision()
    assert jct_ms(cluster.result()) == [3000, 6000]


def test_fitting_idle_executors_are_offered_from_any_pool() -> None:
    # Two jobs, three small executors, one big. Two small ones do both stages 0, 0..1, the third
    # idles in the common pool. The big one is committed to job 0. At 1 job 0 unlocks: its round
    # idles small and big in its pool (job 1 still runs). Then job 1's small one ends, and no event
    # is left: only the pool of job 0 has an executor that fits.
    classes = ({"count": 3, "memory": 0.5}, {"count": 1, "memory": 1.0})
    cluster = Cluster(SMALL_THEN_BIG, [(0, 0), (0, 0)], executor_classes=classes, moving_delay_s=0)

    def play() -> None:
        cluster.play((0, 0, 3, 1), (1, 0, 3, 1), (0, 1, 3, 1))
        while cluster.decision():
            if cluster.may_idle:
                cluster.idle()
            else:
                cluster.choose(*min(cluster.options()), limit=3)

    # In a thread: compiled code that never returns could not be interrupted.
    player = threading.Thread(target=play, daemon=True)
    player.start()
    player.join(timeout=120)
    assert not player.is_alive(), "the simulator hangs"
    assert jct_ms(cluster.result()) == [2000, 3000]  # the big one does stage 1 of each, from 1 on
