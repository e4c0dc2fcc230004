"""The heuristics by name: their rules, and that they differ where they should."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, ORDERINGS, PLACEMENTS
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, build_episode, run_episode
from loadmaster.envs.gpu_scheduling.jobs import gpu_seconds
from loadmaster.envs.gpu_scheduling.placement import Wishes
from loadmaster.envs.gpu_scheduling.scheduling_pass import (
    anything_fits,
    list_pending,
    offer,
    run_scheduling_pass,
)
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from tests.envs.gpu_scheduling.instances import jobs_of, play

SMALL = GpuSchedulingSettings(jobs=80)
SEEDS = range(12)


def mean_jct_s(policy: str, settings: GpuSchedulingSettings = SMALL) -> float:
    return float(np.mean([run_episode(policy, settings, seed).mean_jct_s for seed in SEEDS]))


def test_every_pair_and_mosa_are_there() -> None:
    pairs = {f"{order}-{place}" for order in ORDERINGS for place in PLACEMENTS}
    assert set(BASELINES) == pairs | {"mosa"}
    assert len(pairs) == 30
    assert all(baseline.name == name for name, baseline in BASELINES.items())


def test_oracles_say_so() -> None:
    for baseline in BASELINES.values():
        assert ("oracle" in baseline.summary) == baseline.oracle


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="unknown policy 'fifo-firstfit'; did you mean 'fifo-fir"):
        run_episode("fifo-firstfit", SMALL, 0)


def test_no_two_baselines_decide_alike() -> None:
    ends = {name: tuple(run_episode(name, SMALL, 3).finish_s) for name in BASELINES}
    assert len(set(ends.values())) == len(BASELINES)


def test_knowing_durations_pays_and_preempting_more_so() -> None:
    """Undisturbed and on equal machines; where neither holds, luck may have the last word."""
    equal = GpuSchedulingSettings.model_validate(
        {
            "jobs": 80,
            "load": 1.2,
            "machines": [{"count": 8, "gpus": 4, "gpu": "V100", "cpus": 96}],
            "interference": False,
            "stragglers": 0,
        }
    )
    fifo, sjf, srtf = (mean_jct_s(f"{name}-best-fit", equal) for name in ("fifo", "sjf", "srtf"))
    assert srtf < sjf < fifo


def test_only_preemptive_orderings_preempt() -> None:
    for name, ordering in ORDERINGS.items():
        result = run_episode(f"{name}-first-fit", SMALL, 0)
        assert (result.preemptions > 0) == ordering.replans


def test_mosa_weighs_its_objectives() -> None:
    """By the dollar and the second for each unit of work: sums are those of one huge job."""

    def of_work(**weights: float) -> tuple[float, float]:
        settings = SMALL.model_copy(update=weights)
        results = [run_episode("mosa", settings, seed) for seed in SEEDS]
        dollars = np.concatenate([r.fee / gpu_seconds(r.jobs) for r in results])
        seconds = np.concatenate([r.run_s / r.jobs.duration_s for r in results])
        return float(dollars.mean()), float(seconds.mean())

    cheap, quick = of_work(jct_weight=0.0), of_work(fee_weight=0.0)
    assert cheap[0] < 0.9 * quick[0]
    assert quick[1] < 0.9 * cheap[1]


def test_mosa_finds_the_better_of_two_machines() -> None:
    """The fast one costs 2.8 times as much for the same work, and takes 0.4 of the time."""

    def machine(**weights: float) -> int:
        settings = GpuSchedulingSettings.model_validate(
            {
                "machines": [
                    {"count": 1, "gpus": 1, "gpu": "V100", "cpus": 4},
                    {"count": 1, "gpus": 1, "gpu": "T4", "cpus": 4},
                ],
                **weights,
            }
        )
        jobs = jobs_of([(0.0, 100.0, 1, 100, 100, -1, 0.0, 0)])
        trace = play("mosa", settings, Episode(build_cluster(settings), jobs, luck=0)).trace
        assert trace is not None
        return int(trace.machine[0])

    assert machine(jct_weight=1, fee_weight=0) == 0
    assert machine(jct_weight=0, fee_weight=1) == 1
    assert machine(jct_weight=1, fee_weight=1) == 1  # 2.5 times the time for 0.35 of the fee


def test_a_policy_from_outside_sets_order_and_place() -> None:
    """Priorities and affinities alone decide; a job without a priority is not offered."""
    settings = GpuSchedulingSettings.model_validate(
        {"machines": [{"count": 3, "gpus": 1, "gpu": "V100", "cpus": 4}], "stragglers": 0}
    )
    cluster, jobs, _ = build_three_jobs(settings)
    wishes = Wishes(np.array([[0.0, 3.0, 5.0], [1.0, 2.0, 4.0]]), np.array([0, 1, 0]))
    state = at.new_state(settings, cluster, jobs, seed=0)
    assert advance(state, cluster, jobs, rules.GIVEN) == at.DECIDE
    assert anything_fits(state)
    pending = np.full(8, at.NONE)
    assert list_pending(state, pending) == 3
    assert pending[:3].tolist() == [0, 1, 2]
    assert run_scheduling_pass(state, cluster, jobs, rules.GIVEN, rules.AFFINITY, wishes) == 0

    offer(state, jobs, pending, np.array([-1.0, 2.0, 0.0]), count=2)
    assert run_scheduling_pass(state, cluster, jobs, rules.GIVEN, rules.AFFINITY, wishes) == 2
    machine = state.rows[state.jobs[:3, at.FIRST_ROW], at.MACHINE]
    assert machine.tolist() == [1, 2, at.NONE]
    assert state.clock[at.QUEUED] == 1

    offer(state, jobs, np.array([2]), np.array([-9.0]), count=1)
    assert run_scheduling_pass(state, cluster, jobs, rules.GIVEN, rules.AFFINITY, wishes) == 1
    assert list_pending(state, pending) == 0
    assert not anything_fits(state)


def build_three_jobs(settings: GpuSchedulingSettings) -> Episode:
    jobs = jobs_of([(0.0, 5.0, 1, 100, 100, -1, 0.0, 0)] * 3)
    return Episode(build_cluster(settings), jobs, luck=0)


def test_recording_changes_nothing() -> None:
    episode = build_episode(SMALL, 1)
    for policy in ("fifo-first-fit", "las-best-fit", "srtf-worst-fit", "mosa"):
        one, other = (play(policy, SMALL, episode, record=record) for record in (True, False))
        assert one.trace is not None
        assert other.trace is None
        assert np.array_equal(one.finish_s, other.finish_s)
