"""The baselines, and scheduling passes of an external policy."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.baselines import (
    AFFINITY,
    BASELINES,
    GIVEN,
    ORDERINGS,
    PLACEMENTS,
)
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, build_episode, run_episode
from loadmaster.envs.gpu_scheduling.jobs import gpu_seconds
from loadmaster.envs.gpu_scheduling.placement import PlacementPreferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import (
    list_pending,
    run_scheduling_pass,
    set_priorities,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from tests.envs.gpu_scheduling.instances import job, jobs_of, play

pytestmark = pytest.mark.slow

SMALL = GpuSchedulingSettings(jobs=80)
SEEDS = range(12)


def test_names_and_oracles() -> None:
    pairs = {f"{order}-{place}" for order in ORDERINGS for place in PLACEMENTS}
    assert set(BASELINES) == pairs | {"mosa"}
    assert len(pairs) == 30
    for name, baseline in BASELINES.items():
        assert baseline.name == name
        assert ("oracle" in baseline.summary) == baseline.oracle


def test_unknown_policy_is_refused_with_nearest_name() -> None:
    with pytest.raises(InputError, match=r"'fifo-firstfit'.*'fifo-first-fit'"):
        run_episode("fifo-firstfit", SMALL, 0)


def test_all_baselines_differ() -> None:
    results = {name: run_episode(name, SMALL, 3) for name in BASELINES}
    assert len({tuple(result.finish_s) for result in results.values()}) == len(BASELINES)
    for name, result in results.items():
        assert (result.preemptions > 0) == BASELINES[name].ordering.replans


def test_oracle_orderings_beat_fifo_on_equal_machines() -> None:
    machines = [{"count": 8, "gpus": 4, "gpu": "V100", "cpus": 96}]
    values = {"jobs": 80, "load": 1.2, "interference": False, "stragglers": 0}
    settings = GpuSchedulingSettings.model_validate({**values, "machines": machines})
    fifo, sjf, srtf = (
        np.mean([run_episode(f"{name}-best-fit", settings, seed).mean_jct_s for seed in SEEDS])
        for name in ("fifo", "sjf", "srtf")
    )
    assert srtf < sjf < fifo


def test_mosa_follows_weights() -> None:
    """Dollars and seconds per unit of work; sums would be dominated by one huge job."""

    def per_work(**weights: float) -> tuple[float, float]:
        settings = SMALL.model_copy(update=weights)
        results = [run_episode("mosa", settings, seed) for seed in SEEDS]
        dollars = np.concatenate([r.fee / gpu_seconds(r.jobs) for r in results])
        seconds = np.concatenate([r.run_s / r.jobs.duration_s for r in results])
        return float(dollars.mean()), float(seconds.mean())

    cheap, fast = per_work(jct_weight=0.0), per_work(fee_weight=0.0)
    assert cheap[0] < 0.9 * fast[0]
    assert fast[1] < 0.9 * cheap[1]


@pytest.mark.parametrize(("jct_weight", "fee_weight", "machine"), [(1, 0, 0), (0, 1, 1), (1, 1, 1)])
def test_mosa_chooses_machine_by_weights(jct_weight: int, fee_weight: int, machine: int) -> None:
    """The V100 takes 0.4 of the T4's time and costs 2.8 times as much for the same work."""
    machines = [{"count": 1, "gpus": 1, "gpu": gpu, "cpus": 4} for gpu in ("V100", "T4")]
    settings = GpuSchedulingSettings.model_validate(
        {"machines": machines, "jct_weight": jct_weight, "fee_weight": fee_weight}
    )
    episode = Episode(build_cluster(settings), jobs_of([job(0, 100)]), 0)
    trace = play("mosa", settings, episode).trace
    assert trace is not None
    assert trace.machine[0] == machine


def test_external_policy_sets_order_and_machines() -> None:
    """Jobs without a priority do not take part."""
    settings = GpuSchedulingSettings.model_validate(
        {"machines": [{"count": 3, "gpus": 1, "gpu": "V100", "cpus": 4}], "stragglers": 0}
    )
    cluster, jobs = build_cluster(settings), jobs_of([job(0, 5)] * 3)
    affinity = np.array([[0.0, 3.0, 5.0], [1.0, 2.0, 4.0]])
    rules = GIVEN, AFFINITY, PlacementPreferences(affinity, np.array([0, 1, 0]))
    state = cols.new_state(settings, cluster, jobs, seed=0)
    assert advance(state, cluster, jobs, GIVEN) == cols.DECIDE
    pending = np.full(8, cols.NONE)
    assert list_pending(state, pending) == 3
    assert pending[:3].tolist() == [0, 1, 2]
    assert run_scheduling_pass(state, cluster, jobs, *rules) == 0

    set_priorities(state, jobs, pending, np.array([-1.0, 2.0, 0.0]), count=2)
    assert run_scheduling_pass(state, cluster, jobs, *rules) == 2
    machine = state.rows[state.jobs[:3, cols.FIRST_ROW], cols.MACHINE]
    assert machine.tolist() == [1, 2, cols.NONE]
    assert state.clock[cols.QUEUED] == 1

    set_priorities(state, jobs, np.array([2]), np.array([-9.0]), count=1)
    assert run_scheduling_pass(state, cluster, jobs, *rules) == 1
    assert list_pending(state, pending) == 0


@pytest.mark.parametrize("policy", ["fifo-first-fit", "las-best-fit", "srtf-worst-fit", "mosa"])
def test_recording_does_not_change_result(policy: str) -> None:
    episode = build_episode(SMALL, 1)
    one, other = (play(policy, SMALL, episode, record=record) for record in (True, False))
    assert one.trace is not None
    assert other.trace is None
    assert np.array_equal(one.finish_s, other.finish_s)
