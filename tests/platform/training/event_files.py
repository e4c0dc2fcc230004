"""Reads TensorBoard's event files, which are records of protocol buffers with checksums between."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event


def events_in(folder: Path) -> list[Any]:
    """Of all files, in the order they were written."""
    return [event for file in sorted(folder.glob("events.*")) for event in _events(file)]


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every scalar, by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events_in(folder):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def _events(file: Path) -> list[Any]:
    content, place, events = file.read_bytes(), 0, []
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        start = place + 12  # the length, and its checksum
        events.append(Event.FromString(content[start : start + length]))
        place = start + length + 4
    return events
