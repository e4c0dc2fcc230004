"""Settings of the episodes that a trace's jobs run in: cluster, number of jobs, arrivals.

A trace that names its executors keeps its rate of arrivals. Without them the cluster's size is an
assumption, and so is the load: both are printed, and options replace them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import System, find_system
from loadmaster.platform.fitting.trace import DAG, UserTrace

SYSTEM_OF = {"dag_scheduling": "decima", "gpu_scheduling": "das"}
RESERVED = ("workload", "data", "calibration")  # settings that `fit` makes itself
EPISODE_JOBS = 100  # of a stream of DAGs
TRAINING_JOBS = 30  # at most, of a sequence to train on: short ones allow more iterations
LOAD = 0.7  # of executors whose number is not known


class Episodes(NamedTuple):
    """Settings that are given or follow from the trace, and how the rate of arrivals was found."""

    values: dict[str, Any]
    rate: str
    training_jobs: int | None = None  # the most of a sequence to train on

    def on(self, data: Path, **others: Any) -> dict[str, Any]:
        """The settings with the jobs of a part of the trace."""
        return {**self.values, "data": str(data.absolute()), **others}

    def to_train(self, data: Path, **others: Any) -> dict[str, Any]:
        """The same with sequences that are short enough to train on."""
        values = self.on(data, **others)
        jobs = values.get("jobs")
        if self.training_jobs is not None and isinstance(jobs, int):
            values["jobs"] = min(jobs, self.training_jobs)
        return values


def choose_system(name: str | None, trace: UserTrace) -> System:
    """The system named, or the one that schedules such jobs."""
    system = find_system(name or SYSTEM_OF[trace.environment])
    if system.environment != trace.environment:
        raise InputError(
            f"--system {system.name} schedules jobs of {system.environment}; a trace in format "
            f"{trace.format} expects {SYSTEM_OF[trace.environment]}"
        )
    return system


def choose_episodes(trace: UserTrace, given: Mapping[str, Any], executors: int | None) -> Episodes:
    """Merge what is given, what the trace has, and defaults for the rest."""
    for name in RESERVED:
        if name in given:
            raise InputError(f"--set {name}: fit sets it from the trace; expected another setting")
    values: dict[str, Any] = {"workload": "jobs", **trace.settings, **given}
    if trace.environment == DAG:
        return _dag_episodes(trace, values, executors)._replace(training_jobs=TRAINING_JOBS)
    if executors is not None:
        raise InputError(
            "--executors is for DAGs of stages; expected --set cluster=... or machines=... for "
            "GPU jobs"
        )
    return _with_rate(trace, values, known="machines" in values)


def _dag_episodes(trace: UserTrace, values: dict[str, Any], executors: int | None) -> Episodes:
    if executors is not None:
        if "executors" in values or "executor_classes" in values:
            raise InputError("--executors and --set executors; expected one of the two")
        if executors < 1:
            raise InputError(f"--executors is {executors}; expected 1 or more")
        values["executors"] = executors
    elif trace.slots is not None and "executor_classes" not in values:
        values.setdefault("executors", trace.slots)
    values.setdefault("arrivals", "poisson" if trace.mean_gap_s else "batch")
    if values["arrivals"] == "batch":
        return Episodes(values, "all jobs at once")
    values.setdefault("jobs", EPISODE_JOBS)
    known = "executors" in values or "executor_classes" in values
    if not known and not {"load", "interarrival_s"} & set(values):
        values["load"] = LOAD
        return Episodes(values, f"load {LOAD:g}, as the trace has no executors (--executors N)")
    return _with_rate(trace, values, known)


def _with_rate(trace: UserTrace, values: dict[str, Any], known: bool) -> Episodes:
    if {"load", "interarrival_s"} & set(values) or values.get("arrivals") == "batch":
        return Episodes(values, "arrivals as set")
    if values.get("arrivals") == "trace" and known:
        return Episodes(values, "arrivals as recorded")
    if not known or not trace.mean_gap_s:
        return Episodes(values, "the cluster's default load, as the trace has no machines")
    values["interarrival_s"] = round(trace.mean_gap_s, 3)
    return Episodes(values, f"a job every {trace.mean_gap_s:.4g} s, as recorded")
