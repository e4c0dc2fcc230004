"""Settings of an episode in words."""

from __future__ import annotations

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings


def conditions(settings: DagSchedulingSettings) -> str:
    """The episode in words, for titles."""
    if settings.arrivals == "batch":
        parts = [f"{settings.jobs_at_start} jobs at once"]
    elif settings.load is not None:
        parts = [f"{settings.total_jobs} jobs at load {settings.load:g}"]
    else:
        parts = [f"{settings.total_jobs} jobs, one every {settings.interarrival_s:g} s on average"]
    parts.append(f"{settings.total_executors} executors")
    told = {"arrivals", "jobs", "initial_jobs", "load", "interarrival_s", "executors"}
    parts += [f"{name} {value}" for name, value in changed(settings) if name not in told]
    return ", ".join(parts)


def changed(settings: DagSchedulingSettings) -> list[tuple[str, str]]:
    """Settings away from their default, apart from those a title shows anyway."""
    shown = {"workload", "data", "max_jobs", "max_stages", "max_edges"}
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=shown)
    classes = settings.executor_classes
    if classes:
        values.pop("executors", None)  # they follow
        values["executor_classes"] = "+".join(f"{c.count}x{c.cpu:g}/{c.memory:g}" for c in classes)
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in values.items()
    ]
