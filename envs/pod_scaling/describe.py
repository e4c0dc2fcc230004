"""Short descriptions of an episode's settings, for titles."""

from loadmaster.envs.errors import counted
from loadmaster.envs.pod_scaling.settings import PodScalingSettings, Shift
from loadmaster.envs.settings import in_words

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
    excluded = {"workload", "data", "calibration"}
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=excluded)
    if settings.shift:
        values["shift"] = " and ".join(map(describe_shift, settings.shift))
    return in_words(values)


def describe_shift(shift: Shift) -> str:
    """What changes, and when."""
    if shift.kind == "application":
        return f"application {shift.value} from step {shift.step}"
    amount = shift.value if shift.value in ("high", "low") else f"x{float(shift.value):g}"
    return f"{shift.kind} {amount} from step {shift.step}"
