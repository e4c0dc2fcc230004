"""Bad requests: refused quickly, in one line with the field, and nothing changes."""

from __future__ import annotations

import copy
import json
import time
from typing import Any, NamedTuple

import pytest

from loadmaster.serving.http.body import MAX_NESTED, MAX_VALUES, SMALL_BYTES
from loadmaster.serving.settings import LimitSettings
from tests.serving.asgi import Answer
from tests.serving.conftest import ALL, SYSTEMS, LocalService, Start

MAX_BODY = LimitSettings().largest_bytes
BOM = b"\xef\xbb\xbf"


def assert_refused(
    here: LocalService,
    method: str,
    path: str,
    body: Any = None,
    status: int = 422,
    field: str | None = None,
    contains: str = "",
    **more: Any,
) -> Answer:
    """Send a request and check all that holds for every refusal."""
    began = time.process_time()  # of this process alone
    answer = here.request(method, path, body, **more)
    took_s = time.process_time() - began
    assert answer.status == status, answer
    assert set(answer.json) == {"error", "field"}
    assert answer.json["field"] == field, answer
    assert contains in answer.json["error"], answer
    assert "\n" not in answer.json["error"]
    assert len(answer.body) < 1200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert took_s < 1
    return answer


class Bad(NamedTuple):
    name: str
    body: bytes
    field: str | None
    contains: str = ""
    status: int = 422


def bad_requests(state: dict[str, Any]) -> list[Bad]:
    """Invalid decide requests, derived from a valid state of any system."""
    s = json.dumps(state).encode()

    def option(field: str, value: bytes) -> bytes:
        return b'{"state": %s, "%s": %s}' % (s, field.encode(), value)

    def inside(field: str, value: Any) -> bytes:
        return json.dumps({"state": {**state, field: value}}).encode()

    many = b",".join(b'"k%d":1' % number for number in range(MAX_VALUES // 2))
    return [
        Bad("empty", b"", None, "JSON"),
        Bad("not JSON", b"state=3", None, "JSON"),
        Bad("unfinished", b'{"state": ' + s, None, "JSON"),
        Bad("trailing text", b'{"state": %s} x' % s, None, "JSON"),
        Bad("null", b"null", None, "object"),
        Bad("list", b"[]", None, "object"),
        Bad("byte order mark", BOM + b'{"state": %s}' % s, None, "JSON"),
        Bad("UTF-16", json.dumps({"state": state}).encode("utf-16"), None, "JSON"),
        Bad("not UTF-8", option("request_id", b'"\xff"'), None, "JSON"),
        Bad("half a surrogate pair", option("request_id", b'"\\ud800"'), None, "JSON"),
        Bad("NUL in a string", option("request_id", b'"\x00"'), None, "JSON"),
        Bad("escaped NUL", option("request_id", b'"\\u0000"'), "request_id"),
        Bad("nested lists", b"[" * 90_000, None, "recursion"),
        Bad("nested objects", b'{"state":' * 90_000, None, "recursion"),
        Bad("200,000 brackets", b"[" * 200_000, None, "too many", 413),
        Bad("too many values", b"[%s1, 2]" % (b"1," * MAX_VALUES), None, "too many", 413),
        Bad("too many lists", b"[" + b"[]," * MAX_NESTED + b"1]", None, "too many", 413),
        Bad("no state", b"{}", "state", "required"),
        Bad("misspelt state", b'{"stat": %s}' % s, "stat", "'state'"),
        Bad("misspelt mode", option("mood", b'"shadow"'), "mood", "'mode'"),
        Bad("state is null", b'{"state": null}', "state", "object"),
        Bad("state is a list", b'{"state": [%s]}' % s, "state", "object"),
        Bad("unknown mode", option("mode", b'"fast"'), "mode", "active"),
        Bad("deadline 0", option("deadline_ms", b"0"), "deadline_ms", "greater"),
        Bad("deadline of an hour", option("deadline_ms", b"3600000"), "deadline_ms", "less"),
        Bad("NaN", option("deadline_ms", b"NaN"), "deadline_ms", "finite"),
        Bad("1e999", option("deadline_ms", b"1e999"), "deadline_ms", "finite"),
        Bad("400 digits", option("deadline_ms", b"9" * 400), "deadline_ms"),
        Bad("5,000 digits", option("deadline_ms", b"9" * 5000), None, "JSON"),
        Bad("quoted number", option("deadline_ms", b'"5"'), "deadline_ms", "number"),
        Bad("true for a number", option("deadline_ms", b"true"), "deadline_ms", "number"),
        Bad("empty id", option("request_id", b'""'), "request_id"),
        Bad("id not ASCII", option("request_id", '"\u00e2"'.encode()), "request_id"),
        Bad("id with a blank", option("request_id", b'"a b"'), "request_id"),
        Bad("id with a new line", option("request_id", b'"a\\n"'), "request_id"),
        Bad("id of megabytes", option("request_id", b'"%s"' % (b"x" * 4_000_000)), "request_id"),
        Bad("id is a number", option("request_id", b"7"), "request_id", "string"),
        Bad("version 2", inside("version", 2), "state.version", "1"),
        Bad("version true", inside("version", True), "state.version", "integer"),
        Bad("version quoted", inside("version", "1"), "state.version", "integer"),
        Bad("unknown field", inside("versoin", 1), "state.versoin", "'version'"),
        Bad("markup as a name", inside("<script>\n", 1), "state.<script>?", "unknown field"),
        Bad("name of a megabyte", inside("x" * 1_000_000, 1), ("state." + "x" * 200)[:200]),
        Bad("value of megabytes", inside("x", "y" * 4_000_000), "state.x", "unknown field"),
        Bad("many unknown fields", b'{"state": {%s}}' % many, "k0", "no such field"),
        Bad("many unknown options", b'{%s}' % many, "k0", "no such field"),
        Bad("list of many", b'{"state": [%s1]}' % (b"1," * (MAX_VALUES - 1)), "state"),
        Bad("many lists", b'{"state": [%s1]}' % (b"[]," * (MAX_NESTED - 2)), "state", "object"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("system", ALL)
def test_bad_decide_requests_are_refused(everything: LocalService, system: str) -> None:
    before = everything.status(system)["decisions"]["total"]
    state = everything.state(system)
    path = f"/v1/{system}/decide"
    everything.request("POST", path, {"state": state})
    for bad in bad_requests(state):
        assert_refused(everything, "POST", path, bad.body, bad.status, bad.field, bad.contains)
    after = everything.status(system)
    assert after["decisions"]["total"] == before + 1
    assert after["breaker"] == "closed"


def changed(state: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Copy a state with one value replaced; a path such as jobs.0.id."""
    new = copy.deepcopy(state)
    *where, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    branch: Any = new
    for part in where:
        branch = branch[part]
    branch[last] = value
    return new


@pytest.mark.parametrize(
    ("path", "value", "field", "contains"),
    [
        ("jobs.0", "x", "jobs[0]", "object"),
        ("jobs", [{"id": "x", "stage": []}], "jobs[0].stage", "'stages'"),
        ("executors.0.count", 8.0, "executors[0].count", "integer"),
        ("executors.0.count", "8", "executors[0].count", "integer"),
        ("executors.0.count", True, "executors[0].count", "integer"),
        ("executors.0.count", 10**30, "executors[0].count", "less"),
        ("jobs.0.stages.0.parents", ["join"], "jobs[0].stages[0].parents", "DAG"),
        ("jobs.0.stages.1.parents", ["nope"], "jobs[0].stages[1].parents[0]", "'nope'"),
        ("jobs.0.stages.1.task", 5, "jobs[0].stages[1].task", "'tasks'"),
        ("jobs.0.stages.1.task_ms", float("nan"), "jobs[0].stages[1].task_ms", "finite"),
        ("jobs.0.stages.1.tasks", None, "jobs[0].stages[1].tasks", "integer"),
        ("jobs.0.stages.1.chosen", 1, "jobs[0].stages[1].chosen", "boolean"),
        ("jobs.1.id", 7, "jobs[1].id", "string"),
        ("more_to_come", "yes", "more_to_come", "boolean"),
    ],
)
def test_bad_decima_states_are_refused(
    everything: LocalService, path: str, value: Any, field: str, contains: str
) -> None:
    body = {"state": changed(everything.state("decima", "tiny"), path, value)}
    assert_refused(everything, "POST", "/v1/decima/decide", body, 422, f"state.{field}", contains)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_the_first_of_many_bad_items_is_reported(everything: LocalService, system: str) -> None:
    state = everything.state(system)
    for field in (name for name, value in state.items() if isinstance(value, list)):
        body = {"state": {**state, field: [1] * (MAX_VALUES - 2000)}}
        assert_refused(everything, "POST", f"/v1/{system}/decide", body, 422, f"state.{field}[0]")


# Feedback and admin actions.


@pytest.mark.parametrize("system", ALL)
@pytest.mark.parametrize(
    ("body", "field", "contains"),
    [
        (b"", None, "JSON"),
        (b"[1]", None, "object"),
        (b'{"outcome": NaN}', "outcome", "object"),
        (b"{}", "outcome", "required"),
        (b'{"outcomes": {}}', "outcomes", "'outcome'"),
        (b'{"outcome": {"nope": 1}}', "outcome.nope", "unknown field"),
        (b'{"id": 7, "outcome": {}}', "id", "string"),
        (b'{"id": "%s", "outcome": {}}' % (b"x" * 101), "id", "at most 100"),
    ],
)
def test_bad_feedback_is_refused(
    everything: LocalService, system: str, body: bytes, field: str | None, contains: str
) -> None:
    assert_refused(everything, "POST", f"/v1/{system}/feedback", body, 422, field, contains)


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999", b"9" * 400, b'"1"', b"true"])
def test_rewards_that_are_not_finite_numbers_are_refused(
    everything: LocalService, value: bytes
) -> None:
    body = b'{"outcome": {"reward": %s}}' % value
    assert_refused(everything, "POST", "/v1/toy/feedback", body, 422, "outcome.reward")


def test_extreme_rewards_keep_the_statistics_finite(start: Start) -> None:
    here = start()
    for reward in (1e308, -1e308, 1.7e308, 1e-320) * 20:
        answer = here.request("POST", "/v1/toy/feedback", {"outcome": {"reward": reward}})
        assert answer.status in (200, 422), answer
    assert here.request("POST", "/v1/toy/feedback", {"outcome": {"reward": 1.0}}).status == 200
    for path in ("status", "history"):
        text = here.request("GET", f"/v1/toy/{path}").body.decode()
        assert "NaN" not in text
        assert "Infinity" not in text
    rewards = here.status()["rewards"]
    here.run(here.service.systems["toy"].tick())
    here.close()
    assert start().status()["rewards"] == rewards  # saved and restored


@pytest.mark.parametrize("verb", ["pause", "resume", "promote", "rollback"])
def test_bad_admin_requests_change_nothing(everything: LocalService, verb: str) -> None:
    before = everything.status()
    for body, status, field, contains in [
        (b"no", 422, None, "JSON"),
        (b"[]", 422, None, "object"),
        (b"null", 422, None, "object"),
        (b"[" * 90_000, 422, None, "recursion"),
        (b'{"reason": 5}', 422, "reason", "string"),
        (b'{"reason": "%s"}' % (b"x" * 301), 422, "reason", "at most 300"),
        (b'{"raeson": "x"}', 422, "raeson", "'reason'"),
        (b'{"reason": "%s"}' % (b"x" * SMALL_BYTES), 413, None, "too large"),
    ]:
        assert_refused(everything, "POST", f"/v1/toy/{verb}", body, status, field, contains)
    after = everything.status()
    assert {**after, "log": 0, "latency_ms": 0} == {**before, "log": 0, "latency_ms": 0}


# Bodies.


@pytest.mark.parametrize("route", ["decide", "feedback", "pause", "promote"])
@pytest.mark.parametrize(
    ("headers", "status", "contains"),
    [
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "application/json"),
        ({"Content-Type": "x" * 5000}, 415, "application/json"),
        ({"Content-Type": "<script>"}, 415, "application/json"),
        ({"Content-Encoding": "gzip"}, 415, "gzip"),
        ({"Content-Length": str(MAX_BODY + 1)}, 413, "too large"),
        ({"Content-Length": "9" * 5000}, 413, "too large"),
    ],
)
def test_bodies_of_another_type_or_length_are_refused(
    everything: LocalService, route: str, headers: dict[str, str], status: int, contains: str
) -> None:
    path = f"/v1/toy/{route}"
    assert_refused(everything, "POST", path, b"{}", status, None, contains, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": one} for one in ("", "-1", "x", "²", "1e3", "0x10", "5")]
    + [{"Content-Type": one} for one in ("application/json; charset=utf-8", "Application/JSON")],
)
def test_valid_types_and_unusable_lengths_are_accepted(
    everything: LocalService, headers: dict[str, str]
) -> None:
    body = {"state": everything.state("toy")}
    assert (
        everything.request("POST", "/v1/toy/decide", body, headers=headers, parts=9).status == 200
    )


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "12"}])
def test_a_body_over_the_limit_is_refused_while_it_arrives(
    start: Start, headers: dict[str, str]
) -> None:
    here = start(limits={"largest_bytes": 1000})
    body = b'{"state": "' + b"x" * 100_000 + b'"}'
    more = {"headers": headers, "parts": 1000}
    assert_refused(here, "POST", "/v1/toy/decide", body, 413, None, "1,000 bytes", **more)


def test_a_body_that_stalls_is_refused(start: Start) -> None:
    here = start(limits={"body_s": 0.05})
    assert_refused(here, "POST", "/v1/toy/decide", b'{"state": ', 408, None, "0.05 s", stalls=True)
    assert here.decide()["source"] == "policy"


# Routes and queries.


@pytest.mark.parametrize(
    ("method", "path", "status", "contains"),
    [
        ("POST", "/v1/tyo/decide", 404, "'toy'"),
        ("POST", "/v1/" + "x" * 5000 + "/decide", 404, "unknown system"),
        ("GET", "/v1/<script>alert(1)</script>/status", 404, "no such route"),
        ("GET", "/v1/<script>/status", 404, "unknown system"),
        ("GET", "/v1/../status", 404, "unknown system"),
        ("GET", "/v1/systems/status", 404, "unknown system"),
        ("GET", "/", 404, "no such route"),
        ("GET", "/v1", 404, "no such route"),
        ("GET", "/healthz/", 404, "no such route"),
        ("GET", "/v1/toy/status/", 404, "no such route"),
        ("POST", "/v1/toy/destroy", 404, "no such route"),
        ("GET", "/" + "x" * 5000, 404, "no such route"),
        ("GET", "/v1/toy/decide", 405, "GET"),
        ("POST", "/v1/toy/status", 405, "POST"),
        ("PUT", "/v1/toy/pause", 405, "PUT"),
        ("DELETE", "/v1/systems", 405, "DELETE"),
        ("OPTIONS", "/v1/toy/decide", 405, "OPTIONS"),
        ("TRACE", "/healthz", 405, "TRACE"),
        ("X" * 500, "/healthz", 405, "not allowed"),
    ],
)
def test_unknown_routes_are_refused(
    everything: LocalService, method: str, path: str, status: int, contains: str
) -> None:
    answer = assert_refused(everything, method, path, None, status, None, contains)
    assert "location" not in answer.headers
    if status == 405:
        allowed = {"POST"} if path.endswith(("decide", "pause")) else {"GET", "HEAD"}
        assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/console", "/v1/toy/status"])
def test_head_requests_are_answered(everything: LocalService, path: str) -> None:
    assert everything.request("HEAD", path).status == 200


@pytest.mark.parametrize("host", ["[", "]:x", "a b", "\x7f", "x" * 5000])
def test_invalid_hosts_are_refused(everything: LocalService, host: str) -> None:
    assert_refused(everything, "GET", "/nowhere", None, 404, headers={"Host": host})
    assert_refused(everything, "GET", "/v1/systems", None, 403, headers={"Host": host})


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *((f"decisions?limit={one}", "limit") for one in ("0", "201", "-1", "1e2", "%C2%B2", "")),
        ("decisions?limit=" + "9" * 5000, "limit"),
        ("decisions?limit=%FF%00", "limit"),
        ("example?name=" + "x" * 9000, "name"),
    ],
)
def test_bad_queries_are_refused(everything: LocalService, query: str, field: str) -> None:
    assert_refused(everything, "GET", f"/v1/toy/{query}", None, 422, field, "expected")
