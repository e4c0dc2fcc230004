"""Tuned parameters of baselines: the file of `loadmaster calibrate`, and what it needs to know.

A fair comparison needs baselines tuned for the load, on seeds that no evaluation uses. A
calibration file holds one entry per baseline and setting; an episode uses the nearest entry. The
module `tuning` of an environment's package has its `Tuning`.
"""

import json
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from loadmaster.envs.errors import InputError

BaselineType = TypeVar("BaselineType")
Move = Callable[[BaselineType], BaselineType | None]  # None: not possible
Change = Callable[[BaselineType, Mapping[str, float]], BaselineType | None]


@dataclass(frozen=True)
class TunedEntry(ABC):
    """The best parameters of one baseline in one setting; an environment adds the fields.

    A subclass raises ValueError or TypeError for values that no calibration writes.
    """

    baseline: str

    @property
    @abstractmethod
    def setting(self) -> tuple[Any, ...]:
        """What the entry is tuned for, baseline included: its key and its place in the file."""


EntryType = TypeVar("EntryType", bound=TunedEntry)


@dataclass(frozen=True)
class TuningProblem(Generic[BaselineType]):
    """Baselines to tune, with the settings fixed and the workload loaded.

    `moves` are small changes of a baseline, None where one is not possible. If there are any, the
    best candidate is improved by them.
    """

    conditions: str  # in words: "tpch-like, load 0.85"
    candidates: Callable[[str], Sequence[BaselineType]]
    score: Callable[[BaselineType, int], float]  # of the episode of a seed; called from threads
    better: Literal["lower", "higher"]
    entry: Callable[[BaselineType, float, range], TunedEntry]  # with its mean score on the seeds
    describe: Callable[[BaselineType, float], str]  # parameters and mean score in words
    published: Callable[[str], BaselineType | None] = lambda name: None  # runs on all seeds
    moves: Callable[[BaselineType], Sequence[Move[BaselineType]]] = lambda baseline: ()
    episodes: str = "episodes"  # what a seed fixes, in the plural


def with_parameters(baseline: BaselineType, change: Mapping[str, float]) -> BaselineType:
    """The baseline, a dataclass with `parameters` by name, with some of them changed."""
    given = cast(Any, baseline)
    changed: BaselineType = replace(given, parameters={**given.parameters, **change})
    return changed


@dataclass(frozen=True)
class ParameterSpace:
    """Values of a rule's parameters: those of the grid, and all that a move can reach."""

    grid: Mapping[str, Sequence[float]]
    moves: Mapping[str, Sequence[float]]  # in ascending order

    def combinations(self) -> Iterator[dict[str, float]]:
        """All parametrisations of the grid."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def candidates(
        self, baseline: BaselineType, change: Change[BaselineType] = with_parameters
    ) -> list[BaselineType]:
        """The baseline in all parametrisations of the grid; others keep their values."""
        made = (change(baseline, values) for values in self.combinations())
        return [one for one in made if one is not None]

    def steps(self, change: Change[BaselineType] = with_parameters) -> list[Move[BaselineType]]:
        """All changes of one parameter by one value."""
        return [
            partial(self._step, parameter, up, change)
            for parameter in self.moves
            for up in (True, False)
        ]

    def _step(
        self, parameter: str, up: bool, change: Change[BaselineType], baseline: BaselineType
    ) -> BaselineType | None:
        now = cast(Any, baseline).parameters.get(parameter, 0.0)
        value = self.next_value(parameter, now, up)
        return None if value is None else change(baseline, {parameter: value})

    def next_value(self, parameter: str, now: float, up: bool) -> float | None:
        """The value of a parameter above or below the present one; None at the end."""
        values = self.moves[parameter]
        place = bisect_right(values, now) if up else bisect_left(values, now) - 1
        return values[place] if 0 <= place < len(values) else None


@dataclass(frozen=True)
class Tuning:
    """The baselines of an environment that have parameters to tune."""

    path: Path  # the file that Loadmaster ships
    tunable: tuple[str, ...]
    prepare: Callable[[Any], TuningProblem[Any]]  # of the environment's settings
    # Settings for each member of a set alone, such as an application; None: there are no sets.
    each: Callable[[Any], Sequence[Any]] | None = None


def nearest_entry(
    entries: Iterable[EntryType], baseline: str, distance: Callable[[EntryType], Any]
) -> EntryType | None:
    """Return the baseline's entry with the least distance, the first of equals."""
    own = (entry for entry in entries if entry.baseline == baseline)
    return min(own, key=distance, default=None)


def read_entries(path: Path, kind: type[EntryType]) -> tuple[EntryType, ...]:
    """Read all entries of a calibration file."""
    try:
        return tuple(kind(**entry) for entry in json.loads(path.read_text(encoding="utf-8")))
    except OSError as fault:
        raise InputError(
            f"calibration {path}: {fault.strerror}; expected a readable file"
        ) from None
    except (ValueError, TypeError):
        raise InputError(
            f"calibration {path} is malformed; expected what `loadmaster calibrate` writes"
        ) from None


cached_entries = lru_cache(maxsize=8)(read_entries)  # for episodes, which read no changes


def merge_entries(path: Path, fresh: Sequence[EntryType]) -> str:
    """Return the file's new text, in which `fresh` entries replace those of the same setting."""
    kept = read_entries(path, type(fresh[0])) if fresh and path.exists() else ()
    entries = {entry.setting: entry for entry in (*kept, *fresh)}
    return json.dumps([asdict(entries[key]) for key in sorted(entries)], indent=1) + "\n"
