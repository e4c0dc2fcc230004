"""What evaluation must know of an environment. The rest of this package knows no environment."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from numpy.typing import NDArray

from loadmaster.envs.compiled import cache_folder
from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.metrics import Metric
from loadmaster.envs.registry import environments
from loadmaster.envs.settings import Settings
from loadmaster.platform.systems.registry import systems

JobColumns = Mapping[str, NDArray[Any]]  # arrival_s, completion_s, jct_s, work_s, slowdown, ...
NAME_MAX = 100  # of a folder; a longer one is cut, and told apart by a digest


@dataclass(frozen=True)
class JobLabels:
    """What two of the columns of jobs mean, as charts say it."""

    work: str = "job's work, s"  # work_s
    slowdown: str = "JCT / least possible"


@dataclass(frozen=True)
class EvaluationSetup:
    """An environment with its settings fixed and its workload loaded, ready to run."""

    settings: Settings
    workload: str
    conditions: str  # in words, for titles: "20 jobs at once, 50 executors"
    metrics: tuple[Metric, ...]  # the primary one first
    run: Callable[[str, int], Any]  # policy, seed -> an episode's result; called from threads
    job_columns: Callable[[Any], JobColumns] | None = None  # None: it has no jobs to list
    job_words: JobLabels = JobLabels()
    notes: tuple[str, ...] = ()  # what a reader of the figures should know of the workload
    oracles: frozenset[str] = frozenset()  # baselines that know what no scheduler here can know
    parameters: Mapping[str, str] = field(default_factory=dict)  # of tuned policies, in words
    bank: Any = None  # the loaded workload, as learned policies of the environment take it


@dataclass(frozen=True)
class EnvironmentAdapter:
    """An environment that can be evaluated."""

    environment: str
    baselines: tuple[str, ...]
    settings: Callable[[Mapping[str, Any]], Any]  # what a user set -> settings, or an InputError
    folder_name: Callable[[Any], str]  # settings -> where results go unless told
    prepare: Callable[[Any], EvaluationSetup]  # settings -> a trial
    references: tuple[str, ...] = ()  # may be compared, but are no baselines: the optimum
    families: Mapping[str, str] = field(default_factory=dict)  # baseline -> what it is a variant of
    choice: str = "option"  # what a learned policy chooses from, in the singular
    is_compiled: Callable[[], bool] = lambda: True  # False: the first episode compiles


def find_adapter(name: str) -> EnvironmentAdapter:
    """The environment of that name or Gymnasium id, or a system's; the nearest name if neither."""
    known = environments()
    for spec in known.values():
        if name == spec.gym_id:
            name = spec.name
    trained = systems()
    if name in trained:
        if not trained[name].available:
            raise InputError(f"system {name!r} {trained[name].summary}")
        name = trained[name].environment
    if name not in known:
        raise unknown_name("system or environment", name, (*trained, *known))
    # Each environment has a module here of its own name; it is imported when it is asked for.
    system = next(one.name for one in trained.values() if one.environment == name)
    module = importlib.import_module(f"loadmaster.platform.systems.{system}.evaluation")
    return cast(EnvironmentAdapter, module.subject())


def loop_is_compiled(environment: str) -> bool:
    """The loop over an episode is compiled last: what it calls is in the cache as well."""
    return any(cache_folder().glob(f"{environment}_*/rollout.run-*.nbi"))


def joined_name(parts: Sequence[str]) -> str:
    """A folder's name; parts that differ give names that differ."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts)).strip("-.")
    if len(name) > NAME_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[:NAME_MAX]}-{digest}"
    return name
