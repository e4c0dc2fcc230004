"""Learning on an application from nothing, beside learning while rules act.

What is measured is in the module `bootstrapping_bench` of a system.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loadmaster.envs.registry import find_system
from loadmaster.platform.bench.measurements import Figure, systems_with
from loadmaster.platform.evaluation.files import check_writable


@dataclass(frozen=True)
class BootstrapEffort:
    """How much is measured; 400 episodes and 50 bounds are the full protocol."""

    applications: int = 3  # to learn on
    bounds: int = 10  # applications whose lower bound is compared with the truth
    episodes: int = 400  # of learning
    part: int = 100  # episodes that a figure is of
    shipped: int = 100  # episodes of the shipped policy
    logged: int = 80  # episodes of the rule that a bound is from
    updates: int = 4_000  # of the agent from that log
    tests: int = 40  # episodes that the truth is the mean of
    steps: int = 100  # of an episode


def measure(
    report_step: Callable[[str], None],
    system: str | None = None,
    effort: BootstrapEffort | None = None,
    folder: Path | None = None,
) -> Iterator[Figure]:
    """Measure one system or all that have a bootstrapper; tables are written to `folder`."""
    if folder is not None:
        check_writable(folder)
    for name in systems_with("bootstrapping_bench", system):
        yield from find_system(name).load("bootstrapping_bench")(
            report_step, effort or BootstrapEffort(), folder
        )
