"""Bad requests and bundles: refused quickly, in one line with the field, and nothing changes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loadmaster.serving.http.body import MAX_NESTED, MAX_VALUES, SMALL_BYTES
from loadmaster.serving.policies.manager import VERBS
from loadmaster.serving.settings import LimitSettings
from tests.serving import toy
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


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_the_first_of_many_bad_items_is_reported(everything: LocalService, system: str) -> None:
    state = everything.state(system)
    for field in (name for name, value in state.items() if isinstance(value, list)):
        body = {"state": {**state, field: [1] * (MAX_VALUES - 2000)}}
        assert_refused(everything, "POST", f"/v1/{system}/decide", body, 422, f"state.{field}[0]")


REWARDS = (b"NaN", b"-Infinity", b"1e999", b"9" * 400, b'"1"', b"true")
FEEDBACK = [
    (b"", None, "JSON"),
    (b"[1]", None, "object"),
    (b'{"outcome": NaN}', "outcome", "object"),
    (b"{}", "outcome", "required"),
    (b'{"outcomes": {}}', "outcomes", "'outcome'"),
    (b'{"outcome": {"nope": 1}}', "outcome.nope", "unknown field"),
    (b'{"id": 7, "outcome": {}}', "id", "string"),
    (b'{"id": "%s", "outcome": {}}' % (b"x" * 101), "id", "at most 100"),
]
ADMIN = [
    (b"no", 422, None, "JSON"),
    (b"[]", 422, None, "object"),
    (b"null", 422, None, "object"),
    (b"[" * 90_000, 422, None, "recursion"),
    (b'{"reason": 5}', 422, "reason", "string"),
    (b'{"reason": "%s"}' % (b"x" * 301), 422, "reason", "at most 300"),
    (b'{"raeson": "x"}', 422, "raeson", "'reason'"),
    (b'{"reason": "%s"}' % (b"x" * SMALL_BYTES), 413, None, "too large"),
]


def test_bad_feedback_and_admin_requests_change_nothing(everything: LocalService) -> None:
    before = everything.status()
    for system in ALL:
        for body, field, contains in FEEDBACK:
            assert_refused(everything, "POST", f"/v1/{system}/feedback", body, 422, field, contains)
    for reward in REWARDS:
        body = b'{"outcome": {"reward": %s}}' % reward
        assert_refused(everything, "POST", "/v1/toy/feedback", body, 422, "outcome.reward")
    for verb in VERBS:
        for body, status, field, contains in ADMIN:
            assert_refused(everything, "POST", f"/v1/toy/{verb}", body, status, field, contains)
    after = everything.status()
    assert {**after, "log": 0, "latency_ms": 0} == {**before, "log": 0, "latency_ms": 0}


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


# Bodies.


def test_bodies_of_another_type_or_length_are_refused(everything: LocalService) -> None:
    for header, value, status, contains in [
        ("Content-Type", "text/plain", 415, "application/json"),
        ("Content-Type", "multipart/form-data; boundary=x", 415, "application/json"),
        ("Content-Type", "x" * 5000, 415, "application/json"),
        ("Content-Type", "<script>", 415, "application/json"),
        ("Content-Encoding", "gzip", 415, "gzip"),
        ("Content-Length", str(MAX_BODY + 1), 413, "too large"),
        ("Content-Length", "9" * 5000, 413, "too large"),
    ]:
        for route in ("decide", "feedback", "pause", "promote"):
            more = {"headers": {header: value}}
            path = f"/v1/toy/{route}"
            assert_refused(everything, "POST", path, b"{}", status, None, contains, **more)


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": one} for one in ("", "-1", "x", "²", "1e3", "0x10", "5")]
    + [{"Content-Type": one} for one in ("application/json; charset=utf-8", "Application/JSON")],
)
def test_valid_types_and_unusable_lengths_are_accepted(
    everything: LocalService, headers: dict[str, str]
) -> None:
    body = {"state": everything.state("toy")}
    answer = everything.request("POST", "/v1/toy/decide", body, headers=headers, parts=9)
    assert answer.status == 200


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


# Bundles.


def bad_bundles(folder: Path) -> list[str]:
    """Names and folders that are not usable bundles."""
    made = folder / "bad"
    made.mkdir()
    weights = toy.make_bundle(folder / "valid", "other", extra=3) / "weights.safetensors"
    manifest = json.loads((folder / "valid" / "manifest.json").read_text())

    def bundle(name: str, manifest: Any = None) -> Path:
        (made / name).mkdir()
        if manifest is not None:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            (made / name / "manifest.json").write_text(text)
        return made / name

    def with_weights(**changes: Any) -> dict[str, Any]:
        return {**manifest, "weights": {**manifest["weights"], **changes}}

    os.mkfifo(made / "pipe")
    (made / "loop").symlink_to(made / "loop")
    (made / "file").write_text("x")
    os.mkfifo(bundle("manifest is a pipe") / "manifest.json")
    (bundle("manifest is zeros") / "manifest.json").symlink_to("/dev/zero")
    (bundle("manifest is a folder") / "manifest.json").mkdir()
    (bundle("manifest is passwd") / "manifest.json").symlink_to("/etc/passwd")
    bundle("nested manifest", "[" * 1_000_000)
    bundle("long manifest", " " * (5 << 20))
    bundle("incomplete manifest", {"kind": "loadmaster-policy"})
    bundle("no weights", manifest)
    os.mkfifo(bundle("weights are a pipe", manifest) / "weights.safetensors")
    (bundle("weights are zeros", manifest) / "weights.safetensors").symlink_to("/dev/zero")
    huge = bundle("huge weights", with_weights(bytes=1 << 40)) / "weights.safetensors"
    with huge.open("wb") as sparse:
        sparse.truncate(1 << 40)
    bundle("digest is a path", with_weights(sha256="../" * 21 + "x"))
    wrong = bundle("wrong digest", with_weights(sha256="0" * 64))
    (wrong / "weights.safetensors").write_bytes(weights.read_bytes())
    names = ["", " ", ".", "..", "../..", "~", "-", "/", "/dev/zero", "/dev/stdin", "/proc/self",
             "/etc/passwd", "a\0b", "/a\0b", "x" * 1000, "/" + "x" * 999, "../" * 300,
             "decima-sream", "<script>", "toy\n", "//", "file:///etc", "é" * 500]  # fmt: skip
    return names + [str(one) for one in made.iterdir()]


def test_bad_bundles_are_refused_and_nothing_is_stored(start: Start) -> None:
    here = start()
    kept = here.folder / "kept"
    before = here.status(), sorted(kept.rglob("*"))
    for bundle in bad_bundles(here.folder):
        for to in ("serving", "shadow"):
            body = {"bundle": bundle, "to": to}
            answer = assert_refused(here, "POST", "/v1/toy/promote", body, 422, "bundle")
            assert "root:" not in answer.json["error"]  # no content of files
    after = here.status(), sorted(kept.rglob("*"))
    assert {**after[0], "log": 0} == {**before[0], "log": 0}
    assert after[1] == before[1]
    assert here.decide()["source"] == "policy"


def test_a_bundle_without_permission_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start()
    closed = here.folder / "closed"
    is_file = Path.is_file

    def denied(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    body = {"bundle": str(closed)}
    assert_refused(here, "POST", "/v1/toy/promote", body, 422, "bundle", "Permission denied")


def test_a_link_to_a_bundle_is_accepted(start: Start) -> None:
    here = start()
    better = toy.make_bundle(here.folder / "better", "better", extra=1)
    (here.folder / "link").symlink_to(better)
    answer = here.request("POST", "/v1/toy/promote", {"bundle": str(here.folder / "link")})
    assert answer.json["policies"]["serving"]["name"] == "better"
