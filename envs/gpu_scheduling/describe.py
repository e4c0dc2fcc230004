"""Descriptions of settings for titles and reports."""

from loadmaster.envs.errors import counted
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, GpuType, MachineGroup
from loadmaster.envs.settings import changed_in_words


def describe_episode(settings: GpuSchedulingSettings, recorded: int | None = None) -> str:
    """Describe an episode; `recorded` is the number of jobs in the workload's trace."""
    groups = settings.machine_groups
    machines = sum(group.count for group in groups)
    gpus = sum(group.count * group.gpus for group in groups)
    size = f"{counted(machines, 'machine')} with {counted(gpus, 'GPU')}"
    named = size if settings.machines else f"{settings.cluster} cluster: {size}"
    included = {"jobs", "arrivals", "interarrival_s", "load", "jobs_per_minute"}
    included |= {"cluster", "machines"}
    others = [
        f"{name} {value}" for name, value in changed_settings(settings) if name not in included
    ]
    return ", ".join([f"{_jobs(settings, recorded)}, {named}", *others])


def changed_settings(settings: GpuSchedulingSettings) -> list[tuple[str, str]]:
    """Names and values of changed settings, apart from those in the title."""
    shown = {"workload", "data", "calibration", "cluster", "machines", "gpu_types"}
    shown |= {"max_queue", "history"}
    machines = "+".join(_group(group) for group in settings.machines)
    named = settings.cluster if not machines and settings.cluster != "small" else ""
    gpu_types = "+".join(_gpu(gpu) for gpu in settings.gpu_types)
    return changed_in_words(settings, shown, machines=machines, cluster=named, gpu_types=gpu_types)


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


def _group(group: MachineGroup) -> str:
    """E.g. 3x8V100/96/4: machines, GPUs of each and their type, cores, machines per rack."""
    return f"{group.count}x{group.gpus}{group.gpu}/{group.cpus}/{group.machines_per_rack}"


def _gpu(gpu: GpuType) -> str:
    return f"{gpu.name}/{gpu.speed:g}/{gpu.price_per_hour}/{gpu.shared_speed:g}"
