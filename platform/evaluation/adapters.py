"""The interface between evaluation and an environment; the policies and seeds that run in it."""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, cast

from numpy.typing import NDArray

from loadmaster.envs.compiled import cache_folder
from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.metrics import Metric
from loadmaster.envs.registry import SYSTEMS, System, environments, systems
from loadmaster.envs.settings import Settings, SettingsType, build_settings, parse_assignments
from loadmaster.envs.traces import find_workload
from loadmaster.models import manifest
from loadmaster.platform.systems.bundle_ref import BundleRef, best_pretrained, find_policy

JobColumns = Mapping[str, NDArray[Any]]  # arrival_s, completion_s, jct_s, work_s, slowdown, ...
Episodes = Mapping[str, Sequence[Any]]  # policy -> one result per seed, in the seeds' order
Learned = Mapping[str, BundleRef]  # by the policy's name in this evaluation, in the order given
NAME_MAX = 100  # characters of a folder name; a longer name is cut and gets a digest


@dataclass(frozen=True)
class JobLabels:
    """Axis labels for two columns of the job table."""

    work: str = "job's work, s"  # work_s
    slowdown: str = "JCT / least possible"


@dataclass(frozen=True)
class EvaluationSetup:
    """An environment with its settings fixed and its workload loaded, ready to run."""

    settings: Settings
    workload: str
    conditions: str  # for titles: "20 jobs at once, 50 executors"
    metrics: tuple[Metric, ...]  # the primary one first
    run: Callable[[str, int], Any]  # baseline, seed -> an episode's result; called from threads
    job_columns: Callable[[Any], JobColumns] | None = None  # None: results have no jobs
    job_labels: JobLabels = JobLabels()
    notes: tuple[str, ...] = ()  # lines about the workload, printed below the table
    oracles: frozenset[str] = frozenset()  # baselines that see hidden state such as durations
    parameters: Mapping[str, str] = field(default_factory=dict)  # tuned baseline -> description
    bank: Any = None  # the loaded workload, as learned policies of the environment take it


@dataclass(frozen=True)
class EnvironmentAdapter:
    """An environment that can be evaluated."""

    environment: str
    baselines: tuple[str, ...]
    settings: Callable[[Mapping[str, Any]], Any]  # raises InputError
    folder_name: Callable[[Any], str]  # settings -> name of the default output folder
    prepare: Callable[[Any], EvaluationSetup]  # settings -> setup
    references: tuple[str, ...] = ()  # compared on request only, never as baselines: the optimum
    families: Mapping[str, str] = field(default_factory=dict)  # baseline -> the family it varies
    choice: str = "option"  # what a learned policy chooses from, in the singular
    secondary: tuple[str, ...] = ()  # metrics that a matrix shows too, unless one is the primary
    is_compiled: Callable[[], bool] = lambda: True  # False: the first episode compiles


def find_adapter(name: str) -> EnvironmentAdapter:
    """Find an environment's adapter by environment name, Gymnasium id or system name."""
    return cast(EnvironmentAdapter, environment_part(environment_name(name), "evaluation"))


def environment_name(name: str) -> str:
    """Return the environment of that name, Gymnasium id or system name."""
    known, trained = environments(), systems()
    name = next((spec.name for spec in known.values() if spec.gym_id == name), name)
    if name in trained:
        if not trained[name].available:
            raise InputError(f"system {name!r} {trained[name].summary}")
        name = trained[name].environment
    if name not in known:
        raise unknown_name("system or environment", name, (*trained, *known))
    return name


def environment_part(environment: str, part: str) -> Any:
    """Load a part of the built-in system that acts in the environment."""
    having = [one for one in SYSTEMS if one.has(part)]
    system = next((one for one in having if one.environment == environment), None)
    if system is None:
        expected = " or ".join(sorted(one.environment for one in having))
        raise InputError(f"{environment} has no {part}; expected {expected}")
    return system.load(part)


def loop_is_compiled(environment: str) -> bool:
    """Whether the episode loop, which compiles last, is in numba's cache."""
    return any(cache_folder().glob(f"{environment}_*/rollout.run-*.nbi"))


def read_settings(
    kind: type[SettingsType], workloads: Mapping[str, Any], values: Mapping[str, Any]
) -> SettingsType:
    """The settings of an environment, whose `workload` must be one of its `workloads`."""
    settings = build_settings(kind, values)
    find_workload(workloads, cast(Any, settings).workload)
    return settings


def parameters_in_words(rule: Any, published: Any) -> str:
    """The parameters of a tuned rule; none where it is as published."""
    if rule == published:
        return ""
    return ", ".join(f"{name} {value:g}" for name, value in rule.parameters.items())


def folder_name_of(parts: Sequence[str]) -> str:
    """Join parts to a folder name; a digest keeps long names distinct."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts)).strip("-.")
    if len(name) > NAME_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[:NAME_MAX]}-{digest}"
    return name


def choose_learned(
    adapter: EnvironmentAdapter, wanted: Sequence[str], system: System | None, settings: Any
) -> tuple[list[str], Learned]:
    """Resolve `wanted` to policy names, and to the bundles behind those that are learned.

    Where nothing is wanted and a system is evaluated, its best fitting pretrained policy is used.
    """
    built_in = (*adapter.baselines, *adapter.references)
    names: list[str] = []
    learned: dict[str, BundleRef] = {}
    for spec in wanted:
        if spec in built_in:
            names.append(spec)
            continue
        bundle = find_policy(spec, built_in)
        _check_belongs(bundle, adapter.environment, system)
        if any(bundle.folder.samefile(other.folder) for other in learned.values()):
            continue
        name = _distinct(bundle.manifest.name, (*built_in, *learned))
        names.append(name)
        learned[name] = bundle
    if system is not None and not wanted:
        bundle = best_pretrained(system, settings)
        name = _distinct(bundle.manifest.name, built_in)
        return [name], {name: bundle}
    return names, learned


def _check_belongs(bundle: BundleRef, environment: str, system: System | None) -> None:
    if system is not None and bundle.system.name != system.name:
        raise InputError(
            f"{bundle.source} is a policy of the system {bundle.system.name!r}; "
            f"expected one of {system.name!r}"
        )
    if bundle.system.environment != environment:
        raise InputError(
            f"{bundle.source} decides in {bundle.system.environment!r}; "
            f"expected a policy for {environment!r}"
        )


def _distinct(name: str, taken: Iterable[str]) -> str:
    """The name, with a number appended where it is taken."""
    others = set(taken)
    numbered = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(each for each in numbered if each not in others)


def learned_notes(learned: Learned) -> tuple[str, ...]:
    """One line per learned policy: its origin and what it was trained on."""
    return tuple(
        f"{name}: {'pretrained' if _is_pretrained(bundle) else f'from {bundle.source}'}, "
        f"trained on {bundle.trained_on}{_preparation(bundle)}"
        for name, bundle in learned.items()
    )


def _preparation(bundle: BundleRef) -> str:
    """What a policy does before its episodes are judged, where it does anything."""
    text = getattr(bundle.policy, "preparation", "")
    return f"; {text}" if text else ""


def learned_records(learned: Learned) -> dict[str, dict[str, Any]]:
    """JSON records that identify the weights; a pretrained bundle's folder is its name alone."""
    return {
        name: {
            "system": bundle.system.name,
            "bundle": bundle.manifest.name,
            "folder": bundle.folder.name if _is_pretrained(bundle) else bundle.source,
            "sha256": bundle.manifest.sha256,
            "trained_on": bundle.trained_on,
        }
        for name, bundle in learned.items()
    }


def _is_pretrained(bundle: BundleRef) -> bool:
    return bundle.folder.parent == manifest.pretrained_folder()


def given_values(assignments: Sequence[str] | None, workload: str | None) -> dict[str, Any]:
    """Values of --set and --workload, which may both give the workload if they agree."""
    values = parse_assignments(list(assignments or ()))
    if workload is not None and values.setdefault("workload", workload) != workload:
        raise InputError(
            f"--workload {workload} and --set workload={values['workload']} disagree; "
            "expected one of the two"
        )
    return values


def choose_policies(
    adapter: EnvironmentAdapter, policies: Sequence[str], against: str | None
) -> tuple[str, ...]:
    """`policies` and the baselines named by `against`; all baselines if neither is given."""
    if against is None:
        rivals = () if policies else adapter.baselines
    elif against == "all":
        rivals = adapter.baselines
    else:
        rivals = tuple(name.strip() for name in against.split(","))
        for name in rivals:
            if name not in adapter.baselines:
                raise unknown_name("baseline", name, (*adapter.baselines, "all"))
    chosen = dict.fromkeys((*policies, *rivals))
    # The optimum runs first: an instance too large for it is rejected before anything else runs.
    return tuple(sorted(chosen, key=lambda name: name not in adapter.references))


def choose_seeds(first: int, count: int) -> tuple[int, ...]:
    if count < 1:
        raise InputError(f"--seeds is {count}; expected 1 or more")
    if first < 0:
        raise InputError(f"--first-seed is {first}; expected 0 or more")
    return tuple(range(first, first + count))


def choose_workers(count: int | None) -> int:
    if count is not None and count < 1:
        raise InputError(f"--workers is {count}; expected 1 or more")
    return count or os.cpu_count() or 1


def run_episodes(
    setup: EvaluationSetup,
    learned: Learned,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: int | None = None,
    on_episode: Callable[[], None] = lambda: None,
) -> Episodes:
    """Run every policy on every seed in threads: compiled episodes release the GIL.

    `on_episode` is called after each episode, from the calling thread.
    """
    networks = {name: bundle.policy for name, bundle in learned.items()}

    def run(policy: str, seed: int) -> Any:
        if policy in networks:
            return networks[policy].run(setup.settings, seed, setup.bank)
        return setup.run(policy, seed)

    episodes: dict[str, list[Any]] = {policy: [None] * len(seeds) for policy in policies}
    pending = [(policy, index) for index in range(len(seeds)) for policy in policies]
    # The first episode runs alone: it compiles, and invalid input fails before the rest starts.
    policy, index = pending.pop(0)
    episodes[policy][index] = run(policy, seeds[index])
    on_episode()
    with ThreadPoolExecutor(choose_workers(workers)) as threads:
        running = {threads.submit(run, p, seeds[i]): (p, i) for p, i in pending}
        try:
            for done in as_completed(running):
                policy, index = running[done]
                episodes[policy][index] = done.result()
                on_episode()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return episodes


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Turn user warnings raised inside into one note; the yielded list is filled on exit."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    texts = dict.fromkeys(str(each.message) for each in caught if each.category is UserWarning)
    for each in caught:
        if each.category is not UserWarning:
            warnings.showwarning(each.message, each.category, each.filename, each.lineno)
    if texts:
        more = f" (and {len(texts) - 1} more such warnings)" if len(texts) > 1 else ""
        notes.append(f"warning: {next(iter(texts))}{more}")
