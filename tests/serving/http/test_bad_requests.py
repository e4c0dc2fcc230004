"""Bad requests and bundles: refused quickly, in one line with the field, and nothing changes."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from loadmaster.serving.http.body import JSON, MAX_NESTED, MAX_VALUES, SMALL_BYTES
from loadmaster.serving.policies.manager import AdminAction
from loadmaster.serving.settings import LimitSettings
from tests.serving import toy
from tests.serving.asgi import Answer
from tests.serving.conftest import ALL, SYSTEMS, LocalService, Start

Refusal = tuple[int, str | None, str]  # status, field, part of the error


def assert_refused(
    here: LocalService, request: str, refusal: Refusal, body: Any = None, **more: Any
) -> Answer:
    """Send a request, method and path, and check all that holds for every refusal."""
    method, path = request.split(" ", 1)
    status, field, contains = refusal
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


def bad_requests(state: dict[str, Any]) -> dict[Refusal, list[bytes]]:
    """Invalid decide requests from a valid state."""
    s = json.dumps(state).encode()

    def options(field: str, *values: bytes) -> list[bytes]:
        return [b'{"state": %s, "%s": %s}' % (s, field.encode(), value) for value in values]

    def states(field: str, *values: Any) -> list[bytes]:
        return [json.dumps({"state": {**state, field: value}}).encode() for value in values]

    many = b",".join(b'"k%d":1' % number for number in range(MAX_VALUES // 2))
    return {
        (422, None, "JSON"): [
            b"", b"state=3", b'{"state": ' + s, b'{"state": %s} x' % s,
            b'\xef\xbb\xbf{"state": %s}' % s, json.dumps({"state": state}).encode("utf-16"),
            *options("request_id", b'"\xff"', b'"\\ud800"', b'"\x00"', b"9" * 5000),
        ],
        (422, None, "object"): [b"null", b"[]"],
        (422, None, "recursion"): [b"[" * 90_000, b'{"state":' * 90_000],
        (413, None, "too many"): [
            b"[" * 200_000, b"[%s1, 2]" % (b"1," * MAX_VALUES), b"[%s1]" % (b"[]," * MAX_NESTED),
        ],
        (422, "state", "required"): [b"{}"],
        (422, "state", "object"): [
            b'{"state": null}', b'{"state": [%s]}' % s,
            b'{"state": [%s1]}' % (b"[]," * (MAX_NESTED - 2)),
        ],
        (422, "state", ""): [b'{"state": [%s1]}' % (b"1," * (MAX_VALUES - 1))],
        (422, "stat", "'state'"): [b'{"stat": %s}' % s],
        (422, "mood", "'mode'"): options("mood", b'"shadow"'),
        (422, "mode", "active"): options("mode", b'"fast"'),
        (422, "deadline_ms", "greater"): options("deadline_ms", b"0"),
        (422, "deadline_ms", "less"): options("deadline_ms", b"3600000"),
        (422, "deadline_ms", "finite"): options("deadline_ms", b"NaN", b"1e999"),
        (422, "deadline_ms", "number"): options("deadline_ms", b'"5"', b"true"),
        (422, "deadline_ms", ""): options("deadline_ms", b"9" * 400),
        (422, "request_id", ""): options(
            "request_id", b'""', b'"\\u0000"', '"\u00e2"'.encode(), b'"a b"', b'"a\\n"', b"7",
            b'"%s"' % (b"x" * 4_000_000),
        ),
        (422, "tenant", ""): options(
            "tenant", b'""', b'"a b"', b'"a\\n"', b'"../a"', b'"\\u0000"', b"7", b"null",
            b'"%s"' % (b"x" * 65), b'"%s"' % (b"x" * 4_000_000),
        ),
        (422, "state.version", "1"): states("version", 2),
        (422, "state.version", "integer"): states("version", True, "1"),
        (422, "state.versoin", "'version'"): states("versoin", 1),
        (422, "state.<script>?", "unknown field"): states("<script>\n", 1),
        (422, "state." + "x" * 194, ""): states("x" * 1_000_000, 1),
        (422, "state.x", "unknown field"): states("x", "y" * 4_000_000),
        (422, "k0", "no such field"): [b'{"state": {%s}}' % many, b"{%s}" % many],
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("system", ALL)
def test_bad_decide_requests_are_refused(everything: LocalService, system: str) -> None:
    state = everything.state(system)
    answer = everything.request("POST", f"/v1/{system}/decide", {"state": state})
    tenant = answer.json["tenant"]
    before = everything.status(system, tenant)["decisions"]["total"]
    for refusal, bodies in bad_requests(state).items():
        for body in bodies:
            assert_refused(everything, f"POST /v1/{system}/decide", refusal, body)
    after = everything.status(system, tenant)
    assert after["decisions"]["total"] == before > 0
    assert after["breaker"] == "closed"


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_the_first_of_many_bad_items_is_reported(everything: LocalService, system: str) -> None:
    state = everything.state(system)
    for field in (name for name, value in state.items() if isinstance(value, list)):
        body = {"state": {**state, field: [1] * (MAX_VALUES - 10_000)}}
        first = (422, f"state.{field}[0]", "")
        assert_refused(everything, f"POST /v1/{system}/decide", first, body)


ADMIN: dict[Refusal, list[bytes]] = {
    (422, None, "JSON"): [b"no"],
    (422, None, "object"): [b"null"],
    (422, "reason", "string"): [b'{"reason": 5}'],
    (422, "reason", "at most 300"): [b'{"reason": "%s"}' % (b"x" * 301)],
    (422, "raeson", "'reason'"): [b'{"raeson": "x"}'],
    (413, None, "too large"): [b'{"reason": "%s"}' % (b"x" * SMALL_BYTES)],
}
FEEDBACK: dict[Refusal, list[bytes]] = {
    (422, None, "object"): [b"[1]"],
    (422, "outcome", "object"): [b'{"outcome": NaN}'],
    (422, "outcome", "required"): [b"{}"],
    (422, "outcomes", "'outcome'"): [b'{"outcomes": {}}'],
    (422, "outcome.nope", "unknown field"): [b'{"outcome": {"nope": 1}}'],
    (422, "id", "string"): [b'{"id": 7, "outcome": {}}'],
    (422, "id", "at most 100"): [b'{"id": "%s", "outcome": {}}' % (b"x" * 101)],
}
NO_NUMBERS = (b"NaN", b"-Infinity", b"1e999", b"9" * 400, b'"1"', b"true")
REWARDS: dict[Refusal, list[bytes]] = {
    (422, "tenant", ""): [
        b'{"tenant": %s, "outcome": {"reward": 1}}' % name for name in (b'"a/b"', b"null", b'""')
    ],
    (422, "outcome.reward", ""): [b'{"outcome": {"reward": %s}}' % one for one in NO_NUMBERS],
}


def test_bad_feedback_and_admin_requests_change_nothing(everything: LocalService) -> None:
    before = everything.status()
    for path, refused in [
        *((f"{system}/feedback", FEEDBACK) for system in ALL),
        ("toy/feedback", REWARDS),
        *((f"toy/{verb}", ADMIN) for verb in AdminAction),
    ]:
        for refusal, bodies in refused.items():
            for body in bodies:
                assert_refused(everything, f"POST /v1/{path}", refusal, body)
    after = everything.status()
    assert {**after, "log": 0, "latency_ms": 0} == {**before, "log": 0, "latency_ms": 0}


def test_extreme_rewards_keep_the_statistics_finite(start: Start) -> None:
    here = start()
    for reward in (1e308, -1e308, 1.7e308, 1e-320) * 5:
        answer = here.request("POST", "/v1/toy/feedback", {"outcome": {"reward": reward}})
        assert answer.status in (200, 422), answer
    assert here.request("POST", "/v1/toy/feedback", {"outcome": {"reward": 1.0}}).status == 200
    for path in ("status", "history"):
        text = here.request("GET", f"/v1/toy/{path}").body.decode()
        assert "NaN" not in text
        assert "Infinity" not in text
    rewards = here.status()["rewards"]
    here.run(here.service.tick())
    here.close()
    assert start().status()["rewards"] == rewards  # saved and restored


def test_bodies_of_another_type_or_length_are_refused(everything: LocalService) -> None:
    for header, status, contains, values in [
        ("Content-Type", 415, JSON, ["text/plain", "multipart/form-data; boundary=x", "<script>"]),
        ("Content-Type", 415, JSON, ["x" * 5000]),
        ("Content-Encoding", 415, "gzip", ["gzip"]),
        ("Content-Length", 413, "too large", [str(LimitSettings().largest_bytes + 1), "9" * 5000]),
    ]:
        for route in ("decide", "feedback", "pause", "promote"):
            for value in values:
                request, refusal = f"POST /v1/toy/{route}", (status, None, contains)
                assert_refused(everything, request, refusal, b"{}", headers={header: value})


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": one} for one in ("", "-1", "x", "²", "1e3", "0x10", "5")]
    + [{"Content-Type": one} for one in ("application/json; charset=utf-8", "Application/JSON")],
)
def test_unusable_lengths_are_ignored(everything: LocalService, headers: dict[str, str]) -> None:
    body = {"state": everything.state("toy")}
    answer = everything.request("POST", "/v1/toy/decide", body, headers=headers, parts=9)
    assert answer.status == 200


def test_a_body_that_is_too_long_or_stalls_is_refused(start: Start) -> None:
    here = start(limits={"largest_bytes": 1000, "body_s": 0.05})
    body, request = b'{"state": "' + b"x" * 100_000 + b'"}', "POST /v1/toy/decide"
    for headers in ({}, {"Content-Length": "12"}):
        refusal = (413, None, "1,000 bytes")
        assert_refused(here, request, refusal, body, headers=headers, parts=1000)
    assert_refused(here, request, (408, None, "0.05 s"), b'{"state": ', stalls=True)
    assert here.decide()["source"] == "policy"


ROUTES: dict[Refusal, list[str]] = {
    (404, None, "'toy'"): ["POST /v1/tyo/decide"],
    (404, None, "unknown system"): [
        "POST /v1/" + "x" * 5000 + "/decide", "GET /v1/<script>/status", "GET /v1/../status",
        "GET /v1/systems/status",
    ],
    (404, None, "no such route"): [
        "GET /", "GET /v1", "GET /healthz/", "GET /v1/toy/status/", "POST /v1/toy/destroy",
        "GET /v1/<script>alert(1)</script>/status", "GET /" + "x" * 5000,
    ],
    (405, None, "not allowed"): [
        "GET /v1/toy/decide", "POST /v1/toy/status", "PUT /v1/toy/pause", "DELETE /v1/systems",
        "OPTIONS /v1/toy/decide", "TRACE /healthz", "X" * 500 + " /healthz",
    ],
    (422, "limit", "expected"): [
        f"GET /v1/toy/decisions?limit={limit}"
        for limit in ("0", "201", "-1", "1e2", "%C2%B2", "", "9" * 5000, "%FF%00")
    ],
    (422, "name", "expected"): ["GET /v1/toy/example?name=" + "x" * 9000],
}  # fmt: skip


@pytest.mark.parametrize("refusal", ROUTES)
def test_unknown_routes_and_queries_are_refused(everything: LocalService, refusal: Refusal) -> None:
    for request in ROUTES[refusal]:
        answer = assert_refused(everything, request, refusal)
        assert "location" not in answer.headers
        if refusal[0] == 405:
            allowed = {"POST"} if request.endswith(("decide", "pause")) else {"GET", "HEAD"}
            assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("host", ["[", "]:x", "a b", "\x7f", "x" * 5000])
def test_invalid_hosts_are_refused(everything: LocalService, host: str) -> None:
    for path, status in (("/nowhere", 404), ("/v1/systems", 403)):
        assert_refused(everything, f"GET {path}", (status, None, ""), headers={"Host": host})


NAMES = [
    "", " ", ".", "..", "../..", "~", "-", "/", "/dev/zero", "/dev/stdin", "/proc/self",
    "/etc/passwd", "a\0b", "/a\0b", "x" * 1000, "/" + "x" * 999, "../" * 300,
    "decima-sream", "<script>", "toy\n", "//", "file:///etc", "é" * 500,
]  # fmt: skip


def bad_bundles(folder: Path) -> list[str]:
    """Names and folders that are not usable bundles; tests of bundles have more of the latter."""
    valid, made = toy.make_bundle(folder / "valid", "other", extra=3), folder / "bad"
    text = (valid / "manifest.json").read_text()
    digest = json.loads(text)["weights"]["sha256"]
    for name, manifest in {
        "manifest is zeros": Path("/dev/zero"),
        "manifest is passwd": Path("/etc/passwd"),
        "no weights": text,
        "digest is a path": text.replace(digest, "../" * 21 + "x"),
        "wrong digest": text.replace(digest, "0" * 64),
    }.items():
        file = made / name / "manifest.json"
        file.parent.mkdir(parents=True)
        file.symlink_to(manifest) if isinstance(manifest, Path) else file.write_text(manifest)
    shutil.copy(valid / "weights.safetensors", made / "wrong digest")
    (made / "loop").symlink_to(made / "loop")
    os.mkfifo(made / "pipe")
    return NAMES + [str(one) for one in made.iterdir()]


def test_bad_bundles_are_refused_and_nothing_is_stored(start: Start) -> None:
    here = start()
    kept = here.folder / "kept"
    before = here.status(), sorted(kept.rglob("*"))
    for bundle in bad_bundles(here.folder):
        for to in ("serving", "shadow"):
            body = {"bundle": bundle, "to": to}
            answer = assert_refused(here, "POST /v1/toy/promote", (422, "bundle", ""), body)
            assert "root:" not in answer.json["error"]  # no content of files
    after = here.status(), sorted(kept.rglob("*"))
    assert {**after[0], "log": 0} == {**before[0], "log": 0}
    assert after[1] == before[1]
    assert here.decide()["source"] == "policy"


def test_a_link_needs_permission(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start()
    link, is_file = here.folder / "link", Path.is_file
    link.symlink_to(toy.make_bundle(here.folder / "better", "better", extra=1))
    answer = here.request("POST", "/v1/toy/promote", {"bundle": str(link)})
    assert answer.json["policies"]["serving"]["name"] == "better"

    def denied(path: Path) -> bool:
        if path.parent == link:
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    refusal = (422, "bundle", "Permission denied")
    assert_refused(here, "POST /v1/toy/promote", refusal, {"bundle": str(link)})
