"""What to replay, checked before anything runs, and the episodes themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import environments
from loadmaster.models.manifest import pretrained_policies
from loadmaster.platform.evaluation.adapters import find_adapter
from loadmaster.platform.evaluation.learned import Learned, choose_learned
from loadmaster.platform.replay.adapters import ReplayAdapter, find_replay_adapter
from loadmaster.platform.replay.page import MAX_POLICIES
from loadmaster.platform.systems.bundle_ref import BundleRef, find_policy, is_bundle_or_run
from loadmaster.platform.systems.registry import systems


@dataclass(frozen=True)
class Recording:
    """One episode a policy, all on the same jobs."""

    scene: ReplayAdapter
    results: tuple[Any, ...]  # outcomes of the scene
    job_names: tuple[str, ...]  # in order of arrival
    title: str


@dataclass(frozen=True)
class Plan:
    """A recording that can be made: every name is known and every value valid."""

    scene: ReplayAdapter
    policies: tuple[str, ...]
    learned: Learned  # the bundles among them
    alone: bool  # then the baseline that does best on this sequence is shown beside
    seed: int
    settings: Any  # of the environment


def plan_recording(target: str, policies: Sequence[str], seed: int, values: dict[str, Any]) -> Plan:
    """Check a wish; an InputError names the first thing wrong with it.

    The target is an environment, or a policy: a run, a bundle, or a system's pretrained one.
    """
    if seed < 0:
        raise InputError(f"--seed {seed} is negative; expected 0 or more")
    shown = _policy_meant(target)
    subject = find_adapter(shown.system.environment if shown else target)
    scene = find_replay_adapter(subject.environment)
    settings = subject.settings({**_trained_on(shown, values), **values} if shown else values)
    system = systems().get(target)
    wanted = [target, *policies] if shown else list(policies)
    if not wanted and system is None:
        wanted = list(scene.default_policies)
    names, learned = choose_learned(subject, wanted, system, settings)
    if len(names) > MAX_POLICIES:
        raise InputError(f"{len(names)} policies to replay; expected one, or two to compare")
    if len(set(names)) < len(names):
        raise InputError(f"policy {names[0]!r} is given twice; expected two different ones")
    alone = not policies and (shown is not None or system is not None)
    return Plan(scene, tuple(names), learned, alone, seed, settings)


def check_picture(plan: Plan) -> None:
    """Refuse the wish for a picture of decisions where nobody could tell any."""
    if plan.scene.picture is None:
        raise InputError(f"--picture cannot show {plan.scene.environment}; expected gpu_scheduling")
    if not plan.learned:
        raise InputError(
            "--picture shows decisions of a learned policy; expected one by --policy, or a run or "
            "a bundle as TARGET"
        )


def _policy_meant(target: str) -> BundleRef | None:
    """The policy that the target is, if it is neither an environment nor a system."""
    known = environments()
    named = (*known, *(spec.gym_id for spec in known.values()), *systems())
    if target in named:
        return None
    if not is_bundle_or_run(target):
        names = (*named, *pretrained_policies())
        raise unknown_name("environment, system or policy", target, names)
    return find_policy(target)


def _trained_on(shown: BundleRef, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings a policy was trained with; a load would hide the gap that somebody sets."""
    trained = shown.policies.settings(shown.manifest).model_dump(exclude_unset=True)
    return {k: v for k, v in trained.items() if k != "load" or "interarrival_s" not in values}


def record(plan: Plan, on_policy: Callable[[str], None]) -> Recording:
    """Run the episodes; `on_policy` hears which policy is next."""
    scene = plan.scene
    workload = scene.load(plan.settings)
    results = []
    for policy in plan.policies:
        on_policy(policy)
        results.append(_episode(plan, policy, workload))
    if plan.alone:
        on_policy("the baselines")
        results.append(_best_baseline(plan, workload))
    names = scene.job_names(workload, results[0])
    title = scene.title(plan.settings, plan.seed, workload)
    return Recording(scene, tuple(results), names, title)


def _episode(plan: Plan, policy: str, workload: Any, recorded: bool = True) -> Any:
    learned = plan.learned[policy].policy if policy in plan.learned else None
    return plan.scene.run(policy, learned, plan.settings, plan.seed, workload, recorded)


def _best_baseline(plan: Plan, workload: Any) -> Any:
    """The strongest opponent on this very sequence."""

    def cost(policy: str) -> float:
        figure = plan.scene.cost(plan.settings, _episode(plan, policy, workload, recorded=False))
        return math.inf if math.isnan(figure) else figure

    return _episode(plan, min(plan.scene.opponents(plan.settings), key=cost), workload)
