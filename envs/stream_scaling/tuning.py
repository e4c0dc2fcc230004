"""Candidates of `loadmaster calibrate` for the rules with parameters, and their score, the reward.

A rule starts from a coarse grid, and its best candidate moves by one value of one parameter at a
time. The static plan starts from plans for several loads, and moves by one instance of one task or
chain.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from loadmaster.envs.calibration import Move, ParameterSpace, Tuning, TuningProblem
from loadmaster.envs.stream_scaling.baselines import BASELINES, STATIC, Baseline
from loadmaster.envs.stream_scaling.baselines.rules import REMEMBERED
from loadmaster.envs.stream_scaling.calibration import SHIPPED_PATH, Calibration
from loadmaster.envs.stream_scaling.episode import Setup, build_setup
from loadmaster.envs.stream_scaling.rollout import run_baseline
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings

LEVELS = tuple(float(level) for level in np.geomspace(120, 600, 20).round())  # records a minute
INTERVALS, WINDOWS = (1, 5, 10, 15, 30, 60, 120, 240), (1, 5, 10, 15, 30, 60)
DOWNS = (0, 5, 30, 60, 120, 240, 360, 480, 720, 1440)
SETTLES, SHARES = (5, 10, 15, 30, 60), (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9)

_TIMES = {"interval_min": INTERVALS, "window_min": WINDOWS, "down_min": DOWNS}
SPACES = {
    "threshold": ParameterSpace(
        {
            "interval_min": (10, 30, 120), "target": (0.6, 0.7, 0.8), "low": (0.4, 0.55),
            "down_min": (0, 240),
        },
        {**_TIMES, "target": SHARES, "low": SHARES, "settle_min": SETTLES},
    ),
    "hpa": ParameterSpace(
        {
            "interval_min": (5, 15, 30, 60), "window_min": (5,), "target": (0.5, 0.6, 0.7),
            "tolerance": (0.1, 0.3), "down_min": (60, 720),
        },
        {**_TIMES, "target": SHARES, "tolerance": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)},
    ),
    "ds2": ParameterSpace(
        {
            "interval_min": (15, 60, 120), "window_min": (5, 15), "target": (0.5, 0.6, 0.7),
            "down_min": (0, 240),
        },
        {**_TIMES, "target": SHARES, "settle_min": SETTLES},
    ),
    "dhalion": ParameterSpace(
        {
            "interval_min": (5, 30), "target": (0.05, 0.2), "low": (0.1, 0.2, 0.3, 0.4),
            "down_min": (60, 240, 720),
        },
        {
            **_TIMES, "target": (0.01, 0.02, 0.05, 0.1, 0.2, 0.3), "settle_min": SETTLES,
            "low": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 0.8),
        },
    ),
    "flink": ParameterSpace(
        {
            "interval_min": (10, 30, 60), "target": (0.5, 0.6, 0.7), "tolerance": (0.1, 0.3),
            "down_min": (60, 480),
        },
        {
            **_TIMES, "target": SHARES, "tolerance": (0.05, 0.1, 0.2, 0.3, 0.4),
            "settle_min": SETTLES, "restart_min": (1, 3, 5, 10), "catch_up_min": (10, 15, 30, 60),
        },
    ),
}  # fmt: skip


def _changed(baseline: Baseline, change: Mapping[str, float]) -> Baseline | None:
    """The rule with other parameters; None if they contradict each other.

    A rule remembers REMEMBERED recommendations, so `down_min` cannot be longer than these.
    """
    parameters = {**baseline.parameters, **change}
    if parameters.get("down_min", 0) > REMEMBERED * parameters["interval_min"]:
        return None
    if baseline.name == "threshold" and parameters["low"] >= parameters["target"]:
        return None
    return replace(baseline, parameters=parameters)


def plan_of(baseline: Baseline, settings: StreamScalingSettings, setup: Setup) -> tuple[int, ...]:
    """Instances of each task that the rule chooses in the first minute."""
    minute = settings.model_copy(update={"minutes": 1})
    trace = run_baseline(baseline, minute, setup, 0, record=True).parallelism
    return tuple(trace[0].tolist()) if trace is not None else ()


def static_plans(settings: StreamScalingSettings, setup: Setup) -> list[Baseline]:
    """The different plans for a load of LEVELS; only the ratio of level and target counts."""
    static = BASELINES["static"]
    given = (replace(static, parameters={**static.parameters, "level": one}) for one in LEVELS)
    plans = dict.fromkeys(plan_of(baseline, settings, setup) for baseline in given)
    return [replace(static, plan=plan) for plan in plans]


def _shift(
    settings: StreamScalingSettings, setup: Setup, chain: int, step: int, baseline: Baseline
) -> Baseline | None:
    """One instance more or less of a chain; at the job's limit the least busy other one has less.

    None beyond the limits of the tasks.
    """
    tables = setup.tables
    plan = np.array(baseline.plan) + step * (tables.chain == chain)
    while plan.sum() > settings.max_instances:
        busy = tables.nominal * tables.service_min / np.maximum(plan - 1, 1e-9)
        busy[tables.chain == chain] = np.inf
        np.maximum.at(busy, tables.chain, busy)  # the busiest task of a chain
        plan -= tables.chain == tables.chain[busy[tables.chain].argmin()]
    if (plan < 1).any() or (plan > tables.cap).any():
        return None
    return replace(baseline, plan=tuple(plan.tolist()))


def prepare(settings: StreamScalingSettings) -> TuningProblem[Baseline]:
    """Tune for the mean reward."""
    setup = build_setup(settings)

    def moves(baseline: Baseline) -> list[Move[Baseline]]:
        if baseline.rule == STATIC:
            chains = np.unique(setup.tables.chain).tolist()
            return [
                partial(_shift, settings, setup, one, step) for one in chains for step in (1, -1)
            ]
        return SPACES[baseline.name].steps(_changed)

    def published(name: str) -> Baseline:
        baseline = BASELINES[name]
        plan = plan_of(baseline, settings, setup) if baseline.rule == STATIC else ()
        return replace(baseline, plan=plan)

    def entry(baseline: Baseline, mean: float, seeds: range) -> Calibration:
        return Calibration(
            baseline=baseline.name,
            job=setup.job.name,
            tasks=len(setup.job.tasks),
            workload=settings.workload,
            semantics=settings.semantics,
            latency_weight=settings.latency_weight,
            load_scale=settings.load_scale,
            parameters={} if baseline.plan else dict(baseline.parameters),
            plan=list(baseline.plan),
            reward=round(mean, 4),
            first_seed=seeds.start,
            seeds=len(seeds),
        )

    return TuningProblem(
        conditions=f"{setup.job.name}, {settings.workload}",
        candidates=lambda name: (
            SPACES[name].candidates(BASELINES[name], _changed)
            if name in SPACES
            else static_plans(settings, setup)
        ),
        score=lambda baseline, seed: run_baseline(baseline, settings, setup, seed).reward,
        better="higher",
        entry=entry,
        describe=_describe,
        published=published,
        moves=moves,
    )


def _describe(baseline: Baseline, reward: float) -> str:
    words = [f"{name} {value:g}" for name, value in baseline.parameters.items()]
    if baseline.plan:
        words = [f"{sum(baseline.plan)} instances"]
    return f"{', '.join(words)}: reward {reward:.4f}"


TUNING = Tuning(path=SHIPPED_PATH, tunable=("static", *SPACES), prepare=prepare)
