"""Short descriptions of an episode's settings, for titles, and of decisions."""

from loadmaster.envs.errors import counted
from loadmaster.envs.pod_scaling.settings import PodScalingSettings, Shift
from loadmaster.envs.pod_scaling.state import CPU, MEMORY, REPLICAS, Floats
from loadmaster.envs.settings import changed_in_words

_DESCRIBED = frozenset({"application", "steps", "shift"})


def describe_episode(settings: PodScalingSettings, applications: int) -> str:
    """Describe applications, length and every other setting that was changed."""
    drawn = f"application {settings.application}"
    if applications > 1:
        drawn = f"{counted(applications, 'application')} ({settings.application})"
    parts = [drawn, counted(settings.steps, "control step")]
    parts += [
        f"{name} {value}" for name, value in changed_settings(settings) if name not in _DESCRIBED
    ]
    parts += [describe_shift(shift) for shift in settings.shift]
    return ", ".join(parts)


def changed_settings(settings: PodScalingSettings) -> list[tuple[str, str]]:
    """Names and values of settings away from their defaults, except those titles always show."""
    shift = " and ".join(map(describe_shift, settings.shift))
    return changed_in_words(settings, {"workload", "data", "calibration"}, shift=shift)


def describe_shift(shift: Shift) -> str:
    """What changes, and when."""
    if shift.kind == "application":
        return f"application {shift.value} from step {shift.step}"
    amount = shift.value if shift.value in ("high", "low") else f"x{float(shift.value):g}"
    return f"{shift.kind} {amount} from step {shift.step}"


def describe_plan(before: Floats, after: Floats) -> str:
    """What a decision changes; both are (PLAN_COLUMNS,) plans."""
    parts = [
        f"{name} {old:g} to {new:g}{unit}"
        for name, old, new, unit in (
            ("replicas", before[REPLICAS], after[REPLICAS], ""),
            ("CPU", round(1000 * before[CPU]), round(1000 * after[CPU]), "m"),
            ("memory", round(before[MEMORY]), round(after[MEMORY]), " MiB"),
        )
        if old != new
    ]
    if not parts:
        held = f"{round(1000 * before[CPU])}m and {round(before[MEMORY])} MiB"
        return f"held {counted(int(before[REPLICAS]), 'replica')} with {held}"
    return "changed " + ", ".join(parts)
