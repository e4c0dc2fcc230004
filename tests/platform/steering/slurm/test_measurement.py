"""Jobs of the measurement on a real Slurm, paced times, and the figures of its rows."""

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.gpu_scheduling.jobs import WHOLE, gpu_seconds
from loadmaster.platform.bench.engines import slurm as bench
from loadmaster.platform.bench.engines.slurm import PACE, Case, PacedSlurm, build_case, figures
from loadmaster.platform.bench.engines.slurm_cluster import SHARDS
from loadmaster.platform.steering.slurm.commands import SlurmCommands


@pytest.mark.parametrize("load", bench.LOADS)
def test_jobs_are_whole_gpus_or_shards_and_arrive_at_the_load(load: float) -> None:
    cases = [build_case(bench.FIRST_SEED + repeat, load) for repeat in range(10)]
    offered, span_s = 0.0, 0.0
    for case in cases:
        jobs = case.jobs
        assert len(jobs.gpu) == bench.JOBS
        assert jobs.duration_s.max() <= bench.LONGEST_S
        fractions = jobs.gpu < WHOLE
        assert not (jobs.gpu[fractions] % (WHOLE // SHARDS)).any()
        assert not (jobs.gpu[~fractions] % WHOLE).any()
        assert (jobs.instances[fractions] == 1).all()
        offered += float(gpu_seconds(jobs).sum())
        span_s += float(jobs.arrival_s[-1])
    gpus = len(bench.TYPES) * bench.GPUS
    assert offered / (span_s * gpus) == pytest.approx(load, rel=0.5)  # 400 jobs, long-tailed


def test_policies_that_know_more_are_predicted_to_be_ahead() -> None:
    cases = [build_case(bench.FIRST_SEED + repeat, 1.5) for repeat in range(3)]
    table = bench.compare(cases, _rows(cases))
    means = table.groupby("arm").simulated_completion_s.mean()
    assert means[bench.PREEMPTING] < means[bench.FIFO]
    simulated = table.dropna()
    assert set(table.arm) - set(simulated.arm) == {bench.POLICY}
    assert (simulated.simulated_completion_s >= simulated.simulated_running_s - 1e-6).all()
    found = {one.name: one.value for one in figures("slurm", table)}
    error = found[f"slurm/{bench.FIFO}/simulation_error_percent"]
    measured = found[f"slurm/{bench.FIFO}/completion_s"]
    assert error == pytest.approx(100 * (means[bench.FIFO] / measured - 1))
    assert found[f"slurm/{bench.POLICY}-against-{bench.FIFO}/percent"] == pytest.approx(-50)


def test_measured_delay_of_starts_is_work_in_the_simulator() -> None:
    case = build_case(bench.FIRST_SEED, 1.0, 4)
    at_once, late = (bench.compare([case], _rows([case], delay_s)) for delay_s in (0.0, 500.0))
    assert set(late.start_delay_s) == {500.0}
    added = (late.simulated_completion_s - at_once.simulated_completion_s).dropna()
    assert (added >= 500.0 - 1e-6).all()  # more on GPUs that are slower than a V100


def _rows(cases: list[Case], delay_s: float = 0.0) -> pd.DataFrame:
    """Every job runs at once, and twice as long where nobody steers."""
    rows = []
    for case in cases:
        for arm in bench.ARMS:
            took_s = case.jobs.duration_s * (2 if arm in bench.OWN else 1)
            for job, begin_s in enumerate(case.jobs.arrival_s):
                rows.append(
                    {
                        "load": case.load, "seed": case.seed, "arm": arm, "job": job,
                        "submit_s": begin_s, "start_s": begin_s + delay_s,
                        "end_s": begin_s + took_s[job],
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_times_are_paced_from_the_origin_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, str]] = []
    record = {"submit_time": 1010, "eligible_time": 1000, "start_time": 0, "end_time": 1020.5}
    monkeypatch.setattr(SlurmCommands, "jobs", lambda self: [dict(record)])
    monkeypatch.setattr(SlurmCommands, "update", lambda self, jobs, **fields: sent.append(fields))
    slurm = PacedSlurm(1.0)
    slurm.origin_s = 1000.0
    (job,) = slurm.jobs()
    assert np.array_equal(
        [job["submit_time"], job["eligible_time"], job["start_time"], job["end_time"]],
        [1000 + 10 * PACE, 1000, 0, 1000 + 20.5 * PACE],
    )
    slurm.update([1], starttime=f"now+{5 * PACE:.0f}")
    slurm.update([1], starttime="now")
    assert sent == [{"starttime": "now+5"}, {"starttime": "now"}]
