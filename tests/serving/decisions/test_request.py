"""What is read of a request, and how its faults are told."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from loadmaster.serving.decisions.decide import RequestOptions, parse_options
from loadmaster.serving.decisions.request import (
    MANY,
    RequestError,
    UnknownFieldError,
    feedback_model,
    outline,
    path_of,
    read,
    request_model,
    to_json,
)
from loadmaster.serving.monitoring.recorder import state_text
from loadmaster.serving.system import Record
from tests.serving import toy

REQUEST = request_model(toy.ENDPOINT)
STATE = {"load": 42.0, "replicas": 3}


class Leaf(Record):
    size: int
    kind: Literal["a", "b"] = "a"


class Branch(Record):
    leaves: tuple[Leaf, ...] = Field(max_length=3)
    default: dict[str, int] = Field(default_factory=dict)
    neighbour: Leaf | None = None

    @model_validator(mode="after")
    def _never_reached(self) -> Branch:
        raise AssertionError("an outline looks at the shape alone")


@pytest.mark.parametrize(
    ("more", "frame"),
    [
        ({}, RequestOptions()),
        ({"mode": "shadow"}, RequestOptions(mode="shadow")),
        ({"deadline_ms": 5}, RequestOptions(deadline_ms=5)),
        ({"deadline_ms": None, "request_id": None}, RequestOptions()),
        ({"mode": "active", "request_id": "a:b.c-1_2"}, RequestOptions(request_id="a:b.c-1_2")),
    ],
)
def test_frames(more: dict[str, Any], frame: RequestOptions) -> None:
    assert parse_options(to_json({"state": STATE, **more})) == frame
    assert parse_options(to_json({**more, "state": STATE})) == frame


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b'"mode"',
        b'{"mode": ',
        b'{"mode": "shadow"',
        b"\xff",
        b"[" * 5000 + b'"mode"',
    ],
)
def test_who_reads_it_for_good_says_what_is_wrong(raw: bytes) -> None:
    assert parse_options(raw) == RequestOptions()
    with pytest.raises(RequestError):
        read(REQUEST, raw)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"mode": "x"}, "mode"),
        ({"deadline_ms": "5"}, "deadline_ms"),
        ({"request_id": ""}, "request_id"),
    ],
)
def test_wrong_frames(more: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as fault:
        parse_options(to_json({"state": STATE, **more}))
    assert fault.value.field == field


@pytest.mark.parametrize("name", ["\\u006dode", "mod\\u0065", "\\u006d\\u006f\\u0064\\u0065"])
def test_names_may_be_escaped(name: str) -> None:
    raw = f'{{"{name}": "shadow", "state": {json.dumps(STATE)}}}'.encode()
    assert parse_options(raw).mode == read(REQUEST, raw).mode == "shadow"
    assert json.loads(state_text(raw)) == STATE


def test_of_a_name_given_twice_the_last_one_counts() -> None:
    raw = b'{"state": {"load": 1, "replicas": 1}, "mode": "shadow", "mode": "active", '
    raw += b'"state": {"load": 2, "load": 3, "replicas": 2}}'
    asked = read(REQUEST, raw)
    assert (asked.state.load, asked.state.replicas, asked.mode) == (3, 2, "active")
    assert parse_options(raw).mode == "active"
    assert json.loads(state_text(raw)) == {"load": 3, "replicas": 2}
    twice = b'{"state": {"load": 1, "replicas": 1}, "state": {"load": 2, "replicas": 2}}'
    assert json.loads(state_text(twice)) == {"load": 2, "replicas": 2}


texts = st.text(max_size=12) | st.sampled_from(
    ['"mode"', '"state"', "\\", '":', "}", '{"state":1}']
)
frames = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["active", "shadow"]),
        "deadline_ms": st.none() | st.floats(1, 100),
        "request_id": st.none() | st.from_regex(r"[a-z0-9.:-]{1,9}", fullmatch=True),
    },
)


@given(service=texts, load=st.floats(0, 1e6), frame=frames, last=st.booleans(), data=st.data())
def test_the_state_that_is_logged_is_the_state_that_was_sent(
    service: str, load: float, frame: dict[str, Any], last: bool, data: st.DataObject
) -> None:
    state = {"load": load, "replicas": 3, "service": service}
    asked = {**frame, "state": state} if last else {"state": state, **frame}
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 2]))
    raw = json.dumps(asked, ensure_ascii=ascii_only, indent=indent).encode()
    try:
        told = read(REQUEST, raw)
    except RequestError:
        return
    assert json.loads(state_text(raw)) == state
    assert parse_options(raw) == RequestOptions(told.mode, told.deadline_ms, told.request_id)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ((), ""),
        (("state", "jobs", 0, "id"), "state.jobs[0].id"),
        ((0, "x"), "[0].x"),
        (("<b>", "\n\x1b[31m", "é"), "<b>.??[31m.?"),
        (("x" * 500,), "x" * 200),
    ],
)
def test_paths(location: tuple[int | str, ...], path: str) -> None:
    assert path_of(location) == path


@pytest.mark.parametrize(
    ("raw", "field", "line"),
    [
        (b'{"outcom": {}}', "outcom", "did you mean 'outcome'?"),
        (b'{"outcome": {"rewrad": 1}}', "outcome.rewrad", "did you mean 'reward'?"),
        (b'{"outcome": {"zzz": 1}}', "outcome.zzz", "expected one of: reward"),
        (b'{"outcome": {}, "zzz": 1}', "outcome.reward", "required"),
        (b'{"outcome": {"reward": null}}', "outcome.reward", "number"),
    ],
)
def test_misspelt_fields(raw: bytes, field: str, line: str) -> None:
    with pytest.raises(RequestError) as fault:
        read(feedback_model(toy.ENDPOINT), raw)
    assert fault.value.field == field
    assert line in fault.value.line


def test_fields_inside_lists_and_options() -> None:
    for raw, known in [
        (b'{"leaves": [{"siez": 1}]}', "did you mean 'size'?"),
        (b'{"leaves": [], "neighbour": {"knid": 1, "size": 1}}', "did you mean 'kind'?"),
    ]:
        with pytest.raises(RequestError, match=known.replace("?", r"\?")):
            read(Branch, raw)


def test_a_line_is_never_long() -> None:
    assert len(RequestError("x" * 10_000).line) == 300


# Large requests.


@pytest.mark.parametrize(
    "raw",
    [
        b'{"leaves": [{"size": 1}, {"size": 2, "kind": "b"}], "default": {"x": 1}}',
        b'{"leaves": [], "neighbour": {"size": 3}}',
        b'{"leaves": [], "neighbour": null}',
    ],
)
def test_an_outline_fits(raw: bytes) -> None:
    _, _, fields = outline(Branch).validate_json(raw, strict=True)
    assert fields == set(json.loads(raw))


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (b'{"leaves": [1, 2, 3]}', ("leaves", 0)),
        (b'{"leaves": [{"size": "1"}, 2]}', ("leaves", 0, "size")),
        (b'{"leaves": [{"size": 1}, {"size": 1.5}]}', ("leaves", 1, "size")),
        (b'{"leaves": [{"size": 1, "kind": "c"}]}', ("leaves", 0, "kind")),
        (b'{"leaves": 1}', ("leaves",)),
        (b"{}", ("leaves",)),
    ],
)
def test_an_outline_stops_at_the_first_fault(raw: bytes, where: tuple[int | str, ...]) -> None:
    with pytest.raises(ValidationError) as fault:
        outline(Branch).validate_json(raw, strict=True)
    assert [one["loc"] for one in fault.value.errors()] == [where]


@pytest.mark.parametrize(
    "raw", [b'{"x": 1, "y": 1}', b'{"leaves": [{"x": 1}, 3]}', b'{"neighbour": {"x": 1}}']
)
def test_an_outline_knows_the_names(raw: bytes) -> None:
    with pytest.raises(UnknownFieldError) as fault:
        outline(Branch).validate_json(raw, strict=True)
    assert fault.value.name == "x"


def test_large_requests_are_read_like_small_ones() -> None:
    class Many(Record):
        values: tuple[float, ...]

    values = [float(number) for number in range(MANY + 10)]
    assert read(Many, to_json({"values": values})).values == tuple(values)
    with pytest.raises(RequestError) as fault:
        read(Many, to_json({"values": [*values, "x", "y"]}))
    assert fault.value.field == f"values[{len(values)}]"
    with pytest.raises(RequestError) as fault:
        read(Many, to_json({"valeus": values}))
    assert fault.value.field == "valeus"
