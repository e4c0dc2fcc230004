"""What to replay, checked before anything runs, and the episodes themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import environments
from loadmaster.platform.evaluation.learned import Learned, choose_learned
from loadmaster.platform.evaluation.subjects import Subject, find_subject
from loadmaster.platform.policies.find import Found, find_policy, is_bundle_or_run
from loadmaster.platform.replay.headline import count, makespan_s, mean_jct_s
from loadmaster.platform.replay.page import MAX_POLICIES
from loadmaster.platform.systems import pretrained_policies, systems

if TYPE_CHECKING:
    from loadmaster.envs.dag_scheduling.episode import EpisodeResult
    from loadmaster.envs.dag_scheduling.jobs import Workload
    from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings

# The pair that tells the most at a glance: the usual default, and what happens without sharing.
DEFAULT_POLICIES = ("fair", "fifo")
REPLAYED = "dag_scheduling"  # what the page can draw


@dataclass(frozen=True)
class Recording:
    """One episode a policy, all on the same jobs."""

    results: tuple[EpisodeResult, ...]
    job_names: tuple[str, ...]  # in order of arrival
    title: str


@dataclass(frozen=True)
class Plan:
    """A recording that can be made: every name is known and every value valid."""

    subject: Subject
    policies: tuple[str, ...]
    learned: Learned  # the bundles among them
    alone: bool  # then the baseline that does best on this sequence is shown beside
    seed: int
    settings: DagSchedulingSettings


def plan_recording(target: str, policies: Sequence[str], seed: int, values: dict[str, Any]) -> Plan:
    """Check a wish; an InputError names the first thing wrong with it.

    The target is an environment, or a policy: a run, a bundle, or a system's pretrained one.
    """
    if seed < 0:
        raise InputError(f"--seed {seed} is negative; expected 0 or more")
    shown = _policy_meant(target)
    subject = find_subject(shown.system.environment if shown else target)
    if subject.environment != REPLAYED:
        raise InputError(f"{subject.environment} has no replay; expected {REPLAYED}")
    settings = subject.settings({**_trained_on(shown, values), **values} if shown else values)
    system = systems().get(target)
    wanted = [target, *policies] if shown else list(policies)
    if not wanted and system is None:
        wanted = list(DEFAULT_POLICIES)
    names, learned = choose_learned(subject, wanted, system, settings)
    if len(names) > MAX_POLICIES:
        raise InputError(f"{len(names)} policies to replay; expected one, or two to compare")
    if len(set(names)) < len(names):
        raise InputError(f"policy {names[0]!r} is given twice; expected two different ones")
    alone = not policies and (shown is not None or system is not None)
    return Plan(subject, tuple(names), learned, alone, seed, settings)


def _policy_meant(target: str) -> Found | None:
    """The policy that the target is, if it is neither an environment nor a system."""
    known = environments()
    named = (*known, *(spec.gym_id for spec in known.values()), *systems())
    if target in named:
        return None
    if not is_bundle_or_run(target):
        names = (*named, *pretrained_policies())
        raise unknown_name("environment, system or policy", target, names)
    return find_policy(target)


def _trained_on(shown: Found, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings a policy was trained with; a load would hide the gap that somebody sets."""
    trained = shown.policies.settings(shown.manifest).model_dump(exclude_unset=True)
    return {k: v for k, v in trained.items() if k != "load" or "interarrival_s" not in values}


def record(plan: Plan, on_policy: Callable[[str], None]) -> Recording:
    """Run the episodes; `on_policy` hears which policy is next."""
    from loadmaster.envs.dag_scheduling.workloads import load_workload

    workload = load_workload(plan.settings)
    results = []
    for policy in plan.policies:
        on_policy(policy)
        results.append(_episode(plan, policy, workload))
    if plan.alone:
        on_policy("the baselines")
        results.append(_best_baseline(plan, workload))
    # The title tells the workload; a job's own name need not repeat it.
    short = [name.removeprefix(f"{workload.name}-") for name in workload.job_names]
    names = tuple(short[template] for template in results[0].template)
    return Recording(tuple(results), names, _title(plan))


def _episode(plan: Plan, policy: str, workload: Workload, recorded: bool = True) -> EpisodeResult:
    from loadmaster.envs.dag_scheduling.episode import run_episode

    if policy not in plan.learned:
        return run_episode(policy, plan.settings, plan.seed, workload, record=recorded)
    learned = plan.learned[policy].policy
    result = learned.run(plan.settings, plan.seed, workload, record=recorded)
    named: EpisodeResult = replace(result, policy=policy)
    return named


def _best_baseline(plan: Plan, workload: Workload) -> EpisodeResult:
    """The strongest opponent on this very sequence."""
    measure = makespan_s if plan.settings.objective == "makespan" else mean_jct_s

    def cost(policy: str) -> float:
        figure = measure(_episode(plan, policy, workload, recorded=False))
        return math.inf if math.isnan(figure) else figure

    return _episode(plan, min(plan.subject.baselines, key=cost), workload)


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
    name = plan.subject.environment
    return f"{name} · {settings.workload} · {arrivals} · {executors} · seed {plan.seed}"
