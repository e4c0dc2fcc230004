"""Decide requests in MessagePack: the decisions, errors, idempotency and log of those in JSON."""

from typing import Any

import msgspec
import pytest

from loadmaster.serving.http.body import MSGPACK
from loadmaster.serving.monitoring.log_files import read_log
from tests.serving.asgi import Answer
from tests.serving.conftest import ALL, LocalService, Start

PACKED = {"Content-Type": MSGPACK[0]}


def send(here: LocalService, system: str, body: Any, **headers: str) -> Answer:
    """Send a decide request in MessagePack."""
    raw = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    path, names = f"/v1/{system}/decide", {n.replace("_", "-"): v for n, v in headers.items()}
    return here.request("POST", path, raw, headers={**PACKED, **names})


@pytest.mark.parametrize("system", ALL)
@pytest.mark.parametrize("example", ["small", "large"])
def test_decisions_are_those_of_json(everything: LocalService, system: str, example: str) -> None:
    # A tenant each: a policy that remembers one decides otherwise the second time.
    body = {"state": everything.state(system, example), "tenant": f"{example}-json"}
    expected = everything.request("POST", f"/v1/{system}/decide", body).json
    assert expected["source"] == "policy"
    for number, kind in enumerate((*MSGPACK, "Application/MsgPack; charset=binary")):
        own = {**body, "tenant": f"{example}-{number}"}
        answer = send(everything, system, own, Content_Type=kind)
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "application/json"
        for field in ("decision", "source", "cause", "reason", "policy"):
            assert answer.json[field] == expected[field]


@pytest.mark.parametrize(
    ("accept", "is_packed"),
    [
        (MSGPACK[0], True),
        (MSGPACK[1], True),
        ("application/msgpack, */*;q=0.1", True),
        ("application/msgpack;q=0.9, application/json;q=0.8", True),
        ("application/json, application/msgpack", False),
        ("application/json;q=0.9, application/msgpack; q=0.5", False),
        ("application/msgpack;q=0", False),
        ("*/*", False),
        ("text/html", False),
        ("", False),
    ],
)
def test_responses_follow_accept(everything: LocalService, accept: str, is_packed: bool) -> None:
    for headers in ({"Accept": accept}, {"Accept": accept, **PACKED}):
        body: Any = {"state": {"load": 42.0, "replicas": 3}}
        raw = msgspec.msgpack.encode(body) if len(headers) > 1 else body
        answer = everything.request("POST", "/v1/toy/decide", raw, headers=headers)
        assert answer.status == 200
        kind = MSGPACK[0] if is_packed else "application/json"
        assert answer.headers["content-type"] == kind
        found = msgspec.msgpack.decode(answer.body) if is_packed else answer.json
        assert found["decision"] == {"replicas": 5}
    wrong = {"state": {"load": "x", "replicas": 3}}
    error = everything.request("POST", "/v1/toy/decide", wrong, headers={"Accept": accept})
    assert (error.status, error.json["field"]) == (422, "state.load")  # errors are JSON


@pytest.mark.parametrize("system", ALL)
def test_errors_have_the_field_and_nothing_is_decided(
    everything: LocalService, system: str
) -> None:
    state, before = everything.state(system), everything.status(system)["decisions"]["total"]
    for body, field in (
        ({"state": {**state, "version": 2}}, "state.version"),
        ({"state": {**state, "versoin": 1}}, "state.versoin"),
        ({"state": state, "mode": "fast"}, "mode"),
        ({"state": state, "mood": 1}, "mood"),
        ({}, "state"),
        (b"", None),
        (b"7", None),
        (b"{}", None),
        (b"\x81\xa5state", None),
        (msgspec.msgpack.encode({"state": state}) + b"x", None),
    ):
        answer = send(everything, system, body)
        assert (answer.status, answer.json["field"]) == (422, field), answer
    packed = msgspec.msgpack.encode({"state": state})
    answer = everything.request("POST", f"/v1/{system}/decide", packed)
    assert (answer.status, answer.json["field"]) == (422, None)  # not JSON
    assert "JSON" in answer.json["error"]
    assert everything.status(system)["decisions"]["total"] == before


def test_other_routes_take_json_only(everything: LocalService) -> None:
    for route in ("feedback", "pause", "promote"):
        answer = everything.request("POST", f"/v1/toy/{route}", b"\x80", headers=PACKED)
        assert answer.status == 415
    for kind in ("application/x-msgpack", "application/octet-stream"):
        assert send(everything, "toy", {}, Content_Type=kind).status == 415


def test_repeated_requests_get_the_same_response_in_either_form(start: Start) -> None:
    here = start()
    body = {"state": {"load": 42.0, "replicas": 3}, "request_id": "a"}
    first, again = send(here, "toy", body), send(here, "toy", body)
    assert first.body == again.body
    packed = send(here, "toy", body, Accept=MSGPACK[0])
    assert msgspec.msgpack.decode(packed.body) == first.json
    other = {**body, "state": {"load": 7.0, "replicas": 3}}
    assert send(here, "toy", other).json["decision"] == {"replicas": 1}
    assert here.status()["decisions"]["total"] == 2


def test_the_log_holds_json(start: Start) -> None:
    here = start()
    state = {"load": 42.0, "replicas": 3, "service": "é"}
    assert send(here, "toy", {"state": state, "mode": "shadow"}).status == 200
    assert here.request("POST", "/v1/toy/decide", {"state": state}).status == 200
    here.close()
    rows = list(read_log(here.folder / "kept" / "log"))
    assert [msgspec.json.decode(row.state) for row in rows] == [state, state]
    assert [row.mode for row in rows] == ["shadow", "active"]
