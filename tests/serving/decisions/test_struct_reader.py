"""Reading of states as structs accepts and refuses what the schema does, with the same errors."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from loadmaster.serving.decisions import request, struct_reader
from loadmaster.serving.decisions.request import RequestError, json_to_msgpack, to_json
from loadmaster.serving.decisions.struct_reader import CONVERTED_BYTES, StateReader, struct_type
from loadmaster.serving.system import Record, State, find_endpoint
from loadmaster.serving.systems.decima.schema import EXAMPLE
from tests.serving import toy
from tests.serving.conftest import SYSTEMS
from tests.serving.mutations import mutated
from tests.serving.systems.test_schema import VALID

REFERENCES = {  # of systems that are not registered
    "toy": toy.REFERENCE, "aware": "loadmaster.serving.systems.aware.system:ENDPOINT",
}  # fmt: skip
READ = sorted({*SYSTEMS, "aware"})
Refusal = tuple[str, str | None]  # line, field
BRIEF = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@cache
def reader_of(system: str) -> StateReader:
    return StateReader(find_endpoint(system, REFERENCES.get(system, "")))


def by_structs(system: str, raw: bytes) -> Any:
    """The state as plain data, or the refusal."""
    try:
        state = reader_of(system).read(raw)
    except RequestError as fault:
        return fault.line, fault.field

    fields = {name: getattr(state, name) for name in type(state).model_fields}
    return json.loads(msgspec.json.encode(fields, enc_hook=lambda one: one.model_dump()))


def by_model(system: str, raw: bytes) -> Any:
    try:
        found: Any = request.read(reader_of(system).model, raw)
    except RequestError as fault:
        return fault.line, fault.field
    return found.state.model_dump(mode="json")


def read_all(system: str, raw: bytes) -> None:
    """As gateway and worker read a request."""
    request.parse_options(raw)
    reader_of(system).read(raw)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("system", READ)
def test_systems_are_read_as_structs(system: str) -> None:
    endpoint = find_endpoint(system, REFERENCES.get(system, ""))
    assert struct_type(endpoint.state) is not None
    for state in endpoint.examples().values():
        expected = state.model_dump(mode="json")
        raw = to_json({"state": expected, "mode": "shadow", "request_id": "a"})
        for body in (raw, json_to_msgpack(raw)):
            assert by_structs(system, body) == expected
    read = reader_of(system).read(raw)
    lists = (getattr(read, name) for name in type(read).model_fields)
    inside = [one[0] if isinstance(one, tuple) and one else one for one in lists]
    assert any(isinstance(one, msgspec.Struct) for one in inside)


def test_tables_are_those_of_the_model() -> None:
    for state in find_endpoint("decima").examples().values():
        raw = to_json({"state": state.model_dump(mode="json")})
        found, expected = reader_of("decima").read(raw).snapshot, state.snapshot
        for name in ("stages", "members", "left", "age_ms", "committed_in"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        for own, other in zip(found.bank, expected.bank, strict=True):
            np.testing.assert_array_equal(own, other)


@pytest.mark.slow
@pytest.mark.parametrize("system", READ)
@given(data=st.data())
@BRIEF
def test_mutated_states_are_read_as_by_the_model(system: str, data: st.DataObject) -> None:
    body = {"state": mutated(data, VALID[system], most=2)}
    raw = as_json(body)
    expected = by_model(system, raw)
    assert by_structs(system, raw) == expected
    try:
        packed = msgspec.msgpack.encode(body)
    except OverflowError:  # MessagePack has integers of 64 bits
        return
    assert by_structs(system, packed) == expected


@pytest.mark.parametrize("system", READ)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.binary(max_size=2)), max_size=2))
@BRIEF
def test_edited_text_is_read_as_by_the_model(
    system: str, edits: list[tuple[float, int, bytes]]
) -> None:
    raw = as_json({"state": VALID[system]})
    for where, removed, added in edits:
        place = int(where * len(raw))
        raw = raw[:place] + added + raw[place + removed :]
    if not request.is_msgpack(raw):
        assert by_structs(system, raw) == by_model(system, raw)


FINISHED = b'"tasks": 12, "started": 12'
TEXTS = [
    *(b'"%s"' % one for one in (b"\\ud800", b"\\ud800abcdef", b"\\udc00", b"\\ud83d\\ude00")),
    *(b'"%s"' % one for one in (b"\xff", b"\xed\xa0\x80", b"\x00", b"\\u0000", b"\\x", b"", b"x")),
    b'"%s"' % (b"x" * 201), b"null", b"7", b"true", b"[]", b'{"a": 1}', b"'x'", b"x",
]  # fmt: skip
NUMBERS = [
    b"12.0", b"1.2e1", b"012", b"+12", b"12.", b".5", b"-0", b"1e400", b"NaN", b"Infinity",
    b"9" * 400, b"9" * 20, b"12 ", b"0x1", b"true", b'"12"', b"null", b"1_2", b"1000001",
    b"4294967296",
]  # fmt: skip


def test_unusual_values_are_read_as_by_the_model() -> None:
    raw = as_json({"state": EXAMPLE})
    bodies = [raw.replace(b'"daily-report"', text) for text in TEXTS]
    bodies += [raw.replace(b": 12,", b": %b," % number) for number in NUMBERS]
    bodies += [raw.replace(b": 41.5", b": %b" % number) for number in NUMBERS]
    bodies += [raw + b" \n", raw + b"x", b"\xef\xbb\xbf" + raw, raw[:-1], b"", b"[]", b"null"]
    bodies += [raw.replace(b'"age_s": 6.2', b'"age_s": "x", "age_s": 6.2')]
    bodies += [raw.replace(b'"id"', b'"\\u0069d"'), raw.replace(b'"id"', b'"ID"')]
    accepted = 0
    for body in bodies:
        if not request.is_msgpack(body):
            expected = by_model("decima", body)
            assert by_structs("decima", body) == expected, body
            accepted += isinstance(expected, dict)
    assert 8 < accepted < len(bodies) - 30


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"state": EXAMPLE, "mode": "fast"}, "mode"),
        ({"state": EXAMPLE, "mode": ["active"]}, "mode"),
        ({"state": EXAMPLE, "deadline_ms": True}, "deadline_ms"),
        ({"state": EXAMPLE, "request_id": "a\n"}, "request_id"),
        ({"state": EXAMPLE, "request_id": b"a"}, "request_id"),
        ({"state": EXAMPLE, "mood": "active"}, "mood"),
        ({"stat": EXAMPLE}, "stat"),
        ({}, "state"),
        ({"state": []}, "state"),
        ({"state": {**EXAMPLE, "jobs": [b"x"]}}, "state.jobs[0]"),
        ({"state": {**EXAMPLE, "source": {"job": b"daily-report"}}}, "state.source.job"),
        ({"state": {**EXAMPLE, "source": {1: "daily-report"}}}, "state.source"),
        ({"state": {**EXAMPLE, "ask": msgspec.msgpack.Ext(5, b"x")}}, "state.ask"),
        ({"state": {**EXAMPLE, "executors": [{"count": 8, "cpu": float("nan")}]}},
         "state.executors[0].cpu"),
    ],
)  # fmt: skip
def test_wrong_msgpack_is_refused_with_the_field(body: Any, field: str) -> None:
    raw = msgspec.msgpack.encode(body)
    with pytest.raises(RequestError) as fault:
        read_all("decima", raw)
    assert str(fault.value.field).startswith(field)
    assert "\n" not in fault.value.line


@pytest.mark.parametrize("raw", [b"\x81", b"\x90", b"\xc1", b"\xff", b"\x81\xa5state\xa1\xff"])
@pytest.mark.parametrize("system", ["toy", "decima"])
def test_malformed_msgpack_is_refused(system: str, raw: bytes) -> None:
    with pytest.raises(RequestError):
        reader_of(system).read(raw)
    if b"state" not in raw:  # which the gateway does not read
        with pytest.raises(RequestError):
            request.parse_options(raw)


@pytest.mark.parametrize("system", ["toy", "decima"])
@pytest.mark.parametrize("junk", [b"\x90", b"\x80", b"\x81\x01", b"\x91"])
def test_large_junk_in_msgpack_is_refused_at_once(system: str, junk: bytes) -> None:
    size = 8 << 20
    inside = b"\xdd" + size.to_bytes(4, "big") + junk * (size // len(junk))
    for key in ("state", "mode", "x"):
        raw = b"\x81" + msgspec.msgpack.encode(key) + inside
        began = time.process_time()
        with pytest.raises(RequestError):
            read_all(system, raw)
        assert time.process_time() - began < 0.5


def test_other_systems_read_msgpack_of_limited_length() -> None:
    state = {"load": 42.0, "replicas": 3, "service": "web"}
    raw = msgspec.msgpack.encode({"state": state, "mode": "shadow"})
    assert by_structs("toy", raw) == {"version": 1, **state}
    assert isinstance(reader_of("toy").read(raw), toy.ToyState)
    long = msgspec.msgpack.encode({"state": {**state, "service": "x" * CONVERTED_BYTES}})
    line, field = by_structs("toy", long)
    assert (field, "JSON" in line) == (None, True)
    short = msgspec.msgpack.encode({"state": {**state, "service": "x" * 21}})
    assert by_structs("toy", short)[1] == "state.service"


class Pattern(State):
    name: str = Field(pattern="^a+$")


class Aliased(State):
    size: int = Field(alias="SIZE")


class Validated(State):
    size: int

    @field_validator("size")
    @classmethod
    def _is_even(cls, size: int) -> int:
        return size - size % 2


class Lenient(BaseModel):
    size: int


class WithLenient(State):
    inside: Lenient


class Tree(Record):
    branches: tuple[Tree, ...] = ()


class WithTree(State):
    tree: Tree


class Multiple(State):
    size: int = Field(multiple_of=2)


class Plain(State):
    sizes: dict[str, tuple[float, ...]] = Field(default={})
    kind: Literal["a", 1] = "a"


@pytest.mark.parametrize("model", [Pattern, Aliased, Validated, WithLenient, WithTree, Multiple])
def test_schemas_without_a_counterpart_are_left_to_the_model(model: type[State]) -> None:
    assert struct_type(model) is None


def test_floats_without_bounds_are_finite() -> None:
    struct = struct_type(Plain)
    for value, is_valid in ((1e300, True), (float("nan"), False), (float("inf"), False)):
        raw = msgspec.msgpack.encode({"sizes": {"x": [value]}, "kind": 1})
        try:
            msgspec.msgpack.decode(raw, type=struct)
        except msgspec.ValidationError:
            assert not is_valid
        else:
            assert is_valid


def test_logged_states_are_json() -> None:
    raw = to_json({"state": EXAMPLE, "mode": "shadow"})
    for body in (raw, json_to_msgpack(raw)):
        assert json.loads(request.encoded_state(body)) == EXAMPLE
    assert struct_reader.to_json_text(json_to_msgpack(raw)) == raw
