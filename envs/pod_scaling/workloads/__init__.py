"""Registry of loads: requests a minute."""

from collections.abc import Callable

from loadmaster.envs.loads import AZURE, Load, load_named_counts, load_own_counts
from loadmaster.envs.pod_scaling.settings import RATES, PodScalingSettings
from loadmaster.envs.pod_scaling.workloads.synthetic import BurstyLike, DiurnalLike, Steady
from loadmaster.envs.traces import WorkloadSpec, find_workload

_LOADERS: tuple[tuple[str, str, Callable[[PodScalingSettings], Load]], ...] = (
    (
        "diurnal-like",
        "generated: a daily cycle with noise (no data)",
        lambda settings: DiurnalLike(RATES[settings.load]),
    ),
    (
        "bursty-like",
        "generated: short bursts over a low base (no data)",
        lambda settings: BurstyLike(RATES[settings.load]),
    ),
    (
        "azure",
        "a day of function invocations, Azure 2021 (data/azure_fn2021)",
        lambda settings: load_named_counts(settings.workload, settings.data, AZURE),
    ),
    (
        "counts",
        "any CSV of requests a minute, as --set data=FILE",
        lambda settings: load_own_counts(settings.workload, settings.data),
    ),
    ("toy", "a constant load, to compute by hand", lambda settings: Steady(RATES[settings.load])),
)
WORKLOADS = {name: WorkloadSpec(name, summary, load) for name, summary, load in _LOADERS}


def load_workload(settings: PodScalingSettings) -> Load:
    """Load the workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
