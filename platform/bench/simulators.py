"""Speed and memory of the simulators, one thread each.

Speeds are per second of this thread's CPU time, which load on the machine changes little. Compile
and start times are wall-clock seconds.

Figures of peers were measured side by side with Loadmaster on one x86-64 machine, in CPU time.
The PAI simulator ticks every second, has neither interference nor fees, and skips jobs that do not
fit; `same_rules` configures Loadmaster's simulator alike, which then gives the same mean completion
times to the printed digit.
"""

import os
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import numpy as np

from loadmaster.envs.dag_scheduling.episode import EpisodeResult, run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.vector_env import DagSchedulingVectorEnv
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.episode import Episode, build_episode, run_baseline
from loadmaster.envs.gpu_scheduling.jobs import Jobs, select_jobs
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.envs.stream_scaling.calibration import tuned_baseline
from loadmaster.envs.stream_scaling.episode import Setup, build_setup
from loadmaster.envs.stream_scaling.episode import build_episode as build_stream
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import advance
from loadmaster.envs.stream_scaling.state import Ints
from loadmaster.envs.stream_scaling.tuning import plan_of
from loadmaster.platform.bench import pod_scaling
from loadmaster.platform.bench.measurements import Figure, cold_starts, in_fresh_process
from loadmaster.platform.bench.simpy_stream import RecordSimulation

PAI_SIMULATOR = "public PAI simulator"
PAI_CPU_S = 9.0  # its fastest run on three nodes
THREE_NODES = {"count": 3, "gpus": 8, "gpu": "V100", "cpus": 96}
ONE_NODE = {"count": 1, "gpus": 6500, "gpu": "V100", "cpus": 150_930}
RECORDED, RECORDED_GAP_S = 3046, 217.3  # GPU jobs of the trace's public sample
MANY = 20_000
RUNS, PATIENCE_S = 10, 2.0
MEASURED_S = 1.0  # of steps of many environments at once


def gpu_scheduling(report_step: Callable[[str], None]) -> Iterator[Figure]:
    yield from cold_starts("gpu_scheduling", "GpuSchedulingSettings", "fifo-first-fit", report_step)
    # Without the trace, generated jobs are used, under another name.
    traced = bool(os.environ.get("LOADMASTER_DATA"))
    yield from three_nodes(traced, report_step)
    yield from many_jobs(traced, report_step)
    for count in (16, 64):
        report_step(f"{count} environments at once")
        yield vector_speed(count)


def three_nodes(traced: bool, report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Jobs of the trace's sample as they arrived, on 3 x 8 GPUs; the slowest policy first."""
    source: dict[str, Any] = {"workload": "pai", "arrivals": "trace"}
    if not traced:
        source |= {"workload": "pai-like", "jobs": RECORDED, "interarrival_s": RECORDED_GAP_S}
    settings = same_rules(THREE_NODES, **source)
    episode = build_episode(settings, 0)
    name = f"gpu_scheduling/{source['workload']}-3x8"
    spent = {}
    for policy in ("fifo-first-fit", "sjf-first-fit", "fifo-load-balance", "sjf-load-balance"):
        report_step(f"{policy} on 3 x 8 GPUs, {source['workload']}")
        spent[f"{name}/{policy}/cpu_s"] = cpu_s(settings, episode, policy)
    for figure, seconds in {f"{name}/cpu_s": max(spent.values()), **spent}.items():
        yield with_peer(figure, seconds, PAI_CPU_S if traced else None)


def many_jobs(traced: bool, report_step: Callable[[str], None]) -> Iterator[Figure]:
    """20,000 jobs, 1,000 a minute, on a pool of 6,500 GPUs."""
    source: dict[str, Any] = {"workload": "pai"} if traced else {"jobs": MANY}
    settings = same_rules(ONE_NODE, arrivals="per-minute", **source)
    episode = build_episode(settings, 0)
    if traced:
        episode = episode._replace(jobs=repeated(episode.jobs, MANY, settings.jobs_per_minute))
    name = f"gpu_scheduling/{'' if traced else 'pai-like-'}{MANY}-jobs"
    for ordering in ("fifo", "sjf"):
        report_step(f"{ordering}, {MANY:,} jobs on 6,500 GPUs")
        seconds = cpu_s(settings, episode, f"{ordering}-first-fit")
        yield Figure(f"{name}/{ordering}/cpu_s", seconds, "s", higher_is_better=False)


def vector_speed(count: int) -> Figure:
    """Steps per second on the small cluster, observations included, with random actions."""
    envs = GpuSchedulingVectorEnv(count, copy=False)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    # Drawn in advance, so that only the environment is timed.
    actions = [envs.action_space.sample() for _ in range(8)]
    envs.step(actions[0])
    following = cycle(actions)
    speed = count * calls_per_s(lambda: envs.step(next(following)))
    return Figure(f"gpu_scheduling/vector-{count}/steps_per_s", speed, "steps/s")


def calls_per_s(call: Callable[[], object]) -> float:
    calls, began = 0, time.thread_time()
    while (spent := time.thread_time() - began) < MEASURED_S:
        call()
        calls += 1
    return calls / spent


def same_rules(machines: dict[str, Any], **others: Any) -> GpuSchedulingSettings:
    """Settings under which both simulators give the same completion times."""
    return GpuSchedulingSettings.model_validate(
        {"machines": [machines], "interference": False, "stragglers": 0, **others}
    )


def repeated(jobs: Jobs, count: int, per_minute: int) -> Jobs:
    """Draw `count` jobs with replacement; `per_minute` of them arrive at each full minute."""
    drawn = select_jobs(jobs, np.random.default_rng(0).integers(len(jobs.job_id), size=count))
    number = np.arange(count)
    arrival_s = (60 * (number // per_minute)).astype(np.float64)
    return drawn._replace(job_id=number, arrival_s=arrival_s)


def cpu_s(settings: GpuSchedulingSettings, episode: Episode, policy: str) -> float:
    """CPU seconds of the fastest of several runs; the first may compile."""
    spent: list[float] = []
    while len(spent) < RUNS and (len(spent) < 2 or sum(spent[1:]) < PATIENCE_S):
        began = time.thread_time()
        run_baseline(settings, episode, BASELINES[policy])
        spent.append(time.thread_time() - began)
    return min(spent)


def with_peer(name: str, seconds: float, peer: float | None) -> Figure:
    return Figure(name, seconds, "s", peer, PAI_SIMULATOR if peer else "", higher_is_better=False)


# Fair policy, 50 executors, 200 TPC-H jobs at 25 s.
ORIGINAL, ORIGINAL_DECISIONS_PER_S = "Decima's simulator (2019)", 1643.0
SPARK_SCHED_SIM, SPARK_SCHED_SIM_DECISIONS_PER_S = "spark-sched-sim", 562.0
EPISODES = 20

_LONG_EPISODE = """
from pathlib import Path
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
def peak_mb(jobs):
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak of loading and compiling
    result = run_episode("fair", DagSchedulingSettings(arrivals="poisson", jobs=jobs), 0)
    assert len(result.jct_s) == jobs + 1
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
peak_mb(1_000)  # one-time allocations
print(peak_mb(10_000) - peak_mb(1_000))
"""


def measure(report_step: Callable[[str], None]) -> Iterator[Figure]:
    """All figures of this group; `report_step` is called before each one."""
    yield from dag_scheduling(report_step)
    yield from gpu_scheduling(report_step)
    yield from stream_scaling(report_step)
    yield from pod_scaling.measure(report_step)


def dag_scheduling(report_step: Callable[[str], None]) -> Iterator[Figure]:
    yield from cold_starts("dag_scheduling", "DagSchedulingSettings", "fair", report_step)
    workloads = ["tpch-like"]
    if os.environ.get("LOADMASTER_DATA"):
        workloads.append("tpch")
    for workload in workloads:
        prefix = "dag_scheduling" if workload == "tpch-like" else f"dag_scheduling/{workload}"
        for policy in ("fair", "fifo"):
            report_step(f"{policy} on {workload}")
            yield from episode_speed(prefix, workload, policy)
    for count in (16, 64):
        report_step(f"{count} environments at once")
        yield _vector_speed(count)
    report_step("10,000 jobs in one episode")
    yield Figure("dag_scheduling/10000-jobs/extra_memory_mb", in_fresh_process(_LONG_EPISODE), "MB")


def episode_speed(prefix: str, workload: str, policy: str) -> Iterator[Figure]:
    settings = DagSchedulingSettings(
        workload=workload, arrivals="poisson", jobs=200, interarrival_s=25, executors=50
    )
    bank = load_workload(settings)
    run_episode(policy, settings, 0, bank)
    began = time.thread_time()
    results: list[EpisodeResult] = [
        run_episode(policy, settings, seed, bank) for seed in range(EPISODES)
    ]
    spent = time.thread_time() - began
    peer = (ORIGINAL_DECISIONS_PER_S, ORIGINAL) if policy == "fair" else ()
    decisions, tasks = sum(r.decisions for r in results), sum(r.tasks for r in results)
    yield Figure(f"{prefix}/{policy}/decisions_per_s", decisions / spent, "decisions/s", *peer)
    yield Figure(f"{prefix}/{policy}/tasks_per_s", tasks / spent, "tasks/s")


def _vector_speed(count: int) -> Figure:
    """Steps per second, observations included; the first legal stage at full parallelism."""
    envs = DagSchedulingVectorEnv(count, copy=False, max_jobs=20, max_stages=400, max_edges=800)
    observation, _ = envs.reset(seed=0)
    actions = np.full((count, 2), envs.settings.total_executors, np.int64)

    def step() -> None:
        nonlocal observation
        actions[:, 0] = np.argmax(observation["schedulable"], axis=1)
        observation = envs.step(actions)[0]

    speed = count * calls_per_s(step)
    name = f"dag_scheduling/vector-{count}/steps_per_s"
    peer = f"{SPARK_SCHED_SIM}, one environment"
    return Figure(name, speed, "steps/s", SPARK_SCHED_SIM_DECISIONS_PER_S, peer)


SIMPY = "SimPy, every record simulated"
SIMPY_MINUTES = {"small-1": 60, "large-2": 15}  # by job, a few seconds each
STREAM_RUNS = 5


def stream_scaling(report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Task-minutes per second of a week with the plan of `static`, beside SimPy in the same run."""
    simpy = find_spec("simpy") is not None
    if not simpy:
        report_step("SimPy is not installed: no peer; expected pip install 'loadmaster[bench]'")
    for job in SIMPY_MINUTES:
        settings = StreamScalingSettings(job=job)
        setup = build_setup(settings)
        peer: tuple[float, str] | tuple[()] = ()
        if simpy:
            report_step(f"{job}: {SIMPY_MINUTES[job]} minutes in SimPy")
            peer = (simpy_speed(settings, setup), SIMPY)
        quiet = settings.model_copy(update={"metric_noise": 0.0})
        for part, own in (("", settings), ("/no-noise", quiet)):
            report_step(f"{job}: a week{part.replace('/', ', ')}")
            name = f"stream_scaling/{job}{part}/task_minutes_per_s"
            yield Figure(name, stream_speed(own, setup), "task-min/s", *peer)


def stream_speed(settings: StreamScalingSettings, setup: Setup) -> float:
    """Task-minutes per second of the fastest of several runs; the first may compile."""
    plan, minutes, fastest = static_plan(settings, setup), WARM_UP_MIN + settings.minutes, np.inf
    for _ in range(STREAM_RUNS):
        start = build_stream(settings, setup, 0)
        start.state.parallelism[:] = plan
        began = time.thread_time()
        advance(setup.tables, start.constants, start.state, minutes)
        fastest = min(fastest, time.thread_time() - began)
    return len(plan) * minutes / fastest


def simpy_speed(settings: StreamScalingSettings, setup: Setup) -> float:
    """Task-minutes per second of SimPy with the same plan.

    Its time grows with the records, so it gets the minutes whose mean load is nearest the week's.
    """
    plan, minutes = static_plan(settings, setup), SIMPY_MINUTES[settings.job]
    start = build_stream(settings, setup, 0)
    load = start.state.load
    means = np.convolve(load.mean(axis=0), np.ones(minutes) / minutes, mode="valid")
    begin = int(np.abs(means - load.mean()).argmin())
    part = np.ascontiguousarray(load[:, begin : begin + minutes])
    began = time.thread_time()
    RecordSimulation(setup.tables, start.constants, part, plan, 0).run(minutes)
    return len(plan) * minutes / (time.thread_time() - began)


def static_plan(settings: StreamScalingSettings, setup: Setup) -> Ints:
    """The plan of the rule `static`."""
    return np.array(plan_of(tuned_baseline("static", settings, setup), settings, setup), np.int64)
