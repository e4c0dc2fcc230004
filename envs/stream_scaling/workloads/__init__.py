"""Registry of loads: records a minute."""

from collections.abc import Callable

from loadmaster.envs.loads import Load
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.workloads import counts, synthetic
from loadmaster.envs.traces import WorkloadSpec, find_workload

_LOADERS: tuple[tuple[str, str, Callable[[StreamScalingSettings], Load]], ...] = (
    (
        "clarknet-like",
        "generated: daily and weekly cycles with bursts, calibrated to ClarkNet (no data)",
        lambda settings: synthetic.CLARKNET_LIKE,
    ),
    ("clarknet", "requests to a web server, two weeks of 1995 (data/clarknet)", counts.clarknet),
    ("azure", "a day of function invocations, Azure 2021 (data/azure_fn2021)", counts.azure),
    ("counts", "any CSV of counts a minute, as --set data=FILE", counts.custom),
    ("toy", "a constant load, to compute by hand", lambda settings: synthetic.TOY),
)
WORKLOADS = {name: WorkloadSpec(name, summary, load) for name, summary, load in _LOADERS}


def load_workload(settings: StreamScalingSettings) -> Load:
    """Load the workload that `settings` names."""
    return find_workload(WORKLOADS, settings.workload).load(settings)
