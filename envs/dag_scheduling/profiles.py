"""Stage profiles: duration lists by wave and executor level, pooled into flat arrays.

Profiles have gaps: small stages were never measured with many executors, later stages never with
a fresh one. The pool chooses, once, the list that serves in each gap.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

Durations = Sequence[int] | NDArray[np.integer[Any]]  # of single tasks, ms
Waves = Mapping[int, Durations]  # executors the job held when they were measured -> durations

_LONGEST_MS = np.iinfo(np.int32).max


class JobTemplates(NamedTuple):
    """All templates of a workload. T templates, S stages in all, L executor levels."""

    first_stage: NDArray[np.int64]  # (T + 1,) stages of template t: first_stage[t]..[t + 1]
    tasks: NDArray[np.int64]  # (S,)
    mean_ms: NDArray[np.float64]  # (S,) over every duration known of the stage
    critical_ms: NDArray[np.float64]  # (S,) longest path of mean durations to the job's end
    height: NDArray[np.int64]  # (S,) edges on the longest path to the job's end; 0 = a leaf
    demand: NDArray[np.float64]  # (S, 2) CPU and memory an executor must offer
    ahead: NDArray[np.float64]  # (S, 2) longest mean ms, largest demand, from here to the job's end
    work_ms: NDArray[np.float64]  # (T,) sum over stages of tasks * mean duration
    child_first: NDArray[np.int64]  # (S + 1,)
    child: NDArray[np.int64]  # (edges,) numbered within the job
    parent_first: NDArray[np.int64]  # (S + 1,)
    parent: NDArray[np.int64]  # (edges,) numbered within the job
    levels: NDArray[np.int64]  # (L,) executor counts that have durations of their own, ascending
    wave_first: NDArray[np.int64]  # (S, 3, L) where the list starts in durations_ms
    wave_count: NDArray[np.int64]  # (S, 3, L) never 0
    cold_start: NDArray[np.int64]  # (S, L) 1: no fresh list was measured, add the warm-up delay
    durations_ms: NDArray[np.int32]  # all lists, concatenated


class Profiles(NamedTuple):
    """The fields of JobTemplates that durations determine."""

    levels: NDArray[np.int64]
    mean_ms: NDArray[np.float64]
    wave_first: NDArray[np.int64]
    wave_count: NDArray[np.int64]
    cold_start: NDArray[np.int64]
    durations_ms: NDArray[np.int32]


def without_durations(mean_ms: NDArray[np.float64]) -> Profiles:
    """Build profiles from mean durations alone; their tasks cannot be simulated."""
    levels, durations = np.zeros(0, np.int64), np.zeros(0, np.int32)
    waves, cold = np.zeros((0, 3, 0), np.int64), np.zeros((0, 0), np.int64)
    return Profiles(levels, mean_ms, waves, waves, cold, durations)


def with_mean_durations(bank: JobTemplates) -> JobTemplates:
    """Replace all lists of a stage by its mean duration, and leave out the warm-up."""
    stages = np.arange(len(bank.mean_ms)).reshape(-1, 1, 1)
    return bank._replace(
        wave_first=np.broadcast_to(stages, bank.wave_first.shape).copy(),
        wave_count=np.ones_like(bank.wave_count),
        cold_start=np.zeros_like(bank.cold_start),
        durations_ms=np.maximum(np.rint(bank.mean_ms), 1).astype(np.int32),
    )


class ProfilePool:
    """Collects the stages' duration lists; a list that fills several gaps is stored once."""

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = levels
        self._lists: list[NDArray[Any]] = []
        self._owner: list[str] = []  # of each list: the stage, for errors
        self._serving: list[list[list[int]]] = []  # (S, 3, L) number of the list
        self._cold: list[list[int]] = []  # (S, L)
        self._measured: list[list[int]] = []  # (S, any) the lists in the stage's mean
        self._given_mean: list[float] = []  # (S,) nan: the mean of the lists

    def add(
        self, stage: str, fresh: Waves, first: Waves, rest: Waves, mean_ms: float | None
    ) -> None:
        """Add the next stage; `stage` names it in errors."""
        placed: dict[int, int] = {}  # id of a list -> its number

        def place(durations: Durations) -> int:
            number = placed.setdefault(id(durations), len(self._lists))
            if number == len(self._lists):
                self._lists.append(np.asarray(durations))
                self._owner.append(stage)
            return number

        waves = (fresh, first, rest)
        known = [{e: place(ds) for e, ds in wave.items() if len(ds)} for wave in waves]
        measured = [number for lists in known for number in lists.values()]
        if not measured:
            raise InputError(f"{stage} has no task durations; expected at least one")
        executors = fresh.keys() | first.keys() | rest.keys()
        largest = max(executors)
        rows: tuple[list[int], list[int], list[int]] = ([], [], [])
        cold = []
        for level in self._levels:
            # At a level that was not measured (the stage has fewer tasks), the largest serves.
            key = level if level in executors else largest
            found = [lists.get(key) for lists in known]
            cold.append(int(found[0] is None))
            # No fresh list: the first wave (the simulator adds a warm-up); no first wave: the
            # fresh list; no rest wave: the list that serves the first.
            likely = (found[1], found[0], found[2], measured[0])
            stand_in = next(number for number in likely if number is not None)
            for row, number in zip(rows, found, strict=True):
                row.append(stand_in if number is None else number)
        self._serving.append(list(rows))
        self._cold.append(cold)
        self._measured.append(measured)
        self._given_mean.append(np.nan if mean_ms is None else mean_ms)

    def lay_out(self) -> Profiles:
        """Concatenate the lists and build the tables that point into them."""
        counts = np.array([len(durations) for durations in self._lists], np.int64)
        starts = np.cumsum(counts) - counts
        values = np.concatenate(self._lists)
        bad = np.flatnonzero(~((values >= 0) & (values <= _LONGEST_MS)))  # nan is neither
        if len(bad):
            owner = self._owner[int(np.searchsorted(starts, bad[0], side="right")) - 1]
            raise InputError(
                f"{owner} has a task duration of {values[bad[0]]} ms; expected 0 to {_LONGEST_MS}"
            )
        serving = np.array(self._serving, np.int64)
        return Profiles(
            levels=np.array(self._levels, np.int64),
            mean_ms=self._means(np.add.reduceat(values, starts), counts),
            wave_first=starts[serving],
            wave_count=counts[serving],
            cold_start=np.array(self._cold, np.int64),
            durations_ms=np.rint(values).astype(np.int32),
        )

    def _means(self, sums: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """(S,) Mean over every duration of a stage, unless one was given."""
        lists = np.array([number for numbers in self._measured for number in numbers])
        ends = np.cumsum([len(numbers) for numbers in self._measured])
        firsts = np.concatenate([[0], ends[:-1]])
        mean = np.add.reduceat(sums[lists], firsts) / np.add.reduceat(counts[lists], firsts)
        given = np.array(self._given_mean)
        return np.where(np.isnan(given), mean, given)
