"""Replay of transitions: a ring of rows in memory-mapped files, and keyed draws of minibatches.

FOLDER/replay.json    widths of the rows, capacity, and an id that checkpoints refer to
       rows.npy       float32 (R, observation + action + 1): observation, action, reward
       kinds.npy      uint8 (R,): STEP, TERMINAL or LAST
       NAME.npy       an integer column (R,), such as the application of a transition
       written.npy    int64 (1,): rows written in all, or being written

An episode is written as consecutive rows, so a transition's next observation is that of the
following row. A truncated episode ends with a row LAST, which has an observation alone.

A checkpoint stores the id and the number of rows (`Position`), not the rows. The ring has a reserve
beyond its capacity: rows written after a checkpoint do not replace any that it needs, and a process
that is killed at any time leaves those intact. What is beyond a checkpoint's position is written
again when the run is resumed.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, splitmix64
from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_text_file

HEADER, ROWS, KINDS, WRITTEN = "replay.json", "rows.npy", "kinds.npy", "written.npy"
STEP, TERMINAL, LAST = 0, 1, 2  # kinds of rows; only the first two are transitions
LEAST_RESERVE, RESERVE_SHARE = 1 << 16, 4  # rows beyond the capacity: at least, and a fourth of it

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Layout:
    """Widths of a row, and its integer columns with their types, such as {"context": "int16"}."""

    observation: int
    action: int
    integers: Mapping[str, str] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.observation + self.action + 1


class Position(NamedTuple):
    """What a checkpoint stores of a replay."""

    replay: str  # its id
    rows: int  # written in all


class Minibatches(NamedTuple):
    """Drawn transitions, of shape (*shape, width) or (*shape,)."""

    observations: Floats
    actions: Floats
    rewards: Floats
    next_observations: Floats
    terminated: Floats  # 1 if the episode ended with the transition, else 0
    integers: dict[str, NDArray[np.int64]]


class StoredEpisode(NamedTuple):
    """A whole episode of a replay, as `Replay.append` takes it."""

    observations: Floats
    actions: Floats
    rewards: Floats
    last: Floats | None
    integers: dict[str, int]


class Replay:
    """The latest `capacity` rows of all that were appended."""

    def __init__(self, folder: Path, layout: Layout, capacity: int, name: str) -> None:
        """Open the files of `create`; `name` is the id in their header."""
        self.folder, self.layout, self.capacity, self.name = folder, layout, capacity, name
        self.rows = 0  # appended in all
        self.saved: int | None = None  # rows at the last checkpoint that refers to the files
        files = {ROWS, KINDS, WRITTEN, *(f"{column}.npy" for column in layout.integers)}
        self._files = {file: np.load(folder / file, mmap_mode="r+") for file in files}
        # Plain arrays over the same memory: numpy is faster without the subclass.
        self._rows, self._kinds, self._written = (
            np.asarray(self._files[file]) for file in (ROWS, KINDS, WRITTEN)
        )
        self._integers = {
            column: np.asarray(self._files[f"{column}.npy"]) for column in layout.integers
        }

    @classmethod
    def create(cls, folder: Path, layout: Layout, capacity: int, name: str | None = None) -> Replay:
        """An empty replay with a new id, or with `name`; what is in `folder` is removed."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        slots = capacity + max(LEAST_RESERVE, capacity // RESERVE_SHARE)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            ROWS: ("float32", (slots, layout.width)),
            KINDS: ("uint8", (slots,)),
            WRITTEN: ("int64", (1,)),
            **{f"{name}.npy": (kind, (slots,)) for name, kind in layout.integers.items()},
        }
        for file, (kind, shape) in shapes.items():
            open_memmap(folder / file, mode="w+", dtype=np.dtype(kind), shape=shape)
        name = name or uuid.uuid4().hex
        header = {"id": name, "capacity": capacity, "layout": asdict(layout)}
        with atomic_text_file(folder / HEADER) as opened:  # last: without it there is no replay
            opened.write(json.dumps(header) + "\n")
        return cls(folder, layout, capacity, name)

    @classmethod
    def restore(
        cls, folder: Path, layout: Layout, capacity: int, position: Position
    ) -> Replay | None:
        """The replay in `folder` as it was at `position`; None if it is another or there is none.

        Raises InputError if it has another layout or capacity, or does not reach back so far.
        """
        if read_id(folder, layout, capacity, position.replay) != position.replay:
            return None
        found = cls(folder, layout, capacity, position.replay)
        if found.written < position.rows:
            raise InputError(
                f"the replay {folder} has {found.written:,} rows; expected the {position.rows:,} "
                "of the checkpoint"
            )
        if found.written - found.slots > max(0, position.rows - capacity):
            raise InputError(
                f"the replay {folder} has replaced rows of the checkpoint at row "
                f"{position.rows:,}; expected a later checkpoint"
            )
        found.rows = found.saved = position.rows
        return found

    @property
    def slots(self) -> int:
        """Rows that fit the files."""
        return len(self._rows)

    @property
    def written(self) -> int:
        return int(self._written[0])

    @property
    def position(self) -> Position:
        return Position(self.name, self.rows)

    @property
    def length(self) -> int:
        """Rows that minibatches are drawn from."""
        return min(self.rows, self.capacity)

    def append(
        self,
        observations: Floats,
        actions: Floats,
        rewards: NDArray[Any],
        last: Floats | None,
        **integers: int,
    ) -> None:
        """Write an episode of T transitions.

        `last` is the final observation of a truncated episode, None of one that terminated.
        `integers` are the episode's values of the integer columns.
        """
        steps, layout = len(rewards), self.layout
        if not steps:
            return
        count = steps + (last is not None)
        self._check_space(count)
        self._written[0] = max(self.written, self.rows + count)  # first: see `restore`
        places = np.arange(self.rows, self.rows + count) % self.slots
        whole = np.zeros((count, layout.width), np.float32)
        whole[:steps, : layout.observation] = observations
        whole[:steps, layout.observation : -1] = actions
        whole[:steps, -1] = rewards
        kinds = np.full(count, STEP, np.uint8)
        if last is None:
            kinds[-1] = TERMINAL
        else:
            whole[steps, : layout.observation] = last
            kinds[-1] = LAST
        self._rows[places], self._kinds[places] = whole, kinds
        for name, column in self._integers.items():
            column[places] = integers[name]
        self.rows += count

    def rows_at(self, places: NDArray[np.int64]) -> Floats:
        """Copies of rows by their numbers since the beginning; the oldest may be replaced."""
        found: Floats = self._rows[places % self.slots]
        return found

    def _check_space(self, count: int) -> None:
        if count > self.capacity:
            raise InputError(
                f"an episode has {count:,} rows; expected at most the replay's {self.capacity:,}"
            )
        if self.saved is not None and (
            self.rows + count - self.slots > max(0, self.saved - self.capacity)
        ):
            raise InputError(
                f"{self.rows + count - self.saved:,} rows since the last checkpoint; expected at "
                f"most {self.slots - self.capacity:,}: lower checkpoints.every"
            )

    def draw(self, shape: tuple[int, ...], seed: int) -> Minibatches:
        """Transitions drawn uniformly and independently; the same seed draws the same ones."""
        layout, count = self.layout, int(np.prod(shape))
        if not self.length:
            raise InputError("the replay is empty; expected transitions to draw from")
        chosen = np.empty(count, np.int64)
        whole = np.empty((count, layout.width), np.float32)
        after = np.empty((count, layout.observation), np.float32)
        terminated = np.empty(count, np.float32)
        _draw(
            *(seed, self.rows - self.length, self.length, self._rows, self._kinds),
            *(chosen, whole, after, terminated),
        )
        whole = whole.reshape(*shape, -1)
        return Minibatches(
            observations=whole[..., : layout.observation],
            actions=whole[..., layout.observation : -1],
            rewards=whole[..., -1],
            next_observations=after.reshape(*shape, -1),
            terminated=terminated.reshape(shape),
            integers={
                name: column[chosen].astype(np.int64).reshape(shape)
                for name, column in self._integers.items()
            },
        )

    def episodes(self) -> Iterator[StoredEpisode]:
        """Whole episodes, oldest first; one whose first rows were replaced is left out."""
        oldest = self.rows - self.length
        slots = np.arange(oldest, self.rows) % self.slots
        bounds = (1 + np.flatnonzero(self._kinds[slots] != STEP)).tolist()
        # The row before the oldest one is still there, in the reserve.
        if oldest == 0 or self._kinds[(oldest - 1) % self.slots] != STEP:
            bounds = [0, *bounds]
        width = self.layout.observation
        for first, end in pairwise(bounds):
            rows = self._rows[slots[first:end]]
            truncated = self._kinds[slots[end - 1]] == LAST
            steps = len(rows) - int(truncated)
            yield StoredEpisode(
                observations=rows[:steps, :width],
                actions=rows[:steps, width:-1],
                rewards=rows[:steps, -1],
                last=rows[-1, :width] if truncated else None,
                integers={
                    name: int(column[slots[first]]) for name, column in self._integers.items()
                },
            )

    def save(self) -> Position:
        """Write the rows to disk, before the checkpoint that refers to them."""
        for file, table in self._files.items():
            table.flush()
            os.utime(self.folder / file)  # for copies that compare times
        self.saved = self.rows
        return self.position

    def write_copy(self, folder: Path) -> None:
        """Write the rows in use to a new folder, as part of a checkpoint."""
        folder.mkdir()
        used = min(self.written, self.slots)
        for file, table in self._files.items():
            np.save(folder / file, table[:used])
        shutil.copy(self.folder / HEADER, folder)

    @classmethod
    def read_copy(cls, copy: Path, folder: Path, layout: Layout, capacity: int) -> None:
        """Make a replay in `folder` with the id and the rows of `write_copy`."""
        made = cls.create(folder, layout, capacity, read_id(copy, layout, capacity))
        for file, table in made._files.items():
            rows = np.load(copy / file)
            table[: len(rows)] = rows


def read_id(folder: Path, layout: Layout, capacity: int, name: str | None = None) -> str | None:
    """The id of the replay in `folder`; None if there is none.

    Raises InputError if it has another layout or capacity, and, where `name` is given, that id.
    """
    file = folder / HEADER
    if not file.is_file():
        return None
    try:
        header = json.loads(file.read_text(encoding="utf-8"))
        found, has = str(header["id"]), {key: header[key] for key in ("capacity", "layout")}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file} is damaged; expected the header of a replay") from None
    if name not in (None, found):
        return found
    for key, value in {"capacity": capacity, "layout": asdict(layout)}.items():
        if has[key] != value:
            raise InputError(f"the replay {folder} has the {key} {has[key]}; expected {value}")
    return found


@compiled
def _draw(
    seed: int,
    oldest: int,
    length: int,
    rows: Floats,
    kinds: NDArray[np.uint8],
    chosen: NDArray[np.int64],
    whole: Floats,
    after: Floats,
    terminated: Floats,
) -> None:
    """Draw rows until each is a transition, and copy them; `chosen` are their slots."""
    slots, observation = len(rows), after.shape[1]
    for place in range(len(chosen)):
        key, tries = splitmix64(seed, place), 0
        while True:
            row = oldest + np.int64(splitmix64(key, tries) % np.uint64(length))
            slot = row % slots
            if kinds[slot] != LAST:
                break
            tries += 1
        chosen[place] = slot
        ended = kinds[slot] == TERMINAL
        following = slot if ended else (row + 1) % slots
        terminated[place] = np.float32(1.0) if ended else np.float32(0.0)
        for column in range(rows.shape[1]):
            whole[place, column] = rows[slot, column]
        for column in range(observation):
            after[place, column] = rows[following, column]
