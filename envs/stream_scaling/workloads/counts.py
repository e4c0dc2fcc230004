"""Import of counts a minute: ClarkNet, Azure, or any CSV with one row a minute."""

from loadmaster.envs.errors import InputError
from loadmaster.envs.loads import AZURE, Counts, load_named_counts, load_own_counts
from loadmaster.envs.stream_scaling.settings import WEEK_MIN, StreamScalingSettings

CLARKNET = "clarknet/clarknet_per_minute.csv"


def clarknet(settings: StreamScalingSettings) -> Counts:
    """Requests to ClarkNet's web server."""
    return _part(settings, load_named_counts(settings.workload, settings.data, CLARKNET))


def azure(settings: StreamScalingSettings) -> Counts:
    """Invocations of Azure functions."""
    return _part(settings, load_named_counts(settings.workload, settings.data, AZURE))


def custom(settings: StreamScalingSettings) -> Counts:
    """Counts of the user's file."""
    return _part(settings, load_own_counts(settings.workload, settings.data))


def _part(settings: StreamScalingSettings, whole: Counts) -> Counts:
    """The week of a trace in which episodes begin."""
    if settings.week == "all":
        return whole
    if len(whole.counts) < 2 * WEEK_MIN:
        raise InputError(
            f"setting week: {settings.week}; {whole.name} has {len(whole.counts):,} minutes, "
            f"expected {2 * WEEK_MIN:,} or more"
        )
    first = slice(0, WEEK_MIN) if settings.week == "first" else slice(WEEK_MIN, 2 * WEEK_MIN)
    return Counts(
        whole.name, f"{whole.description}, {settings.week} week", whole.counts[first],
        whole.first_minute,
    )  # fmt: skip
