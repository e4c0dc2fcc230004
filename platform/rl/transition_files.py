"""Parquet files of logged transitions: schema, streaming writer and reader, export of a replay.

A row is a transition. A truncated episode has one row more, with its final observation, whose
action and reward are null. The schema is documented in docs/transitions.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.models.ddpg.settings import CONTEXT, CONTEXT_ID
from loadmaster.models.files import atomic_binary_file
from loadmaster.platform.rl.replay import Replay
from loadmaster.platform.rl.transitions import (
    Description,
    Episode,
    Floats,
    Quantity,
    Transitions,
)

VERSION = 1
METADATA = b"loadmaster.transitions"  # key of the JSON description in the schema's metadata
ROW_GROUP = 8192  # rows in memory at once, and the longest episode's
VECTORS = ("observation", "action", CONTEXT)
Table = dict[str, NDArray[Any]]


def schema_of(description: Description) -> pa.Schema:
    """Columns of a file, with the description in the metadata."""
    vectors = {
        "observation": len(description.observation),
        "action": len(description.action),
        CONTEXT: description.context,
    }
    fields = [
        pa.field("application", pa.string(), nullable=False),
        pa.field("episode", pa.int64(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("terminated", pa.bool_(), nullable=False),
    ]
    fields += [
        pa.field(name, pa.list_(pa.float32(), width), nullable=name != "observation")
        for name, width in vectors.items()
        if width
    ]
    stored = {
        "version": VERSION,
        "system": description.system,
        "observation": [quantity._asdict() for quantity in description.observation],
        "action": [quantity._asdict() for quantity in description.action],
    }
    return pa.schema(fields, metadata={METADATA: json.dumps(stored).encode()})


class TransitionWriter:
    """Writes episodes to a Parquet file, a row group at a time."""

    def __init__(self, file: Any, description: Description) -> None:
        self.description, self.rows = description, 0
        self._schema = schema_of(description)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []

    def write(self, episode: Episode) -> None:
        episode.check(self.description)
        self._waiting.append(_record_batch(episode, self._schema))
        self.rows += len(episode.observations)
        if sum(len(batch) for batch in self._waiting) >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP)
            self._waiting = []


@contextmanager
def transition_writer(path: Path, description: Description) -> Iterator[TransitionWriter]:
    """A writer whose file appears under its name when it is complete, or not at all."""
    with atomic_binary_file(path) as file:
        writer = TransitionWriter(file, description)
        try:
            yield writer
            if not writer.rows:
                raise InputError("no transitions to write; expected at least one episode")
        finally:
            writer.close()


def export_transitions(
    replay: Replay,
    path: Path,
    description: Description,
    applications: Sequence[str] = (),
    contexts: Floats | None = None,
) -> int:
    """Write the whole episodes of a run's replay, oldest first; returns the number of rows.

    `applications` and `contexts` are names and vectors by the replay's column CONTEXT_ID.
    """
    with transition_writer(path, description) as writer:
        for number, part in enumerate(replay.episodes()):
            place, steps = part.integers.get(CONTEXT_ID, 0), len(part.rewards)
            last = [] if part.last is None else [part.last[None]]
            writer.write(
                Episode(
                    observations=np.concatenate([part.observations, *last]),
                    actions=part.actions,
                    rewards=part.rewards.astype(np.float64),
                    application=applications[place] if applications else "",
                    number=number,
                    contexts=None if contexts is None else np.tile(contexts[place], (steps, 1)),
                )
            )
        return writer.rows


def load_transitions(
    path: Path,
    *,
    expected: Description | None = None,
    application: str | None = None,
    one_application: bool = False,
) -> Transitions:
    """All transitions of a file, or those of one application.

    Raises InputError if the file is not a valid log, if its description differs from `expected`,
    or, with `one_application`, if it has several.
    """
    description = read_description(path)
    if expected is not None:
        description.check_same(expected)
    episodes = read_episodes(path)
    if application is not None:
        episodes = (episode for episode in episodes if episode.application == application)
    try:
        found = Transitions.of_episodes(episodes, description)
    except InputError as fault:
        of = "" if application is None else f" of the application {application!r}"
        raise InputError(f"{path}{of}: {fault}") from None
    if one_application and len(found.applications) > 1:
        names = ", ".join(map(repr, found.applications[:3]))
        raise InputError(
            f"{path} has {len(found.applications):,} applications ({names}); expected one"
        )
    return found


def read_description(path: Path) -> Description:
    """System and columns of a file, from its schema."""
    with _opened(path) as file:
        return _description(file.schema_arrow, path)


def read_episodes(path: Path) -> Iterator[Episode]:
    """Episodes of a file in order, with at most ROW_GROUP rows and one episode in memory."""
    with _opened(path) as file:
        schema = file.schema_arrow
        description = _description(schema, path)
        wanted = schema_of(description)
        for name in wanted.names:
            kind = wanted.field(name).type
            if name not in schema.names:
                raise InputError(f"{path} has no column {name!r}; expected it, of {kind}")
            if (has := schema.field(name).type) != kind:
                raise InputError(f"column {name!r} of {path} is {has}; expected {kind}")
        known: set[tuple[str, int]] = set()
        carried: Table | None = None
        for batch in file.iter_batches(ROW_GROUP, columns=wanted.names):
            table = _table(batch, path)
            if carried is not None:
                table = {name: np.concatenate([carried[name], table[name]]) for name in table}
            *whole, carried = _split(table)
            for part in whole:
                yield _episode(part, known, path)
        if carried is None:
            raise InputError(f"{path} has no rows; expected at least one episode")
        yield _episode(carried, known, path)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid):
        why = "is not a Parquet file" if path.is_file() else "does not exist"
        raise InputError(f"{path} {why}; expected a file of transitions") from None
    with file:
        yield file


def _description(schema: pa.Schema, path: Path) -> Description:
    stored = (schema.metadata or {}).get(METADATA)
    if stored is None:
        raise InputError(f"{path} has no metadata {METADATA.decode()!r}; expected transitions")
    try:
        header = json.loads(stored)
        version = header["version"]
        observation, action = (
            tuple(Quantity(str(each["name"]), str(each["unit"])) for each in header[kind])
            for kind in ("observation", "action")
        )
        found = Description(str(header["system"]), observation, action)
    except (ValueError, KeyError, TypeError):
        raise InputError(f"the description of transitions in {path} is damaged") from None
    if version != VERSION:
        raise InputError(f"{path} has version {version} of transitions; expected {VERSION}")
    if CONTEXT not in schema.names:
        return found
    kind = schema.field(CONTEXT).type
    width = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
    return Description(found.system, found.observation, found.action, width)


def _record_batch(episode: Episode, schema: pa.Schema) -> pa.RecordBatch:
    rows, steps = len(episode.observations), len(episode.rewards)
    terminated = np.zeros(rows, np.bool_)
    terminated[-1] = episode.terminated
    columns: dict[str, Any] = {
        "application": [episode.application] * rows,
        "episode": np.full(rows, episode.number, np.int64),
        "step": np.arange(episode.first_step, episode.first_step + rows, dtype=np.int32),
        "reward": pa.array([*episode.rewards.tolist(), *[None] * (rows - steps)], pa.float64()),
        "terminated": terminated,
        "observation": episode.observations,
        "action": episode.actions,
        CONTEXT: episode.contexts,
    }
    for name in VECTORS:
        if name in schema.names:
            columns[name] = _fixed_lists(columns[name], rows)
    return pa.record_batch([pa.array(columns[n]) for n in schema.names], schema=schema)


def _fixed_lists(table: Floats, rows: int) -> pa.Array:
    """A column of `rows` vectors; those beyond the table are null."""
    width, missing = table.shape[1], rows - len(table)
    whole = np.concatenate([table, np.zeros((missing, width), np.float32)]).astype(np.float32)
    null = pa.array(np.arange(rows) >= len(table)) if missing else None
    return pa.FixedSizeListArray.from_arrays(whole.ravel(), width, mask=null)


def _table(batch: pa.RecordBatch, path: Path) -> Table:
    """Columns as arrays. `acts` is false in the rows of final observations, filled with 0."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    acts = np.asarray(columns["action"].is_valid())
    found: Table = {"acts": acts}
    for name, column in columns.items():
        valid = np.asarray(column.is_valid())
        if not valid[acts].all() or (
            name not in ("action", "reward", CONTEXT) and column.null_count
        ):
            raise InputError(f"column {name!r} of {path} has empty places; expected values")
        if name in VECTORS:
            values = column.flatten()  # of the valid rows
            if values.null_count:
                raise InputError(f"column {name!r} of {path} has empty numbers; expected values")
            whole = np.zeros((len(column), column.type.list_size), np.float32)
            whole[valid] = values.to_numpy().reshape(-1, column.type.list_size)
            found[name] = whole
        else:
            filled = column.fill_null(0.0) if name == "reward" else column
            found[name] = filled.to_numpy(zero_copy_only=False)
    return found


def _split(table: Table) -> list[Table]:
    """Parts of consecutive rows of the same episode."""
    episode, application = table["episode"], table["application"]
    changes = (episode[1:] != episode[:-1]) | (application[1:] != application[:-1])
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(episode)]
    return [
        {name: column[first:end] for name, column in table.items()}
        for first, end in pairwise(bounds)
    ]


def _episode(part: Mapping[str, NDArray[Any]], known: set[tuple[str, int]], path: Path) -> Episode:
    """The episode of consecutive rows; `known` are those before it."""
    acts, ended, steps = part["acts"], part["terminated"], part["step"]
    count = int(acts.sum())
    found = Episode(
        observations=part["observation"],
        actions=part["action"][:count],
        rewards=part["reward"][:count],
        application=str(part["application"][0]),
        number=int(part["episode"][0]),
        first_step=int(steps[0]),
        contexts=part[CONTEXT][:count] if CONTEXT in part else None,
    )
    label = f"{found.label} in {path}"
    if (found.application, found.number) in known:
        raise InputError(f"{label} is not in consecutive rows; expected each episode once")
    known.add((found.application, found.number))
    wrong = np.flatnonzero(np.diff(steps.astype(np.int64)) != 1)
    if len(wrong):
        before, after = steps[wrong[0]], steps[wrong[0] + 1]
        raise InputError(f"step {after:,} follows {before:,} in {label}; expected {before + 1:,}")
    if not acts[:-1].all() or ended[:-1].any() or acts[-1] != ended[-1]:
        raise InputError(
            f"{label} has no proper end; expected terminated in its last row only, or a last row "
            "without action"
        )
    return found
