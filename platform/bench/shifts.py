"""Shifts of an application that a policy serves: how soon a fall is noticed, and recovered from.

What is measured is in the module `shift_bench` of a system.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loadmaster.envs.registry import find_system
from loadmaster.platform.bench.measurements import Figure, systems_with
from loadmaster.platform.evaluation.files import check_writable


@dataclass(frozen=True)
class ShiftEffort:
    """How much is measured."""

    applications: int = 3
    before: int = 40  # steady episodes before a shift
    steady: int = 1_000  # steady episodes of all applications and loads, without a shift
    shifted: int = 20  # episodes in which a fall may be noticed
    known: int = 5  # episodes in which a rival gets to know the application before
    recovery: int = 6  # episodes after a shift, of which each policy is judged before every one
    judged: int = 5  # episodes of a judgement
    steps: int = 100  # of an episode


def measure(
    report_step: Callable[[str], None],
    system: str | None = None,
    effort: ShiftEffort | None = None,
    folder: Path | None = None,
) -> Iterator[Figure]:
    """Measure one system or all that have shifts; tables are written to `folder`."""
    if folder is not None:
        check_writable(folder)
    for name in systems_with("shift_bench", system):
        yield from find_system(name).load("shift_bench")(
            report_step, effort or ShiftEffort(), folder
        )
