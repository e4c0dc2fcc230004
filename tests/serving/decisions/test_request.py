"""Reading of requests: options, strictness, paths of fields, the fast check of large requests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from loadmaster.serving.decisions import request
from loadmaster.serving.decisions.request import (
    RequestError,
    encoded_state,
    parse_options,
    read,
)
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, tenant_of
from loadmaster.serving.system import Quantity, Record
from tests.serving import toy

REQUEST: Any = request.request_model(toy.ENDPOINT)
STATE = {"load": 42.0, "replicas": 3}


def refused(check: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as fault:
        check()
    return fault.value


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b'"mode"', b'{"mode": ', b'{"mode": "shadow"', b'{"mode": "\xff"}',
            b"[" * 5000 + b'"mode"'],
)  # fmt: skip
def test_malformed_requests_are_refused_in_the_same_words(raw: bytes) -> None:
    lines = [
        refused(check).line for check in (lambda: parse_options(raw), lambda: read(REQUEST, raw))
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("field", "value"), [("mode", "x"), ("deadline_ms", "5"), ("request_id", ""), ("tenant", "a b")]
)
def test_parse_options_refuses_wrong_options(field: str, value: str) -> None:
    raw = request.to_json({"state": STATE, field: value})
    assert refused(lambda: parse_options(raw)).field == field


@pytest.mark.parametrize("as_msgpack", [False, True])
def test_a_field_of_the_state_names_the_tenant(as_msgpack: bool) -> None:
    def tenant(body: dict[str, Any], field: str = "service") -> str:
        raw = request.to_json(body)
        return parse_options(request.json_to_msgpack(raw) if as_msgpack else raw, field).tenant

    state = {**STATE, "service": "shop/cart"}
    assert tenant({"state": state}) == tenant_of("shop/cart")
    assert tenant({"state": state, "mode": "shadow"}) == tenant_of("shop/cart")
    assert tenant({"state": state, "tenant": "given"}) == "given"
    assert tenant({"state": state, "tenant": DEFAULT_TENANT}) == DEFAULT_TENANT
    assert tenant({"state": state}, "") == DEFAULT_TENANT
    assert tenant({"state": STATE}) == tenant({}) == DEFAULT_TENANT
    assert tenant({"state": {"service": 7}}) == DEFAULT_TENANT, "the worker refuses it"


@pytest.mark.parametrize("name", ["\\u006dode", "mod\\u0065", "\\u006d\\u006f\\u0064\\u0065"])
def test_names_may_be_escaped(name: str) -> None:
    raw = f'{{"{name}": "shadow", "state": {json.dumps(STATE)}}}'.encode()
    assert parse_options(raw).mode == read(REQUEST, raw).mode == "shadow"
    assert json.loads(encoded_state(raw)) == STATE


def test_the_last_of_repeated_names_counts() -> None:
    raw = b'{"state": {"load": 1, "replicas": 1}, "mode": "shadow", "mode": "active", '
    raw += b'"state": {"load": 2, "load": 3, "replicas": 2}}'
    found = read(REQUEST, raw)
    assert (found.state.load, found.state.replicas, found.mode) == (3, 2, "active")
    assert parse_options(raw).mode == "active"
    assert json.loads(encoded_state(raw)) == {"load": 3, "replicas": 2}
    twice = b'{"state": {"load": 1, "replicas": 1}, "state": {"load": 2, "replicas": 2}}'
    assert json.loads(encoded_state(twice)) == {"load": 2, "replicas": 2}


names = st.text(max_size=12) | st.sampled_from(['"mode"', '"state"', "\\", '":', '{"state":1}'])
options = {
    "mode": st.sampled_from(["active", "shadow"]),
    "deadline_ms": st.none() | st.floats(1, 100),
    "request_id": st.none() | st.text("az09.:-", min_size=1, max_size=9),
    "tenant": st.text("az09.-", min_size=1, max_size=9),
}


forms = st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, 2]))


@given(st.fixed_dictionaries({}, optional=options), names, st.floats(0, 1e6), forms)
@settings(max_examples=60)
def test_options_and_logged_state_are_those_that_were_sent(
    more: dict[str, Any], service: str, load: float, form: tuple[bool, bool, int | None]
) -> None:
    state, (last, plain, indent) = {"load": load, "replicas": 3, "service": service}, form
    body = {**more, "state": state} if last else {"state": state, **more}
    raw = json.dumps(body, ensure_ascii=plain, indent=indent).encode()
    try:
        found = read(REQUEST, raw)
    except RequestError:
        return
    assert json.loads(encoded_state(raw)) == state
    assert parse_options(raw) == (found.mode, found.deadline_ms, found.request_id, found.tenant)


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
    assert request.path_of(location) == path


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


def check_shape(raw: bytes) -> Any:
    return request.shape_validator(Branch).validate_json(raw, strict=True)


FEEDBACK = request.feedback_model(toy.ENDPOINT)


@pytest.mark.parametrize(
    ("model", "raw", "field", "contains"),
    [
        (FEEDBACK, b'{"outcom": {}}', "outcom", "'outcome'"),
        (FEEDBACK, b'{"outcome": {"rewrad": 1}}', "outcome.rewrad", "'reward'"),
        (FEEDBACK, b'{"outcome": {"zzz": 1}}', "outcome.zzz", "reward"),
        (FEEDBACK, b'{"outcome": {}, "z": 1}', "outcome.reward", "required"),
        (FEEDBACK, b'{"outcome": {"reward": null}}', "outcome.reward", "num"),
        (Branch, b'{"leaves": [{"siez": 1}]}', "leaves[0].siez", "'size'"),
        (Branch, b'{"leaves": [], "neighbour": {"knid": 1, "size": 1}}', "neighbour.knid", "kind"),
    ],
)
def test_the_nearest_name_is_given(model: Any, raw: bytes, field: str, contains: str) -> None:
    fault = refused(lambda: read(model, raw))
    assert fault.field == field
    assert contains in fault.line


def test_the_fast_check_accepts_valid_shapes() -> None:
    for raw in (
        b'{"leaves": [{"size": 1}, {"size": 2, "kind": "b"}], "default": {"x": 1}}',
        b'{"leaves": [], "neighbour": {"size": 3}}',
        b'{"leaves": [], "neighbour": null}',
    ):
        assert check_shape(raw)[2] == set(json.loads(raw))


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
        check_shape(raw)
    assert [one["loc"] for one in fault.value.errors()] == [where]


def test_the_fast_check_finds_unknown_fields() -> None:
    for raw in (b'{"x": 1, "y": 1}', b'{"leaves": [{"x": 1}, 3]}', b'{"neighbour": {"x": 1}}'):
        with pytest.raises(request.UnknownFieldError, match=r"\Ax\Z"):
            check_shape(raw)


def test_large_requests_are_read_like_small_ones() -> None:
    class Many(Record):
        values: tuple[float, ...]

    values = [float(number) for number in range(request.FAST_CHECK_VALUES + 10)]
    assert read(Many, request.to_json({"values": values})).values == tuple(values)
    wrong, misspelt = {"values": [*values, "x", "y"]}, {"valeus": values}
    assert refused(lambda: read(Many, request.to_json(wrong))).field == f"values[{len(values)}]"
    assert refused(lambda: read(Many, request.to_json(misspelt))).field == "valeus"


def test_replies_of_a_worker_are_decoded_as_they_were_encoded() -> None:
    decided = request.Decided(
        decision={"replicas": 3},
        reason={"summary": "a load of 42", "choices": {}},
        source="policy",
        cause=None,
        detail="",
        policy={"name": "toy", "version": "1"},
        quantities=(Quantity("replicas", 2.0, 3.0),),
        features={"load": math.inf},
    )
    for reply in (decided, request.Invalid("load: is missing", "load")):
        assert request.decode_reply(request.encode_reply(reply)) == reply
