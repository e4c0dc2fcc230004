"""What to replay, checked before anything runs, and the episodes themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import find_environment
from loadmaster.envs.settings import build_settings
from loadmaster.platform.replay.headline import count
from loadmaster.platform.replay.page import MAX_POLICIES

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import EpisodeResult
    from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings

# The pair that tells the most at a glance: the usual default, and what happens without sharing.
DEFAULT_POLICIES = ("fair", "fifo")


@dataclass(frozen=True)
class Recording:
    """One episode a policy, all on the same jobs."""

    results: tuple[EpisodeResult, ...]
    job_names: tuple[str, ...]  # in order of arrival
    title: str


@dataclass(frozen=True)
class Plan:
    """A recording that can be made: every name is known and every value valid."""

    environment: str
    policies: tuple[str, ...]
    seed: int
    settings: DagSchedulingSettings


def plan_recording(target: str, policies: Sequence[str], seed: int, values: dict[str, Any]) -> Plan:
    """Check a wish; an InputError names the first thing wrong with it."""
    environment = find_environment(target)
    chosen = tuple(policies) or DEFAULT_POLICIES
    for policy in chosen:
        if policy not in environment.baselines:
            raise unknown_name("policy", policy, environment.baselines)
    if len(chosen) > MAX_POLICIES:
        raise InputError(f"{len(chosen)} policies to replay; expected one, or two to compare")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"policy {chosen[0]!r} is given twice; expected two different ones")
    if seed < 0:
        raise InputError(f"--seed {seed} is negative; expected 0 or more")
    settings: Any = build_settings(environment.settings, values)
    if settings.workload not in environment.workloads:
        raise unknown_name("workload", settings.workload, environment.workloads)
    return Plan(environment.name, chosen, seed, settings)


def record(plan: Plan, on_policy: Callable[[str], None]) -> Recording:
    """Run the episodes; `on_policy` hears which policy is next."""
    from loadmaster.envs.dag_scheduling.episode import run_episode
    from loadmaster.envs.dag_scheduling.workloads import load_workload

    workload = load_workload(plan.settings)
    results = []
    for policy in plan.policies:
        on_policy(policy)
        results.append(run_episode(policy, plan.settings, plan.seed, workload, record=True))
    # The title tells the workload; a job's own name need not repeat it.
    short = [name.removeprefix(f"{workload.name}-") for name in workload.job_names]
    names = tuple(short[template] for template in results[0].template)
    return Recording(tuple(results), names, _title(plan))


def _title(plan: Plan) -> str:
    settings = plan.settings
    jobs = count(settings.total_jobs, "job")
    if settings.arrivals == "batch":
        arrivals = f"{jobs} at once"
    elif settings.load is not None:
        arrivals = f"{jobs} at load {settings.load:g}"
    else:
        arrivals = f"{jobs}, one every {settings.interarrival_s:g} s"
    executors = count(settings.total_executors, "executor")
    return f"{plan.environment} · {settings.workload} · {arrivals} · {executors} · seed {plan.seed}"
