"""Distance of a policy from the limit: search with drawn futures and with foresight, and a bound.

What is measured is in the module `foresight_bench` of a system.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import find_system
from loadmaster.platform.bench.measurements import Figure, systems_with
from loadmaster.platform.evaluation.files import check_writable

FIRST_SEED = 700_000


@dataclass(frozen=True)
class ForesightEffort:
    """How much is measured, and in which settings."""

    seeds: int = 5
    first_seed: int = FIRST_SEED
    futures: int = 6  # drawn at a decision of the search without foresight
    options: int = 3  # jobs whose stages are tried at a decision
    assignments: Sequence[str] = ()  # NAME=VALUE of the environment's settings
    workers: int | None = None  # threads; None: one a core

    def __post_init__(self) -> None:
        """Refuse numbers that measure nothing."""
        for name, least in (("seeds", 2), ("first_seed", 0), ("futures", 2), ("options", 1)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise InputError(f"--{option} is {getattr(self, name)}; expected {least} or more")


def measure(
    report_step: Callable[[str], None],
    system: str | None = None,
    effort: ForesightEffort | None = None,
    folder: Path | None = None,
) -> Iterator[Figure]:
    """Measure one system or all that have limits to compare; tables are written to `folder`."""
    if folder is not None:
        check_writable(folder)
    for name in systems_with("foresight_bench", system):
        yield from find_system(name).load("foresight_bench")(
            report_step, effort or ForesightEffort(), folder
        )
