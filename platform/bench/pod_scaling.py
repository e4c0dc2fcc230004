"""Speed of the simulator of pods, and its p99, beside a model in SimPy in the same run.

An application-step is an interval of 15 seconds. Times are of this thread's CPU, of the fastest of
several runs over a fixed number of steps.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec

import numpy as np

from loadmaster.envs.pod_scaling.baselines import BASELINES
from loadmaster.envs.pod_scaling.baselines.memory import new_rule_state
from loadmaster.envs.pod_scaling.episode import Setup, build_episode, build_setup
from loadmaster.envs.pod_scaling.episode_runner import warm_up
from loadmaster.envs.pod_scaling.rollout import run
from loadmaster.envs.pod_scaling.settings import (
    INTERVAL_S,
    RATES,
    STEP_INTERVALS,
    WARM_UP_STEPS,
    PodScalingSettings,
    Routing,
)
from loadmaster.envs.pod_scaling.simulator import advance
from loadmaster.envs.pod_scaling.state import P99_S
from loadmaster.envs.pod_scaling.vector_env import PodScalingVectorEnv
from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.simpy_pods import WARM_UP_S, RequestSimulation

SIMPY = "SimPy, every request simulated"
APPLICATION = "json2yaml+webServe"
REQUESTS_PER_S, REPLICAS, CORES = 50.0, 4, 1.0  # a load of 0.56
STEPS, RUNS = 5000, 5
ENVIRONMENTS, VECTOR_STEPS = 64, 1000
SIMPY_S = 600.0
QUEUES: tuple[tuple[str, Routing], ...] = (
    ("ps", "random"), ("fcfs", "random"), ("ps", "two-choices"), ("fcfs", "two-choices"),
)  # fmt: skip
P99_LOADS = 0.5, 0.8
P99_SIMULATED_S, P99_SEEDS = 1000.0, range(1, 5)  # of SimPy, whose p99 varies


def measure(report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Application-steps per second under several rules; the p99 beside SimPy's."""
    simpy = find_spec("simpy") is not None
    peer: tuple[float, str] | tuple[()] = ()
    if simpy:
        report_step(f"{SIMPY_S:g} seconds of {REQUESTS_PER_S:g} requests/s in SimPy")
        peer = (simpy_speed(), SIMPY)
    else:
        report_step("SimPy is not installed: no peer; expected pip install 'loadmaster[bench]'")
    for rule in ("static", "hpa", "mpa", "random"):
        report_step(f"{rule}: {STEPS} control steps")
        name = f"pod_scaling/{rule}/app_steps_per_s"
        yield Figure(name, rule_speed(rule), "app-steps/s", *peer)
    report_step(f"{ENVIRONMENTS} environments at once")
    yield Figure(f"pod_scaling/vector-{ENVIRONMENTS}/steps_per_s", vector_speed(), "steps/s")
    for discipline, routing in QUEUES if simpy else ():
        for load in P99_LOADS:
            report_step(f"p99 at a load of {load:g}, {discipline}, {routing}")
            own, requests = compare_p99(discipline, load, P99_SIMULATED_S, P99_SEEDS, routing)
            kind = discipline if routing == "random" else f"{discipline}-{routing}"
            name = f"pod_scaling/{kind}-load-{load:g}/p99_ms"
            yield Figure(name, 1000 * own, "ms", 1000 * requests, SIMPY, higher_is_better=False)


def steady(
    discipline: str, rate: float, steps: int, routing: Routing = "random"
) -> tuple[PodScalingSettings, Setup]:
    """A constant load on a fixed plan, without quotas, which SimPy's model has not."""
    settings = build_settings(
        PodScalingSettings,
        {
            "application": APPLICATION, "workload": "toy", "load_scale": rate / RATES["high"],
            "initial_replicas": REPLICAS, "initial_cpu_m": 1000 * CORES, "steps": steps,
            "discipline": discipline, "throttling": False, "routing": routing,
        },
    )  # fmt: skip
    return settings, build_setup(settings)


def rule_speed(rule: str) -> float:
    """Application-steps per second of the fastest run; the first may compile."""
    settings = build_settings(
        PodScalingSettings,
        {
            "application": APPLICATION, "steps": STEPS, "load_scale": REQUESTS_PER_S / RATES["high"]
        },
    )  # fmt: skip
    setup, fastest = build_setup(settings), math.inf
    baseline = BASELINES[rule]
    for _ in range(RUNS):
        state = build_episode(settings, setup, 0).state
        warm_up(setup.constants, state)
        memory = new_rule_state(state)
        began = time.thread_time()
        run(baseline.rule, baseline.values, setup.constants, state, memory)
        fastest = min(fastest, time.thread_time() - began)
    return STEPS * STEP_INTERVALS / fastest


def vector_speed() -> float:
    """Control steps per second with random actions; observations and new episodes are counted."""
    envs = PodScalingVectorEnv(ENVIRONMENTS, copy=False)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(8)]
    envs.step(actions[0])
    began = time.thread_time()
    for step in range(VECTOR_STEPS):
        envs.step(actions[step % len(actions)])
    return ENVIRONMENTS * VECTOR_STEPS / (time.thread_time() - began)


def simpy_speed() -> float:
    """Application-steps per second of SimPy with a fixed plan."""
    _, setup = steady("ps", REQUESTS_PER_S, 1)
    model = RequestSimulation(setup.applications[0], REQUESTS_PER_S, REPLICAS, CORES, "ps", 0)
    began = time.thread_time()
    model.run(SIMPY_S)
    return SIMPY_S / INTERVAL_S / (time.thread_time() - began)


def compare_p99(
    discipline: str,
    load: float,
    seconds: float,
    seeds: Iterable[int],
    routing: Routing = "random",
) -> tuple[float, float]:
    """The p99 at a load by the compiled simulator, and by SimPy as a mean over seeds, in s."""
    _, setup = steady(discipline, REQUESTS_PER_S, 1)
    application = setup.applications[0]
    rate = load * REPLICAS * CORES / application.cpu_s
    settings, setup = steady(discipline, rate, 1, routing)
    state = build_episode(settings, setup, 0).state
    state.levels[:] = math.log(100)  # the p99 itself, not that of a step's requests
    advance(setup.constants, state, WARM_UP_STEPS * STEP_INTERVALS)
    own = float(state.outcome[WARM_UP_STEPS - 1, P99_S])
    found = []
    for seed in seeds:
        model = RequestSimulation(application, rate, REPLICAS, CORES, discipline, seed, routing)
        model.run(WARM_UP_S + seconds)
        found.append(np.percentile(model.latencies_s, 99))
    return own, float(np.mean(found))
