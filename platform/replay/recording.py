"""Check what is to be replayed, and run the episodes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import environments, systems
from loadmaster.models.manifest import pretrained_policies
from loadmaster.platform.evaluation.adapters import Learned, choose_learned, find_adapter
from loadmaster.platform.replay.adapters import ReplayAdapter, find_replay_adapter
from loadmaster.platform.systems.bundle_ref import BundleRef, find_policy, is_bundle_or_run


@dataclass(frozen=True)
class Recording:
    """One episode per policy, all on the same jobs or the same load."""

    adapter: ReplayAdapter
    results: tuple[Any, ...]  # outcomes of the adapter
    item_names: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class Plan:
    """A validated request for a recording."""

    adapter: ReplayAdapter
    policies: tuple[str, ...]
    learned: Learned  # the bundles among them
    with_best_baseline: bool  # add the baseline that does best on this sequence
    seed: int
    settings: Any  # of the environment


def plan_recording(target: str, policies: Sequence[str], seed: int, values: dict[str, Any]) -> Plan:
    """Validate a request; an InputError names the first fault.

    The target is an environment, a system (for its pretrained policy), a run or a bundle.
    """
    if seed < 0:
        raise InputError(f"--seed {seed} is negative; expected 0 or more")
    bundle = _target_bundle(target)
    environment = find_adapter(bundle.system.environment if bundle else target)
    adapter = find_replay_adapter(environment.environment)
    trained_on = _training_settings(bundle, values) if bundle else {}
    settings = environment.settings({**trained_on, **values})
    system = systems().get(target)
    wanted = [target, *policies] if bundle else list(policies)
    if not wanted and system is None:
        wanted = list(adapter.default_policies)
    names, learned = choose_learned(environment, wanted, system, settings)
    if len(names) > 2:
        raise InputError(f"{len(names)} policies to replay; expected one, or two to compare")
    if len(set(names)) < len(names):
        raise InputError(f"policy {names[0]!r} is given twice; expected two different ones")
    alone = not policies and (bundle is not None or system is not None)
    return Plan(adapter, tuple(names), learned, alone, seed, settings)


def check_picture(plan: Plan) -> None:
    """Raise InputError where --picture has no decisions to draw."""
    if plan.adapter.picture is None:
        raise InputError(
            f"--picture cannot show {plan.adapter.environment}; expected gpu_scheduling, "
            "pod_scaling or stream_scaling"
        )
    if plan.adapter.picture_needs_learned and not plan.learned:
        raise InputError(
            "--picture shows decisions of a learned policy; expected one by --policy, or a run or "
            "a bundle as TARGET"
        )


def _target_bundle(target: str) -> BundleRef | None:
    """The bundle that the target names, or None for an environment or a system."""
    known = environments()
    named = (*known, *(spec.gym_id for spec in known.values()), *systems())
    if target in named:
        return None
    if not is_bundle_or_run(target):
        names = (*named, *pretrained_policies())
        raise unknown_name("environment, system or policy", target, names)
    return find_policy(target)


def _training_settings(bundle: BundleRef, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings a bundle was trained with, without the load if `values` set the interarrival."""
    trained = bundle.system.load("training_settings")(bundle.manifest)
    left_out = {"load"} if "interarrival_s" in values else set()
    return cast(dict[str, Any], trained.model_dump(exclude_unset=True, exclude=left_out))


def record(plan: Plan, on_policy: Callable[[str], None]) -> Recording:
    """Run the episodes; `on_policy` is called with each policy's name before it runs."""
    adapter = plan.adapter
    workload = adapter.load(plan.settings)
    results = []
    for policy in plan.policies:
        on_policy(policy)
        results.append(_episode(plan, policy, workload))
    if plan.with_best_baseline:
        on_policy("the baselines")
        results.append(_best_baseline(plan, workload))
    names = adapter.item_names(workload, results[0])
    title = adapter.title(plan.settings, plan.seed, workload)
    return Recording(adapter, tuple(results), names, title)


def _episode(plan: Plan, policy: str, workload: Any, recorded: bool = True) -> Any:
    learned = plan.learned[policy].policy if policy in plan.learned else None
    return plan.adapter.run(policy, learned, plan.settings, plan.seed, workload, recorded)


def _best_baseline(plan: Plan, workload: Any) -> Any:
    """The recorded episode of the baseline with the least cost on this sequence."""

    def cost(policy: str) -> float:
        figure = plan.adapter.cost(plan.settings, _episode(plan, policy, workload, recorded=False))
        return math.inf if math.isnan(figure) else figure

    return _episode(plan, min(plan.adapter.opponents(plan.settings), key=cost), workload)
