"""Settings of an episode in words."""

from __future__ import annotations

from loadmaster.envs.gpu_scheduling.cluster import GpuType, MachineGroup
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings


def conditions(settings: GpuSchedulingSettings, recorded: int | None = None) -> str:
    """The episode in words, for titles; `recorded` is how many jobs the workload's trace has."""
    groups = settings.machine_groups
    machines = sum(group.count for group in groups)
    gpus = sum(group.count * group.gpus for group in groups)
    size = f"{_counted(machines, 'machine')} with {_counted(gpus, 'GPU')}"
    named = size if settings.machines else f"{settings.cluster} cluster: {size}"
    told = {"jobs", "arrivals", "interarrival_s", "load", "jobs_per_minute", "cluster", "machines"}
    others = [f"{name} {value}" for name, value in changed(settings) if name not in told]
    return ", ".join([f"{_jobs(settings, recorded)}, {named}", *others])


def changed(settings: GpuSchedulingSettings) -> list[tuple[str, str]]:
    """Settings away from their default, apart from those a title shows anyway."""
    shown = {"workload", "data", "cluster", "machines", "gpu_types", "max_queue", "history"}
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=shown)
    if settings.machines:
        values["machines"] = "+".join(_group(group) for group in settings.machines)
    elif settings.cluster != "small":
        values["cluster"] = settings.cluster
    if settings.gpu_types:
        values["gpu_types"] = "+".join(_gpu(gpu) for gpu in settings.gpu_types)
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in values.items()
    ]


def _jobs(settings: GpuSchedulingSettings, recorded: int | None) -> str:
    in_order = settings.arrivals in ("trace", "per-minute")
    count = settings.jobs or settings.drawn_jobs
    if recorded is not None and settings.jobs is None:
        count = recorded if in_order else min(recorded, count)
    if settings.arrivals == "batch":
        return f"{count} jobs at once"
    if settings.arrivals == "per-minute":
        return f"{count} jobs, {settings.jobs_per_minute} a minute"
    if settings.interarrival_s is not None:
        return f"{count} jobs, one every {settings.interarrival_s:g} s on average"
    if settings.arrivals == "trace" and settings.load is None and recorded is not None:
        return f"{count} jobs as recorded"
    return f"{count} jobs at load {settings.offered_load:g}"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _group(group: MachineGroup) -> str:
    """As in 3x8V100/96/4: so many machines of so many GPUs, their cores, machines in a rack."""
    return f"{group.count}x{group.gpus}{group.gpu}/{group.cpus}/{group.machines_per_rack}"


def _gpu(gpu: GpuType) -> str:
    return f"{gpu.name}/{gpu.speed:g}/{gpu.price_per_hour}/{gpu.shared_speed:g}"
