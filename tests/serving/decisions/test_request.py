"""Reading of requests: options, strictness, paths of fields, the fast check of large requests."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from loadmaster.serving.decisions.request import (
    FAST_CHECK_VALUES,
    RequestError,
    RequestOptions,
    UnknownFieldError,
    feedback_model,
    parse_options,
    path_of,
    read,
    request_model,
    shape_validator,
    to_json,
)
from loadmaster.serving.monitoring.recorder import state_text
from loadmaster.serving.system import Record
from tests.serving import toy

REQUEST: Any = request_model(toy.ENDPOINT)
STATE = {"load": 42.0, "replicas": 3}


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({}, RequestOptions()),
        ({"mode": "shadow"}, RequestOptions(mode="shadow")),
        ({"deadline_ms": 5}, RequestOptions(deadline_ms=5)),
        ({"deadline_ms": None, "request_id": None}, RequestOptions()),
        ({"mode": "active", "request_id": "a:b.c-1_2"}, RequestOptions(request_id="a:b.c-1_2")),
    ],
)
def test_options_are_read_in_any_position(more: dict[str, Any], options: RequestOptions) -> None:
    assert parse_options(to_json({"state": STATE, **more})) == options
    assert parse_options(to_json({**more, "state": STATE})) == options


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b'"mode"', b'{"mode": ', b'{"mode": "shadow"', b"\xff",
            b"[" * 5000 + b'"mode"'],
)  # fmt: skip
def test_parse_options_leaves_malformed_requests_to_read(raw: bytes) -> None:
    assert parse_options(raw) == RequestOptions()
    with pytest.raises(RequestError):
        read(REQUEST, raw)


@pytest.mark.parametrize(
    ("field", "value"), [("mode", "x"), ("deadline_ms", "5"), ("request_id", "")]
)
def test_parse_options_refuses_wrong_options(field: str, value: str) -> None:
    with pytest.raises(RequestError) as fault:
        parse_options(to_json({"state": STATE, field: value}))
    assert fault.value.field == field


@pytest.mark.parametrize("name", ["\\u006dode", "mod\\u0065", "\\u006d\\u006f\\u0064\\u0065"])
def test_names_may_be_escaped(name: str) -> None:
    raw = f'{{"{name}": "shadow", "state": {json.dumps(STATE)}}}'.encode()
    assert parse_options(raw).mode == read(REQUEST, raw).mode == "shadow"
    assert json.loads(state_text(raw)) == STATE


def test_the_last_of_repeated_names_counts() -> None:
    raw = b'{"state": {"load": 1, "replicas": 1}, "mode": "shadow", "mode": "active", '
    raw += b'"state": {"load": 2, "load": 3, "replicas": 2}}'
    request = read(REQUEST, raw)
    assert (request.state.load, request.state.replicas, request.mode) == (3, 2, "active")
    assert parse_options(raw).mode == "active"
    assert json.loads(state_text(raw)) == {"load": 3, "replicas": 2}
    twice = b'{"state": {"load": 1, "replicas": 1}, "state": {"load": 2, "replicas": 2}}'
    assert json.loads(state_text(twice)) == {"load": 2, "replicas": 2}


texts = st.text(max_size=12) | st.sampled_from(
    ['"mode"', '"state"', "\\", '":', "}", '{"state":1}']
)
option_sets = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["active", "shadow"]),
        "deadline_ms": st.none() | st.floats(1, 100),
        "request_id": st.none() | st.text("az09.:-", min_size=1, max_size=9),
    },
)


@given(texts, st.floats(0, 1e6), option_sets, st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_the_logged_state_is_the_state_that_was_sent(
    service: str, load: float, options: dict[str, Any], last: bool, plain: bool, indented: bool
) -> None:
    state = {"load": load, "replicas": 3, "service": service}
    body = {**options, "state": state} if last else {"state": state, **options}
    raw = json.dumps(body, ensure_ascii=plain, indent=2 if indented else None).encode()
    try:
        request = read(REQUEST, raw)
    except RequestError:
        return
    assert json.loads(state_text(raw)) == state
    assert parse_options(raw) == (request.mode, request.deadline_ms, request.request_id)


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
def test_path_of(location: tuple[int | str, ...], path: str) -> None:
    assert path_of(location) == path


class Leaf(Record):
    size: int
    kind: Literal["a", "b"] = "a"


class Branch(Record):
    leaves: tuple[Leaf, ...] = Field(max_length=3)
    default: dict[str, int] = Field(default_factory=dict)
    neighbour: Leaf | None = None

    @model_validator(mode="after")
    def _never_reached(self) -> Branch:
        raise AssertionError("the fast check must not create instances")


@pytest.mark.parametrize(
    ("model", "raw", "field", "contains"),
    [
        (feedback_model(toy.ENDPOINT), b'{"outcom": {}}', "outcom", "'outcome'"),
        (feedback_model(toy.ENDPOINT), b'{"outcome": {"rewrad": 1}}', "outcome.rewrad", "'reward'"),
        (feedback_model(toy.ENDPOINT), b'{"outcome": {"zzz": 1}}', "outcome.zzz", "reward"),
        (feedback_model(toy.ENDPOINT), b'{"outcome": {}, "z": 1}', "outcome.reward", "required"),
        (feedback_model(toy.ENDPOINT), b'{"outcome": {"reward": null}}', "outcome.reward", "num"),
        (Branch, b'{"leaves": [{"siez": 1}]}', "leaves[0].siez", "'size'"),
        (Branch, b'{"leaves": [], "neighbour": {"knid": 1, "size": 1}}', "neighbour.knid", "kind"),
    ],
)
def test_misspelt_fields_are_reported_with_the_nearest_name(
    model: type[Record], raw: bytes, field: str, contains: str
) -> None:
    with pytest.raises(RequestError) as fault:
        read(model, raw)
    assert fault.value.field == field
    assert contains in fault.value.line


def test_the_fast_check_accepts_valid_shapes() -> None:
    for raw in (
        b'{"leaves": [{"size": 1}, {"size": 2, "kind": "b"}], "default": {"x": 1}}',
        b'{"leaves": [], "neighbour": {"size": 3}}',
        b'{"leaves": [], "neighbour": null}',
    ):
        _, _, fields = shape_validator(Branch).validate_json(raw, strict=True)
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
def test_the_fast_check_stops_at_the_first_error(raw: bytes, where: tuple[int | str, ...]) -> None:
    with pytest.raises(ValidationError) as fault:
        shape_validator(Branch).validate_json(raw, strict=True)
    assert [one["loc"] for one in fault.value.errors()] == [where]


def test_the_fast_check_finds_unknown_fields() -> None:
    for raw in (b'{"x": 1, "y": 1}', b'{"leaves": [{"x": 1}, 3]}', b'{"neighbour": {"x": 1}}'):
        with pytest.raises(UnknownFieldError, match=r"\Ax\Z"):
            shape_validator(Branch).validate_json(raw, strict=True)


def test_large_requests_are_read_like_small_ones() -> None:
    class Many(Record):
        values: tuple[float, ...]

    values = [float(number) for number in range(FAST_CHECK_VALUES + 10)]
    assert read(Many, to_json({"values": values})).values == tuple(values)
    for body, field in [
        ({"values": [*values, "x", "y"]}, f"values[{len(values)}]"),
        ({"valeus": values}, "valeus"),
    ]:
        with pytest.raises(RequestError) as fault:
            read(Many, to_json(body))
        assert fault.value.field == field
