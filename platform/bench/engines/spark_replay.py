"""Recorded runs of Spark in the simulator: predicted against measured mean completion times.

The jobs are read from the event log of a run, with their arrivals, DAGs and measured durations of
tasks, and scheduled anew: by rules of `dag_scheduling`, and by Spark's own orders without overheads
(`spark_simulation`), which separates the error of the rules from that of the durations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loadmaster.envs.dag_scheduling.calibration import tuned_baseline
from loadmaster.envs.dag_scheduling.jobs import RecordedJob, build_workload
from loadmaster.envs.dag_scheduling.rollout import episode_result, run_baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.state import NEVER, new_state
from loadmaster.envs.dag_scheduling.workloads.spark import read_log
from loadmaster.platform.bench.engines.spark_cluster import SparkJob, SparkStage
from loadmaster.platform.bench.engines.spark_simulation import simulate

# The simulator's rules for the orders of Spark. `fair` never takes an executor from a job that has
# work; `weighted-fair` releases those beyond a share.
PREDICTED: Mapping[str, tuple[str, ...]] = {
    "fifo": ("fifo",),
    "fair": ("fair", "weighted-fair"),
    "srpt-caps": ("srpt-caps",),
}
DRAWS = 10  # seeds of the durations' draws


def predict(
    log: Path, arm: str, jobs: int, slots: int, measured: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Predicted and measured means, by rule. The last `jobs` of the log are those measured."""
    recorded = read_log(log).jobs[-jobs:]
    workload = build_workload("spark-log", [one.job for one in recorded])
    settings = DagSchedulingSettings(
        arrivals="poisson", jobs=jobs, executors=slots, moving_delay_s=0, warmup_s=0
    )
    first_s = recorded[0].arrival_s
    arrivals = np.array(
        [(round((one.arrival_s - first_s) * 1000), row) for row, one in enumerate(recorded)]
    )
    measured_s = float(measured["completion_s"].mean())
    if arm in ("fifo", "fair"):
        found_s = float(np.mean(simulate(_as_jobs(recorded), slots, arm)))
        yield {"rule": f"spark-{arm}", "predicted_s": found_s, "measured_s": measured_s}
    for rule in PREDICTED[arm]:
        found = []
        for draw in range(DRAWS):
            state = new_state(settings, workload, arrivals.copy(), draw, int(NEVER) - 1)
            done = run_baseline(state, workload.bank, tuned_baseline(rule, settings, workload))
            found.append(episode_result(done, workload, settings, rule, draw).mean_jct_s)
        yield {"rule": rule, "predicted_s": float(np.mean(found)), "measured_s": measured_s}


def _as_jobs(recorded: Sequence[RecordedJob]) -> list[SparkJob]:
    first_s = recorded[0].arrival_s
    jobs = []
    for one in recorded:
        stages = []
        for stage in one.job.stages:
            waves = (stage.fresh, stage.first, stage.rest)
            durations = [int(ms) for wave in waves for part in wave.values() for ms in part]
            stages.append(SparkStage(durations, stage.parents))
        jobs.append(SparkJob(one.job.name, round((one.arrival_s - first_s) * 1000), stages))
    return jobs
