"""Completion of GPU jobs on a real Slurm: its FIFO with backfill, a rule, and DAS, on equal jobs.

`slurm-fifo` has nodes of equal weight, which is the default; `slurm-fifo-weights` fills those with
fast GPUs first, by node weights. `das` only starts jobs, `das-preempt` also stops and moves them:
jobs keep their progress, as those with checkpoints do.

Each arm has a cluster of its own on this machine; jobs sleep for as long as their work takes on the
slowest GPU that they got. Arms run at the same time, so that load on the machine affects all alike.
PACE seconds of the policies take one second here: `PacedSlurm` multiplies the times of Slurm's
answers, and the steerer's clock. The same jobs are replayed in the simulator.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from os import getloadavg
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, build_episode, run_episode
from loadmaster.envs.gpu_scheduling.jobs import WHOLE, Jobs, Workload, gpu_seconds
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuSchedulingSettings, MachineGroup
from loadmaster.models.das.policy import DasPolicy
from loadmaster.models.manifest import pretrained_folder
from loadmaster.platform.bench.engines.slurm_cluster import (
    SHARDS,
    Machine,
    SlurmCluster,
    slurm_cluster,
)
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.evaluation.statistics import paired_difference
from loadmaster.platform.steering.jobs import Cadence, JobSteerer
from loadmaster.platform.steering.recommenders import find_recommender
from loadmaster.platform.steering.slurm.commands import SlurmCommands
from loadmaster.platform.steering.slurm.engine import SPEC, SlurmEngine, SlurmSettings

PACE = 60.0  # seconds of the policies in a second
TYPES = ("V100", "V100", "P100", "P100", "T4", "T4")  # of the machines, the fastest first
GPUS = 4  # of a machine
JOBS = 40
FREE_FOR = 4  # jobs of up to six GPUs each, from the start on
LOADS = 1.0, 1.5  # while jobs arrive
LONGEST_S = 3600.0  # of a job, at the speed of a V100
GRACE_S = 60
EVERY_S = 0.4
FIRST_SEED = 880_000
FIFO, WEIGHTS = OWN = "slurm-fifo", "slurm-fifo-weights"  # Slurm's order, with backfill
RULE, POLICY, PREEMPTING = STEERED = "las-fastest", "das", "das-preempt"
ARMS = OWN + STEERED
RECOMMENDERS = {RULE: RULE, POLICY: "bundle:das", PREEMPTING: "bundle:das"}
RESTART_S = 3 * PACE  # from a stop to the next start
SIMULATED = {FIFO: "fifo-first-fit", WEIGHTS: "fifo-fastest", RULE: RULE}
AT_ONCE = 10  # clusters; each takes 6% of a core

# A job sleeps as long as its work takes on the slowest of its machines, the last in its list. Where
# it is stopped, it keeps how much is left.
_SCRIPT = """
file={folder}/{job}
n=$(echo $SLURM_JOB_NODELIST | tr -dc 0-9 | tail -c 1)
set -- {speeds}
shift $((n - 1))
speed=$1
left=$(cat $file.left 2>/dev/null || echo {work})
begin=$(date +%s.%N)
[ -e $file.start ] || echo $begin > $file.start
keep() {{
    kill $sleeping
    now=$(date +%s.%N)
    awk "BEGIN {{ print $left - ($now - $begin) * $speed }}" > $file.part
    mv $file.part $file.left
    echo stopped >> $file.stops
    exit 1
}}
trap keep TERM
sleep $(awk "BEGIN {{ print $left / $speed }}") &
sleeping=$!
wait $sleeping
date +%s.%N > $file.part
mv $file.part $file.end
"""


class PacedSlurm(SlurmCommands):
    """Slurm whose time runs PACE times as fast from `origin_s` on."""

    origin_s = 0.0

    def now_s(self) -> float:
        return self._paced(time.time())

    def _paced(self, when_s: float) -> float:
        return self.origin_s + PACE * (when_s - self.origin_s) if when_s else 0.0

    def jobs(self) -> list[dict[str, Any]]:
        times = "submit_time", "eligible_time", "start_time", "end_time"
        return [
            {**record, **{name: self._paced(record[name]) for name in times}}
            for record in super().jobs()
        ]

    def update(self, jobs: Sequence[int], **fields: str) -> None:
        begin = fields.get("starttime", "")
        if begin.startswith("now+"):
            seconds = max(round(float(begin.removeprefix("now+")) / PACE), 1)
            fields = {**fields, "starttime": f"now+{seconds}"}
        super().update(jobs, **fields)


@dataclass(frozen=True)
class Case:
    """The jobs of a repeat; the simulator's settings and workload draw just these."""

    seed: int
    load: float
    jobs: Jobs
    settings: GpuSchedulingSettings
    workload: Workload


def build_case(seed: int, load: float, count: int = JOBS) -> Case:
    """Draw jobs like those of Alibaba's PAI, with whole GPUs or quarters of one."""
    groups = tuple(MachineGroup(count=1, gpus=GPUS, gpu=kind, cpus=999) for kind in TYPES)
    drawn = GpuSchedulingSettings(jobs=count, machines=groups, load=load, oversized="skip")
    jobs = build_episode(drawn, seed).jobs
    unit = np.where(jobs.gpu < WHOLE, WHOLE // SHARDS, WHOLE)
    changed = jobs._replace(
        duration_s=np.minimum(jobs.duration_s, LONGEST_S),
        gpu=(np.ceil(jobs.gpu / unit) * unit).astype(np.int64),
        # Slurm 22.05 has no shards by task.
        instances=np.where(jobs.gpu < WHOLE, 1, jobs.instances),
        cpu=np.ones_like(jobs.cpu),
        comm=np.zeros_like(jobs.comm),
    )
    # Less work arrives more often, so that the load stays.
    less = float(gpu_seconds(changed).sum() / gpu_seconds(jobs).sum())
    jobs = changed._replace(arrival_s=jobs.arrival_s * less)
    settings = GpuSchedulingSettings(
        machines=groups, arrivals="trace", interference=False, stragglers=0.0, restart_s=RESTART_S
    )
    return Case(seed, load, jobs, settings, _drawn(jobs))


def _drawn(jobs: Jobs) -> Workload:
    mean = float(gpu_seconds(jobs).mean())
    return Workload("drawn", "", lambda count, consecutive, rng: jobs, mean, len(jobs.gpu))


def measure(report_step: Callable[[str], None], repeats: int, folder: Path) -> Iterator[Figure]:
    """Run all repeats, some at once; write a CSV of jobs, and one of repeats with predictions.

    Runs that are in the CSV of `folder` already are not repeated.
    """
    cases = [build_case(FIRST_SEED + one, load) for load in LOADS for one in range(repeats)]
    file = folder / "jobs.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["load", "seed", "arm"])
    known = set(zip(rows.load, rows.seed, rows.arm, strict=True))
    runs = [(one, arm) for one in cases for arm in ARMS if (one.load, one.seed, arm) not in known]
    if runs:
        report_step("slurm: short runs, which compile what decides")
        for arm in (RULE, POLICY):
            run_arm(build_case(FIRST_SEED - 1, LOADS[0], 3), arm, threading.Event())
    for first in range(0, len(runs), AT_ONCE):
        some = runs[first : first + AT_ONCE]
        report_step(f"slurm: runs {first + 1} to {first + len(some)} of {len(runs)}")
        over = threading.Event()
        with ThreadPoolExecutor(len(some)) as pool:
            try:
                results = pool.map(lambda run, over=over: run_arm(run[0], run[1], over), some)
                new = [row for one in results for row in one]
            finally:
                over.set()  # one failed, or Ctrl-C: the others end too
        rows = pd.concat([rows, pd.DataFrame(new)]).sort_values(["load", "seed", "arm", "job"])
        write_tables(folder, {file.name: rows})
    report_step("slurm: the same jobs in the simulator")
    table = compare(cases, rows)
    write_tables(folder, {"repeats.csv": table})
    for load, found in table.groupby("load"):
        yield from figures(f"engines/slurm/load-{load:g}", found)


def run_arm(case: Case, arm: str, over: threading.Event) -> list[dict[str, Any]]:
    """Submit the jobs at their times to a cluster of this arm; a row for each job.

    Ends early, with InterruptedError, where `over` is set.
    """
    weighted = arm == WEIGHTS
    machines = [
        Machine(kind.lower(), GPUS, 1 + place if weighted else 1)
        for place, kind in enumerate(TYPES)
    ]
    with (
        slurm_cluster(machines, steered=arm not in OWN, grace_s=GRACE_S) as cluster,
        ExitStack() as stack,
    ):
        slurm = PacedSlurm(30.0, cluster.environment)
        slurm.origin_s = began_s = time.time()
        steps: dict[str, int] = {"degraded": 0, "steps": 0}
        if arm not in OWN:
            stopped = threading.Event()
            thread = threading.Thread(target=_steer, args=(slurm, arm, stopped, steps))
            thread.start()
            stack.callback(thread.join)
            stack.callback(stopped.set)
        submitted = list[float]()
        for job in range(len(case.jobs.gpu)):
            due_s = began_s + float(case.jobs.arrival_s[job]) / PACE
            _wait(over, due_s - time.time())
            submitted.append(time.time())
            _submit(cluster, case.jobs, job)
        ends = [cluster.folder / f"{job}.end" for job in range(len(submitted))]
        limit_s = time.time() + 3600
        while not all(path.exists() for path in ends):
            if time.time() > limit_s:
                raise InputError(f"the jobs of {arm} did not end within an hour")
            _wait(over, 0.5)
        return [
            {
                "load": case.load, "seed": case.seed, "arm": arm, "job": job,
                "gpus": case.jobs.gpu[job] / WHOLE, "instances": case.jobs.instances[job],
                "work_s": case.jobs.duration_s[job],
                "submit_s": PACE * (submitted[job] - began_s),
                "start_s": PACE * (_seconds(ends[job].with_suffix(".start")) - began_s),
                "end_s": PACE * (_seconds(ends[job]) - began_s),
                "stops": _stops(ends[job]), "steps": steps["steps"],
                "degraded_steps": steps["degraded"],
                "machine_load": getloadavg()[0],
            }
            for job in range(len(submitted))
        ]  # fmt: skip


def _wait(over: threading.Event, seconds: float) -> None:
    if over.wait(max(seconds, 0.0)):
        raise InterruptedError("the other runs were ended")


def _stops(end: Path) -> int:
    file = end.with_suffix(".stops")
    return len(file.read_text().splitlines()) if file.exists() else 0


def _seconds(path: Path) -> float:
    return float(path.read_text())


def _submit(cluster: SlurmCluster, jobs: Jobs, job: int) -> None:
    work_s, instances = float(jobs.duration_s[job]), int(jobs.instances[job])
    speeds = [GPU_TYPES[kind].speed for kind in TYPES]
    command = _SCRIPT.format(
        speeds=" ".join(map(str, speeds)), work=work_s / PACE, folder=cluster.folder, job=job
    )
    gpus = int(jobs.gpu[job])
    if gpus % WHOLE:
        wants = [f"--gres=shard:{gpus * SHARDS // WHOLE}"]
    elif instances > 1:
        wants = ["-n", str(instances), f"--gpus-per-task={gpus // WHOLE}"]
    else:
        wants = [f"--gres=gpu:{gpus // WHOLE}"]
    # A limit as users give it, by which Slurm backfills.
    minutes = math.ceil(2 * work_s / PACE / min(speeds) / 60)
    cluster.submit(command, *wants, f"--time={minutes}", f"--account=u{jobs.user[job]}")


def _steer(slurm: PacedSlurm, arm: str, stopped: threading.Event, steps: dict[str, int]) -> None:
    settings = SlurmSettings(
        owner="account", preempt=arm == PREEMPTING, grace_s=GRACE_S * PACE, start_s=4 * PACE,
        retry_s=8 * PACE, settle_s=2 * PACE, timeout_s=30,
    )  # fmt: skip
    engine = SlurmEngine(slurm, settings, since_s=slurm.origin_s)
    cadence = Cadence(pause_s=0, refresh_s=15 * PACE, stale_s=45 * PACE)
    recommender = find_recommender([RECOMMENDERS[arm]], SPEC.endpoint)
    steerer = JobSteerer(recommender, "act", cadence=cadence)
    while not stopped.wait(EVERY_S):
        result = steerer.step(engine, slurm.now_s())
        steps["steps"] += 1
        steps["degraded"] += result.degraded


def compare(cases: Sequence[Case], rows: pd.DataFrame) -> pd.DataFrame:
    """Measured and simulated mean completion by repeat and arm.

    The simulator knows no delay from a decision to the start, so the median of those that were
    measured, on GPUs that are surely free, is work of each job there.
    """
    policy = DasPolicy.load(pretrained_folder() / "das")
    first = rows[rows.job < FREE_FOR]
    delay_s = (first.start_s - first.submit_s).groupby(first.arm).median()

    def simulate(arm: str, case: Case) -> EpisodeResult | None:
        if arm == POLICY:  # which moves jobs in the simulator
            return None
        workload = _drawn(case.jobs._replace(duration_s=case.jobs.duration_s + delay_s[arm]))
        if arm == PREEMPTING:
            return policy.run(case.settings, case.seed, workload)
        return run_episode(SIMULATED[arm], case.settings, case.seed, workload)

    by_run = [rows.load, rows.seed, rows.arm]
    completion_s = (rows.end_s - rows.submit_s).groupby(by_run).mean()
    running_s = (rows.end_s - rows.start_s).groupby(by_run).mean()
    found = list[dict[str, Any]]()
    for case in cases:
        for arm in ARMS:
            result = simulate(arm, case)
            found.append(
                {
                    "load": case.load, "seed": case.seed, "arm": arm,
                    "completion_s": completion_s[case.load, case.seed, arm],
                    "running_s": running_s[case.load, case.seed, arm],
                    "start_delay_s": delay_s[arm],
                    "simulated_completion_s": result and float(np.nanmean(result.jct_s)),
                    "simulated_running_s": result and float(np.nanmean(result.run_s)),
                }
            )  # fmt: skip
    return pd.DataFrame(found)


def figures(name: str, table: pd.DataFrame) -> Iterator[Figure]:
    """Mean completions, differences from Slurm's own order, and errors of the simulator."""
    by_arm = {
        str(arm): (rows.completion_s.to_numpy(), rows.simulated_completion_s.to_numpy())
        for arm, rows in table.groupby("arm", sort=False)
    }
    for arm, (values, simulated) in by_arm.items():
        yield Figure(
            f"{name}/{arm}/completion_s", float(values.mean()), "s", higher_is_better=False
        )
        if arm != POLICY:
            error = 100 * float(simulated.mean() / values.mean() - 1)
            yield Figure(f"{name}/{arm}/simulation_error_percent", error, "%")
        for own in OWN if arm not in OWN else ():
            change = paired_difference(values, by_arm[own][0])
            interval = change.percent_interval
            for part, value in (
                ("percent", change.percent), ("low", interval.low), ("high", interval.high)
            ):  # fmt: skip
                difference = f"{name}/{arm}-against-{own}/{part}"
                yield Figure(difference, value, "%", higher_is_better=False)
