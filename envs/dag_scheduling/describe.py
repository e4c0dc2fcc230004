"""Short descriptions of an episode's settings, for titles."""

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.settings import changed_in_words


def describe_episode(settings: DagSchedulingSettings) -> str:
    """Describe jobs, arrivals, executors and every other setting that was changed."""
    if settings.arrivals == "batch":
        parts = [f"{settings.jobs_at_start} jobs at once"]
    elif settings.load is not None:
        parts = [f"{settings.total_jobs} jobs at load {settings.load:g}"]
    else:
        parts = [f"{settings.total_jobs} jobs, one every {settings.interarrival_s:g} s on average"]
    parts.append(f"{settings.total_executors} executors")
    described = {"arrivals", "jobs", "initial_jobs", "load", "interarrival_s", "executors"}
    parts += [
        f"{name} {value}" for name, value in changed_settings(settings) if name not in described
    ]
    return ", ".join(parts)


def changed_settings(settings: DagSchedulingSettings) -> list[tuple[str, str]]:
    """List (name, value) of settings away from their defaults, except those titles always show."""
    excluded = {"workload", "data", "max_jobs", "max_stages", "max_edges"}
    if settings.executor_classes:
        excluded.add("executors")  # implied by the classes
    classes = (f"{c.count}x{c.cpu:g}/{c.memory:g}" for c in settings.executor_classes)
    return changed_in_words(settings, excluded, executor_classes="+".join(classes))
