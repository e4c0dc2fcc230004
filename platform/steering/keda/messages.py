"""Messages of KEDA's external scaler in protobuf's wire format: `externalscaler.proto`.

They have a few fields of simple types, so that neither generated code nor protobuf is needed.
Unknown fields are skipped, and missing ones have their defaults, as protobuf does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SERVICE = "externalscaler.ExternalScaler"
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types


class MessageError(ValueError):
    """Bytes that are no message."""


@dataclass(frozen=True)
class ScaledObjectRef:
    """The ScaledObject that requests, with the metadata of its trigger."""

    name: str = ""
    namespace: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricsRequest:
    """A request for the value of a metric."""

    scaled_object: ScaledObjectRef = field(default_factory=ScaledObjectRef)
    metric: str = ""


def parse_scaled_object(data: bytes) -> ScaledObjectRef:
    name = namespace = ""
    metadata = dict[str, str]()
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            entry = dict(_fields(_content(value)))
            metadata[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return ScaledObjectRef(name, namespace, metadata)


def parse_metrics_request(data: bytes) -> MetricsRequest:
    found, metric = ScaledObjectRef(), ""
    for number, value in _fields(data):
        if number == 1:
            found = parse_scaled_object(_content(value))
        elif number == 2:
            metric = _text(value)
    return MetricsRequest(found, metric)


def is_active_response(active: bool) -> bytes:
    return _key(1, _VARINT) + _varint(int(active))


def metric_spec_response(metric: str, target: int) -> bytes:
    """GetMetricSpecResponse of one metric, whose target is a whole and a floating number."""
    return _field(1, _metric(metric, target))


def metrics_response(metric: str, value: int) -> bytes:
    """GetMetricsResponse of one metric."""
    return _field(1, _metric(metric, value))


def _metric(name: str, value: int) -> bytes:
    """MetricSpec and MetricValue have the same fields: name, and value of both types."""
    number = _key(2, _VARINT) + _varint(value)
    return _field(1, name.encode()) + number + _key(3, _DOUBLE) + struct.pack("<d", value)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Numbers and contents of the fields of a message; varints are numbers."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, place = _read_varint(data, place)
        elif kind in (_DOUBLE, _FLOAT):
            length = 8 if kind == _DOUBLE else 4
        else:
            raise MessageError(f"wire type {kind}")
        if place + length > len(data):
            raise MessageError("the message ends within a field")
        yield key >> 3, data[place : place + length]
        place += length


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            raise MessageError("the message ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise MessageError("a number has more than ten bytes")


def _content(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise MessageError("a number where text or a message is expected")
    return value


def _text(value: bytes | int) -> str:
    try:
        return _content(value).decode()
    except UnicodeDecodeError:
        raise MessageError("text is not UTF-8") from None
