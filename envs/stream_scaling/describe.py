"""Short descriptions of an episode's settings, for titles, and of decisions."""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import counted
from loadmaster.envs.settings import changed_in_words
from loadmaster.envs.stream_scaling.jobs import Job
from loadmaster.envs.stream_scaling.settings import DAY_MIN, Fault, StreamScalingSettings

_HOUR_MIN = 60


def describe_episode(settings: StreamScalingSettings, job: Job) -> str:
    """Describe job, length and every other setting that was changed."""
    days, hours = settings.minutes / DAY_MIN, settings.minutes / _HOUR_MIN
    length = f"{days:g} days" if days >= 2 else f"{hours:g} hours"
    parts = [f"{job.name} ({len(job.names)} tasks)", length]
    described = {"job", "minutes", "faults"}
    parts += [
        f"{name} {value}" for name, value in changed_settings(settings) if name not in described
    ]
    parts += [describe_fault(fault) for fault in settings.faults]
    return ", ".join(parts)


def changed_settings(settings: StreamScalingSettings) -> list[tuple[str, str]]:
    """Names and values of settings away from their defaults, except those titles always show."""
    faults = " and ".join(map(describe_fault, settings.faults))
    return changed_in_words(settings, {"workload", "data", "calibration"}, faults=faults)


def describe_fault(fault: Fault) -> str:
    """What happens, where and when."""
    task, span = fault.task, f"in minutes {fault.begin} to {fault.end}"
    if fault.kind == "spike":
        return f"load of {task or 'all sources'} x{fault.factor:g} {span}"
    if fault.kind == "silent-source":
        return f"{task or 'the largest source'} silent {span}"
    if fault.kind == "lost-instance":
        return f"an instance of {task or 'the largest task'} lost {span}"
    return f"service time of {task or 'the largest task'} grows to x{fault.factor:g} {span}"


def describe_plan(before: NDArray[np.int64], after: NDArray[np.int64]) -> str:
    """What a decision changes; both are (N,) instances."""
    changed = int((before != after).sum())
    if not changed:
        return f"held {before.sum()} instances"
    tasks = counted(changed, "task")
    return f"restarted the job to change {tasks}, {before.sum()} to {after.sum()} instances"
