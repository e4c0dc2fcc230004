"""Schedules worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult, run_episode
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuSchedulingSettings, MachineGroup
from tests.envs.gpu_scheduling.instances import TOY, Row, job, jobs_of, play

pytestmark = pytest.mark.slow

PRICE = (GPU_TYPES["V100"].price_per_hour or math.nan) / 3600


def machines(count: int, gpus: int, gpu: str = "V100", per_rack: int = 4) -> MachineGroup:
    return MachineGroup(count=count, gpus=gpus, gpu=gpu, cpus=8 * gpus, machines_per_rack=per_rack)


def setting(*groups: MachineGroup, **values: object) -> GpuSchedulingSettings:
    return GpuSchedulingSettings.model_validate({"stragglers": 0, "machines": groups, **values})


def run(policy: str, settings: GpuSchedulingSettings, *rows: Row) -> EpisodeResult:
    return play(policy, settings, Episode(build_cluster(settings), jobs_of(rows), 0))


def finish_times(policy: str, settings: GpuSchedulingSettings, *rows: Row) -> list[float]:
    """Ends of the jobs in order of arrival."""
    finish_s: list[float] = run(policy, settings, *rows).finish_s.tolist()
    return finish_s


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


def test_without_backfill_first_job_blocks_queue() -> None:
    rows = job(0, 10), job(1, 5, gpu=200), job(2, 3)
    settings = setting(machines(1, 2), interference=False)
    assert finish_times("fifo-first-fit", settings, *rows) == [10, 15, 5]
    strict = settings.model_copy(update={"backfill": False})
    assert finish_times("fifo-first-fit", strict, *rows) == [10, 15, 18]


def test_srtf_preempts_longer_job() -> None:
    rows = job(0, 10), job(2, 3), job(4, 9)
    free = setting(machines(1, 1), interference=False, restart_s=0)
    assert finish_times("sjf-first-fit", free, *rows) == [10, 13, 22]
    # 2 to 5, then 0 has 8 s left, less than the 9 s of the last.
    assert finish_times("srtf-first-fit", free, *rows) == [13, 5, 22]


def test_preempted_job_returns_to_checkpoint() -> None:
    rows = job(0, 10), job(2, 3), job(4, 9)
    cheap = setting(machines(1, 1), interference=False, restart_s=0.5)
    # 0 has 8.5 s left, still less than the 9 s of the last.
    assert finish_times("srtf-first-fit", cheap, *rows) == [13.5, 5, 22.5]
    # It loses the 2 s that it had run, no more: now the last is the shorter one.
    dear = setting(machines(1, 1), interference=False, restart_s=60)
    assert finish_times("srtf-first-fit", dear, *rows) == [24, 5, 14]
    # Stopped at 10 it loses 5 s, at 21 the 1 s it ran since 20: it was placed with 95 s left.
    rows = job(0, 100), job(10, 10), job(21, 10)
    often = setting(machines(1, 1), interference=False, restart_s=5)
    assert finish_times("srtf-first-fit", often, *rows) == [126, 20, 31]


def test_las_demotes_job_at_next_replanning() -> None:
    """One GPU for 18,000 s reaches the threshold of 18,000 GPU seconds."""
    rows = job(0, 20_000), job(100, 500)
    settings = setting(machines(1, 1), interference=False, replan_s=60)
    # The first replanning with a pending job is at 100 s, the next at 160, 220, ...; 18,040 is the
    # first after 18,000. The demoted job repeats its last minute.
    assert finish_times("las-first-fit", settings, *rows) == [20_560, 18_540]


def test_drf_prefers_user_with_lowest_share() -> None:
    # 0 and 1 fill the machine; when 0 ends, user 1 has no share, although 2 came before 3.
    rows = job(0, 4), job(0.5, 10), job(1, 5), job(2, 5, user=1)
    settings = setting(machines(1, 2), interference=False)
    assert finish_times("fifo-first-fit", settings, *rows) == [4, 10.5, 9, 14]
    assert finish_times("drf-first-fit", settings, *rows) == [4, 10.5, 14, 9]


def test_tetris_prefers_larger_gang() -> None:
    # When 0 ends both GPUs are free. Alignment and work are proportional to the demands; with equal
    # durations the larger gang goes first.
    rows = job(0, 4, gpu=200), job(1, 5), job(2, 5, gpu=200)
    settings = setting(machines(1, 2), interference=False)
    assert finish_times("fifo-first-fit", settings, *rows) == [4, 9, 14]
    assert finish_times("tetris-first-fit", settings, *rows) == [4, 14, 9]


def test_colocation_slows_jobs_only_while_they_share() -> None:
    # Two halves on one GPU: combined use 1, so each runs at 0.79. The first has 10 - 4 = 6 s left
    # when the second arrives, which takes 6 / 0.79 s. The second then has 2 of 8 s left, alone.
    both = 6 / 0.79
    rows = job(0, 10, gpu=50), job(4, 8, gpu=50)
    expected = [4 + both, 4 + both + 2]
    assert finish_times("fifo-first-fit", setting(machines(1, 1)), *rows) == pytest.approx(expected)
    # No slowdown with a GPU for each, ...
    assert finish_times("fifo-first-fit", setting(machines(1, 2)), *rows) == [10, 12]
    # ... until a third job takes a whole GPU from 6 to 9.
    expected = [9 + (4 - 3 * 0.79), 9 + (6 - 3 * 0.79), 9]
    ends = finish_times("fifo-first-fit", setting(machines(1, 2)), *rows, job(6, 3))
    assert ends == pytest.approx(expected)


def test_colocation_depends_on_gpu_type() -> None:
    rows = job(0, 10, gpu=50), job(0, 10, gpu=50)
    for gpu in ("V100", "P100", "K80"):
        kind = GPU_TYPES[gpu]
        kept = 1 - (1 - kind.shared_speed) / (1 - 0.66) * (1 - 0.79)
        ends = finish_times("fifo-first-fit", setting(machines(1, 1, gpu)), *rows)
        assert ends == pytest.approx([10 / (kind.speed * kept)] * 2)


@pytest.mark.parametrize(("per_rack", "stretch"), [(2, 2.0), (1, 4.0)])
def test_network_slows_spread_gang(per_rack: int, stretch: float) -> None:
    settings = setting(machines(2, 2, per_rack=per_rack))
    ends = finish_times("fifo-worst-fit", settings, job(0, 10, 100, 4, comm=0.25))
    assert ends == pytest.approx([10 * (0.75 + 0.25 * stretch)])
    assert finish_times("fifo-first-fit", settings, job(0, 10, 100, 2, comm=0.25)) == [10]


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


def test_job_that_never_fits_blocks_nothing() -> None:
    rows = job(0, 5, gpu=300), job(1, 4)
    settings = setting(machines(1, 2), interference=False)
    ends = finish_times("fifo-first-fit", settings, *rows)
    assert np.isnan(ends[0])
    assert ends[1] == 5
