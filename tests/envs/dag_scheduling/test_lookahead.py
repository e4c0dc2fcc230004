"""Search with rollouts, and lower bounds: their order on tiny instances, and no knowledge leaks."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.compiled import Ints
from loadmaster.envs.dag_scheduling import state as cols
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.calibration import tuned_baseline
from loadmaster.envs.dag_scheduling.drawn_futures import draw_future
from loadmaster.envs.dag_scheduling.jobs import Workload, equal_tasks
from loadmaster.envs.dag_scheduling.lookahead import Lookahead, run_lookahead
from loadmaster.envs.dag_scheduling.lower_bound import JctBounds, jct_bounds
from loadmaster.envs.dag_scheduling.players import player_of
from loadmaster.envs.dag_scheduling.profiles import with_mean_durations
from loadmaster.envs.dag_scheduling.rollout import EpisodeResult
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import SimState, clone_state
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling.cluster import TOY, Cluster, simulate, workload_of

RULE = player_of(BASELINES["srpt-caps"])
STREAM = {"arrivals": "poisson", "interarrival_s": 3.0}
SHAPES = workload_of([equal_tasks(1, 2000), equal_tasks(2, 3000, 0)], [equal_tasks(2, 1000)])


def searched(seed: int, workload: Workload, search: Lookahead, **values: Any) -> EpisodeResult:
    return run_lookahead(DagSchedulingSettings(**values), workload, seed, search)


def bounds(seed: int, workload: Workload, **values: Any) -> JctBounds:
    return jct_bounds(DagSchedulingSettings(**values), workload, seed)


@pytest.mark.parametrize("arrivals", [{"jobs": 3}, {"jobs": 2, **STREAM}])
@pytest.mark.parametrize("workload", [TOY, SHAPES])
def test_bound_optimum_foresight_and_rule_are_in_order(
    workload: Workload, arrivals: dict[str, Any]
) -> None:
    values: dict[str, Any] = {"executors": 2, **arrivals}
    for seed in range(4):
        bound = bounds(seed, workload, **values)
        optimum = simulate("optimal", seed, workload, **values).mean_jct_s
        tuned = tuned_baseline("srpt-caps", DagSchedulingSettings(**values), workload)
        search = Lookahead(player_of(tuned), foresight=True)
        foresight = searched(seed, workload, search, **values).mean_jct_s
        rule = simulate("srpt-caps", seed, workload, **values).mean_jct_s
        assert 0 < max(bound.paths, bound.srpt, bound.busy) == bound.best <= optimum + 1e-9
        assert optimum <= foresight + 1e-9
        assert foresight <= rule + 1e-9


def test_bounds_are_tight_where_the_relaxation_is_exact() -> None:
    # One executor that moves at once: shortest first is optimal, and nothing runs in parallel.
    workload = workload_of([equal_tasks(1, 1000)], [equal_tasks(1, 4000)])
    values = {"jobs": 4, "executors": 1, "moving_delay_s": 0.0}
    found = bounds(3, workload, **values)
    optimum = simulate("optimal", 3, workload, **values).mean_jct_s
    assert found.srpt == pytest.approx(optimum)
    assert found.busy == pytest.approx(optimum)


def test_bounds_by_hand() -> None:
    # Two jobs, each a task of 2 s and then one of 6 s, on 4 executors, 1 s to move. W / E = 2 s.
    # Behind the mean busy time: (2 * (1 + 6) + 6 * 3) / 8 = 4 s. Mean busy times: 1 + 1, 1 + 3 s.
    workload = workload_of([equal_tasks(1, 2000), equal_tasks(1, 6000, 0)])
    found = bounds(0, workload, jobs=2, executors=4, moving_delay_s=1.0)
    assert found.paths == pytest.approx(9)
    assert found.srpt == pytest.approx(1 + (2 + 4) / 2)
    # The job by its chain leaves the other alone on the machine: both chains are the best choice.
    assert found.busy == pytest.approx(9)
    alone = bounds(0, workload, jobs=2, executors=1, moving_delay_s=1.0)
    # W / E = 8 s: mean busy times 1 + 4 and 1 + 12 s, and 4 s behind each.
    assert alone.busy == pytest.approx((1 + 4 + 4 + 1 + 12 + 4) / 2)


def test_drawn_futures_of_constant_durations_are_the_true_one() -> None:
    values = {"jobs": 4, "executors": 3}
    for seed in range(3):
        drawn = searched(seed, SHAPES, Lookahead(RULE, futures=2, margin=0.0), **values)
        known = searched(seed, SHAPES, Lookahead(RULE, foresight=True), **values)
        assert drawn.completion_s.tolist() == known.completion_s.tolist()


def test_constant_durations_are_known_from_their_means() -> None:
    values = {"jobs": 4, "executors": 3, "warmup_s": 0.0}
    for seed in range(3):
        drawn, by_means = (
            searched(seed, SHAPES, Lookahead(RULE, futures=2, only_means=only), **values)
            for only in (False, True)
        )
        assert drawn.completion_s.tolist() == by_means.completion_s.tolist()


def test_search_by_means_plays_no_measured_duration() -> None:
    workload = load_workload(DagSchedulingSettings(workload="tpch-like"))
    bank = with_mean_durations(workload.bank)
    lists = bank.wave_first[:, :, :, None] + np.arange(int(bank.wave_count.max()))
    assert (bank.wave_count == 1).all()
    means = np.maximum(np.rint(workload.bank.mean_ms), 1)
    assert (bank.durations_ms[lists] == means[:, None, None, None]).all()


def test_search_in_a_stream_finishes_every_job() -> None:
    result = searched(
        1, TOY, Lookahead(RULE, futures=3, arrivals=2), jobs=30, executors=2, **STREAM
    )
    assert result.policy == "search"
    assert np.isfinite(result.completion_s).all()
    assert result.trace is None


def working(state: SimState) -> NDArray[np.bool_]:
    """(executors,) Which of them have a task that ends later."""
    table = state.executors
    ends: NDArray[np.bool_] = table[:, cols.EVENT_MS] != cols.NEVER
    return ends & (table[:, cols.ACTIVITY] == cols.WORKING)


def future_of(cluster: Cluster, state: SimState, running: Ints) -> SimState:
    future = clone_state(state)
    draw_future(state, cluster.bank, future, running, 7, 1000.0)
    return future


def test_drawn_future_depends_on_nothing_hidden() -> None:
    sequence = [(0, 0), (0, 1), (0, 2), (60_000, 1), (61_000, 2)]
    cluster = Cluster(TOY, sequence, executors=3, trace_rows=0, slots=5)
    assert cluster.decision()
    while not working(cluster.state).any():
        cluster.act(int(np.argmax(cluster.view.schedulable)), 1)
        assert cluster.decision()
    other, busy = clone_state(cluster.state), working(cluster.state)
    assert other.clock[cols.ACTIVE] == 3
    other.setup[cols.SEED] = 99
    other.stages[: 3 * other.setup[cols.STRIDE], cols.RNG_KEY] += 12345
    other.arrivals[3:] = [(70_000, 0), (80_000, 0)]
    other.executors[busy, cols.EVENT_MS] += 500
    running = np.zeros((3, 5), np.int64)
    one, two = (future_of(cluster, state, running) for state in (cluster.state, other))
    for name in ("setup", "arrivals", "stages", "executors", "clock"):
        assert getattr(one, name).tolist() == getattr(two, name).tolist(), name
    assert (one.executors[busy, cols.EVENT_MS] > cluster.now_ms).all()
    assert (one.arrivals[3:, 0] >= cluster.now_ms).all()
    assert one.stages[0, cols.RNG_KEY] != cluster.state.stages[0, cols.RNG_KEY]


@pytest.mark.parametrize(
    "values", [{"objective": "makespan"}, {"estimates": "missing"}, {"horizon_s": 5.0}]
)
def test_settings_without_a_model_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(values))} is .*; expected"):
        searched(0, TOY, Lookahead(RULE), **values)
