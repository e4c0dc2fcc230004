"""Episodes: application, load and random numbers, drawn by the seed, and their results."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmaster.envs.loads import Load
from loadmaster.envs.pod_scaling.application_files import load_applications
from loadmaster.envs.pod_scaling.applications import Application
from loadmaster.envs.pod_scaling.quantile_table import CORES, LEVELS, LOADS, load_table
from loadmaster.envs.pod_scaling.settings import (
    INTERVAL_S,
    RATES,
    STEP_INTERVALS,
    STEP_S,
    WARM_UP_STEPS,
    PodScalingSettings,
)
from loadmaster.envs.pod_scaling.state import (
    CPU,
    CPU_S,
    EMPTY_SINCE,
    HORIZON,
    KEY,
    MEMORY,
    MEMORY_MIB,
    NEVER,
    NODE_CPU,
    NODE_MEMORY,
    NODE_READY_AT,
    NOW,
    P99_S,
    PRESERVED,
    REPLICAS,
    REQUEST_MIB,
    REWARD,
    S_ARRIVED,
    S_CORES,
    S_CPU_USE,
    S_LOST,
    S_MEMORY_USE,
    S_MIB,
    S_OOMS,
    S_PODS,
    S_RESTARTS,
    S_SERVED,
    S_TIMED_OUT,
    S_VIOLATED,
    SLO,
    WAITING,
    Floats,
    Ints,
    SimConstants,
    SimState,
    app_row,
    new_tables,
)
from loadmaster.envs.pod_scaling.workloads import load_workload

PEAK_SAMPLES = 20.0  # independent numbers of requests in a pod, in an interval
INITIAL_CORES, INITIAL_USE, INITIAL_REPLICAS = 1.0, 0.5, 2
INITIAL_SPARE = 1.1  # memory, relative to that of all workers


class Setup(NamedTuple):
    """What all episodes with the same settings share."""

    applications: tuple[Application, ...]
    shifted: tuple[tuple[Application, ...], ...]  # by shift: the applications it changes to
    load: Load
    constants: SimConstants


class Episode(NamedTuple):
    application: Application  # of its begin
    state: SimState


@dataclass(frozen=True)
class EpisodeResult:
    """An episode from its first decision on; arrays are by control step."""

    policy: str
    seed: int
    application: str
    p99_s: Floats
    slo_s: Floats
    preserved: Floats  # SP
    arrived: Floats  # requests, as the next five
    served: Floats
    timed_out: Floats
    lost: Floats
    violated: Floats  # expected number above the SLO, with those that timed out or were lost
    waiting: Floats  # at the end
    cpu_use: Floats  # share of the limits
    memory_use: Floats
    replicas: Floats  # pods on nodes
    cores: Floats  # limits of all of them
    mib: Floats
    restarts: Floats
    ooms: Floats
    rewards: Floats

    @property
    def reward(self) -> float:
        """Mean of a step."""
        return float(self.rewards.mean()) if len(self.rewards) else 0.0


def build_setup(settings: PodScalingSettings, applications: tuple[Application, ...] = ()) -> Setup:
    found = applications or load_applications(settings.application, settings.data)
    shifted = tuple(
        load_applications(shift.value, settings.data) if shift.kind == "application" else ()
        for shift in settings.shift
    )
    return Setup(found, shifted, load_workload(settings), constants_of(settings))


def constants_of(settings: PodScalingSettings) -> SimConstants:
    low = (settings.min_cpu_m / 1000, settings.min_memory_mib, settings.min_replicas)
    high = (settings.max_cpu_m / 1000, settings.max_memory_mib, settings.max_replicas)
    return SimConstants(
        low=np.array(low, np.float64),
        high=np.array(high, np.float64),
        quantiles=load_table(settings.discipline),
        levels=np.array(LEVELS),
        loads=np.array(LOADS),
        cores=np.array(CORES),
        request_share=settings.request_share,
        throttling=settings.throttling,
        two_choices=settings.routing == "two-choices",
        timeout_s=settings.timeout_s,
        concurrency=settings.concurrency,
        in_place=settings.resize == "in-place",
        tolerance=settings.resize_tolerance,
        max_unavailable=settings.max_unavailable,
        start_sigma=settings.start_sigma,
        readiness_s=settings.readiness_s,
        backoff_s=settings.backoff_s,
        node_cores=settings.node_cpu_m / 1000,
        node_mib=settings.node_memory_mib,
        min_nodes=settings.nodes,
        node_start_s=settings.node_start_s,
        slo_weight=settings.slo_weight,
        use_weight=settings.use_weight,
        discrete=settings.actions == "discrete",
    )


def build_episode(settings: PodScalingSettings, setup: Setup, seed: int) -> Episode:
    """The episode of `seed`, before its first interval."""
    rng = np.random.default_rng(seed)
    steps = WARM_UP_STEPS + settings.steps
    first = setup.applications[int(rng.integers(len(setup.applications)))]
    drawn, app_of = _applications(settings, setup, first, rng)
    counts, _ = setup.load.draw(steps, rng)
    factor = np.full(steps, settings.load_scale)
    for shift in settings.shift:
        if shift.kind == "load":
            level = RATES.get(shift.value)
            change = level / RATES[settings.load] if level is not None else float(shift.value)
            factor[WARM_UP_STEPS + shift.step :] *= change
    requests = np.floor(counts * factor + rng.random(steps)).astype(np.int64)
    intervals = steps * STEP_INTERVALS
    tables = new_tables(steps, settings.max_replicas, settings.max_nodes)
    tables["clock"][HORIZON] = intervals
    tables["clock"][KEY] = rng.integers(1 << 40)
    missing = rng.random(intervals) < settings.missing_metrics
    state = SimState(
        **tables,  # type: ignore[arg-type]
        apps=np.array([app_row(application) for application in drawn]),
        app_of=app_of,
        arrivals=_split(requests),
        rates=requests / STEP_S,
        levels=_order_levels(requests, rng),
        phases=rng.random(steps),
        peaks=np.maximum(math.log(PEAK_SAMPLES) + rng.gumbel(size=intervals), 0.5),
        delays=rng.integers(1, STEP_INTERVALS + 1, intervals),
        missing=np.where(missing, np.ceil(4 * rng.random(intervals)) / 4, 0.0),
    )
    _start_pods(settings, setup.constants, state)
    return Episode(drawn[0], state)


def _applications(
    settings: PodScalingSettings, setup: Setup, first: Application, rng: np.random.Generator
) -> tuple[list[Application], Ints]:
    """The applications of an episode, one more for each shift, and which one each step has."""
    payload = settings.payload
    drawn, app_of = (
        [first.with_payload(payload)],
        np.zeros(WARM_UP_STEPS + settings.steps, np.int64),
    )
    base = first
    for shift, others in zip(settings.shift, setup.shifted, strict=True):
        if shift.kind == "payload":
            payload *= float(shift.value)
        elif others:
            base = others[int(rng.integers(len(others)))]
        drawn.append(base.with_payload(payload))
        app_of[WARM_UP_STEPS + shift.step :] = len(drawn) - 1
    return drawn, app_of


def _split(requests: Ints) -> Ints:
    """(intervals,) the requests of each step, spread evenly over its intervals."""
    place = np.arange(STEP_INTERVALS + 1)
    bounds = requests[:, None] * place[None] // STEP_INTERVALS
    return np.ascontiguousarray(np.diff(bounds, axis=1).ravel())


def _order_levels(requests: Ints, rng: np.random.Generator) -> Floats:
    """(steps,) levels of the p99 among so many requests: an order statistic.

    The share of all requests above the k-th of n is a beta variable, k = ceil(0.99 n).
    """
    count = np.maximum(requests, 1)
    above = count // 100 + 1
    return -np.log(rng.beta(above, count - above + 1))


def _start_pods(settings: PodScalingSettings, constants: SimConstants, state: SimState) -> None:
    """Write the first plan and the nodes that hold it."""
    app, plan = state.apps[0], state.plan
    rate = state.arrivals[: WARM_UP_STEPS * STEP_INTERVALS].mean() / INTERVAL_S
    cores = settings.initial_cpu_m
    plan[CPU] = INITIAL_CORES if cores is None else cores / 1000
    plan[CPU] = np.clip(plan[CPU], constants.low[CPU], constants.high[CPU])
    mib = INITIAL_SPARE * (app[MEMORY_MIB] + app[REQUEST_MIB] * settings.concurrency)
    plan[MEMORY] = settings.initial_memory_mib or np.clip(
        mib, constants.low[MEMORY], constants.high[MEMORY]
    )
    replicas = max(math.ceil(rate * app[CPU_S] / (INITIAL_USE * plan[CPU])), INITIAL_REPLICAS)
    plan[REPLICAS] = settings.initial_replicas or np.clip(
        replicas, constants.low[REPLICAS], constants.high[REPLICAS]
    )
    share = settings.request_share
    fit = min(constants.node_cores / plan[CPU], constants.node_mib / plan[MEMORY]) / share
    nodes = max(settings.nodes, math.ceil(plan[REPLICAS] / max(math.floor(fit + 1e-9), 1)))
    state.nodes[:, NODE_READY_AT] = NEVER
    state.nodes[:nodes, NODE_READY_AT] = 0.0
    state.nodes[:, NODE_CPU] = constants.node_cores
    state.nodes[:, NODE_MEMORY] = constants.node_mib
    state.nodes[:, EMPTY_SINCE] = NEVER


def episode_result(
    state: SimState, application: Application, policy: str, seed: int
) -> EpisodeResult:
    """The result so far."""
    rows = state.outcome[WARM_UP_STEPS : int(state.clock[NOW]) // STEP_INTERVALS].copy()
    return EpisodeResult(
        policy=policy,
        seed=seed,
        application=application.name,
        p99_s=rows[:, P99_S],
        slo_s=rows[:, SLO],
        preserved=rows[:, PRESERVED],
        arrived=rows[:, S_ARRIVED],
        served=rows[:, S_SERVED],
        timed_out=rows[:, S_TIMED_OUT],
        lost=rows[:, S_LOST],
        violated=rows[:, S_VIOLATED],
        waiting=rows[:, WAITING],
        cpu_use=rows[:, S_CPU_USE],
        memory_use=rows[:, S_MEMORY_USE],
        replicas=rows[:, S_PODS],
        cores=rows[:, S_CORES],
        mib=rows[:, S_MIB],
        restarts=rows[:, S_RESTARTS],
        ooms=rows[:, S_OOMS],
        rewards=rows[:, REWARD],
    )
