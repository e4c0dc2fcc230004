"""Both clients against a fake service: requests, retries, errors, local fallback, tokens."""

import json
import logging
import time
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import create_model

from loadmaster.serving.client import DeadlineExceeded, ServiceError, Unreachable
from loadmaster.serving.client.http1 import parse_address
from tests.serving.client import fake_service as fake
from tests.serving.client.conftest import Clock, MakeClient
from tests.serving.client.fake_service import DECISION, answer, fake_service, raw, unused_url

STATE = {"version": 1, "jobs": []}
ENCODED = json.dumps(STATE, indent=1).encode()
OVERRIDING = ENCODED + b',"mode":"active"'  # which must not override the mode
MODEL = create_model("State", version=(int, 1), jobs=(list[int], []))()
BIG = b'{"x":"' + b"x" * 5_000_000 + b'"}'
URL = "http://127.0.0.1:1"
STATUS: dict[str, Any] = {"system": "das", "lifecycle": {"state": "SERVING"}, "policies": {}}
STATUS |= {"acting": "policy", "paused": False}
INTERVAL = {"time": "2026-01-01T00:00:00Z", "decisions": 4, "p50_ms": 1.5}
LISTED = {"decisions": [{**DECISION, "time": "2026-01-01T00:00:00Z", "mode": "active"}]}
DAS = {"system": "das", "summary": "", "lifecycle": "ONLINE", "paused": False, "acting": "x"}
SERVICE = {"version": "1", "started_at": "x", "uptime_s": 3, "tokens": False}
OUTCOME, ACCEPTED = {"jct_s": 3}, {"accepted": True, "reward": -2.5}


def test_decide_sends_the_state_and_decodes_the_decision(make_client: MakeClient) -> None:
    with fake_service() as service:
        url = f"{service.url}/behind/proxy/"
        decision = make_client(url).decide("decima", STATE, deadline_ms=20)
        (seen,) = service.seen
    assert (decision.id, decision.source, decision.latency_ms) == ("d-1", "policy", 1.25)
    assert decision.reason.choices["stage"][0].probability == 0.75
    assert (seen.method, seen.target) == ("POST", "/behind/proxy/v1/decima/decide")
    assert seen.headers["content-type"] == "application/json"
    assert "authorization" not in seen.headers
    sent = seen.json
    assert len(sent.pop("request_id")) == 24
    assert sent == {"state": STATE, "mode": "active", "deadline_ms": 20}


@pytest.mark.parametrize(("options", "tenant"), [({}, "mine"), ({"tenant": "other"}, "other")])
def test_calls_name_the_tenant(
    make_client: MakeClient, options: dict[str, str], tenant: str
) -> None:
    responses = [DECISION, ACCEPTED, STATUS, STATUS, LISTED, {"interval_s": 10, "intervals": []}]
    with fake_service(*map(answer, responses)) as service:
        client = make_client(service.url, tenant="mine")
        client.decide("das", STATE, **options)
        client.feedback("das", OUTCOME, "d-1", **options)
        client.pause("das", **options)
        client.status("das", **options)
        client.decisions("das", 3, **options)
        client.history("das", **options)
        decide, feedback, pause, *views = service.seen
    assert [one.json["tenant"] for one in (decide, feedback, pause)] == [tenant] * 3
    assert feedback.json == {"outcome": OUTCOME, "id": "d-1", "tenant": tenant}
    assert [one.target.partition("?")[2] for one in views] == [
        f"tenant={tenant}", f"limit=3&tenant={tenant}", f"tenant={tenant}",
    ]  # fmt: skip


def test_the_whole_system_is_paused_for_no_tenant(make_client: MakeClient) -> None:
    with fake_service(answer(STATUS)) as service:
        make_client(service.url, tenant="mine").pause("das", tenant=None)
        assert service.seen[0].json == {}


@pytest.mark.parametrize("state", [STATE, MappingProxyType(STATE), MODEL, ENCODED, OVERRIDING])
def test_state_may_be_mapping_model_or_bytes(make_client: MakeClient, state: Any) -> None:
    with fake_service() as service:
        make_client(service.url).decide("decima", state, mode="shadow")
        assert service.seen[0].json["state"] == STATE
        assert service.seen[0].json["mode"] == "shadow"


@pytest.mark.parametrize("state", ["{}", [1], None, {"x": float("nan")}, {"x": object()}])
def test_invalid_state_is_not_sent(make_client: MakeClient, state: Any) -> None:
    with fake_service() as service:
        with pytest.raises(ServiceError) as raised:
            make_client(service.url).decide("decima", state)
        assert service.seen == []
    assert (raised.value.status, raised.value.field) == (None, "state")


@pytest.mark.parametrize(
    ("name", "arguments", "response", "target", "body"),
    [
        ("systems", (), {"service": SERVICE, "systems": [DAS]}, "systems", None),
        ("status", ("das",), STATUS, "das/status", None),
        ("decisions", ("das", 7), LISTED, "das/decisions?limit=7", None),
        ("history", ("a/b",), {"interval_s": 9, "intervals": [INTERVAL]}, "a%2Fb/history", None),
        ("example", ("das", "large & odd"), STATE, "das/example?name=large+%26+odd", None),
        ("feedback", ("x", b'{"jct_s": 3}'), ACCEPTED, "x/feedback", {"outcome": OUTCOME}),
        ("feedback", ("x", OUTCOME, "d"), ACCEPTED, "x/feedback", {"id": "d", "outcome": OUTCOME}),
        ("pause", ("das", "maintenance"), STATUS, "das/pause", {"reason": "maintenance"}),
        ("resume", ("das",), STATUS, "das/resume", {}),
        ("promote", ("das",), STATUS, "das/promote", {}),
        ("promote", ("das", "b", "shadow"), STATUS, "das/promote", {"bundle": "b", "to": "shadow"}),
        ("rollback", ("das",), STATUS, "das/rollback", {}),
        (
            "estimate",
            ("das", 3.0, 2.5, "fqe", 8),
            STATUS,
            "das/estimate",
            {"mean": 3.0, "lower": 2.5, "source": "fqe", "episodes": 8},
        ),
        ("profile", ("das", {"slo": 0.2}), STATUS, "das/profile", {"profile": {"slo": 0.2}}),
        ("profile", ("das", None), STATUS, "das/profile", {}),
        ("memory", ("das", {"f": [1.5]}), STATUS, "das/memory", {"memory": {"f": [1.5]}}),
    ],
)
def test_other_calls_send_their_requests(
    make_client: MakeClient, name: str, arguments: Any, response: Any, target: str, body: Any
) -> None:
    with fake_service(answer(response)) as service:
        assert getattr(make_client(service.url), name)(*arguments)
        (seen,) = service.seen
    assert seen.target == f"/v1/{target}"
    assert seen.method == ("GET" if body is None else "POST")
    assert json.loads(seen.body or b"null") == body


def test_admin_calls_open_a_new_connection(make_client: MakeClient) -> None:
    with fake_service(answer(), answer(), answer(STATUS), answer()) as service:
        client = make_client(service.url)
        for _ in range(2):
            client.decide("decima", STATE)
        client.pause("decima")
        client.close()
        client.decide("decima", STATE)
        assert [seen.connection for seen in service.seen] == [0, 0, 1, 2]


@pytest.mark.parametrize("end", [answer(Connection="close"), fake.close_unannounced])
def test_closed_connection_is_not_reused(make_client: MakeClient, end: Any) -> None:
    with fake_service(end) as service:
        client = make_client(service.url, retries=0)
        for _ in range(3):
            client.decide("decima", STATE)
            time.sleep(0.02)
        assert [seen.connection for seen in service.seen] == [0, 1, 2]


@pytest.mark.parametrize(
    "fault",
    [
        fake.reset,
        raw(b""),
        raw(b"HTTP/1.1 200"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{}"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"),
        answer(b"<html>bad gateway</html>", 502),
    ],
)
def test_only_decide_is_retried(make_client: MakeClient, clock: Clock, fault: Any) -> None:
    with fake_service(fault, fault, answer(), fault, fault, answer()) as service:
        client = make_client(service.url, clock=clock)
        assert client.decide("decima", STATE).id == "d-1"
        assert len({seen.json["request_id"] for seen in service.seen}) == 1
        assert (len(service.seen), len(clock.pauses)) == (3, 2)
        for name, arguments in (("promote", ()), ("feedback", ({},))):
            with pytest.raises(ServiceError):
                getattr(client, name)("decima", *arguments)
        assert (len(service.seen), len(clock.pauses)) == (5, 2)


def test_unreachable_service_is_retried(make_client: MakeClient, clock: Clock) -> None:
    with pytest.raises(Unreachable, match="refused") as raised:
        make_client(unused_url(), clock=clock).pause("decima")
    assert len(clock.pauses) == 3
    assert raised.value.status is None
    with pytest.raises(Unreachable):
        make_client("http://unknown.invalid:1", clock=clock, retries=0).systems()


@pytest.mark.parametrize("slow", [fake.silence, fake.trickle])
def test_slow_response_ends_at_the_deadline(make_client: MakeClient, slow: Any) -> None:
    with fake_service(slow) as service:
        client = make_client(service.url, deadline_s=0.15)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"0\.15 s") as raised:
            client.decide("decima", STATE)
        assert raised.value.cause == "deadline"
        assert 0.14 <= time.monotonic() - began < 1.0
        service.script[:] = [answer()]
        assert client.decide("decima", STATE).id == "d-1"
        assert service.seen[-1].connection == 1


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        (answer(b"{not json"), "the response is None"),
        (answer(b"[" * 100_000), "unexpected"),
        (answer({**DECISION, "source": 3}), "source is 3"),
        (raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "unreadable"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 200_000), "100000 bytes"),
        (answer({}, 307, Location="http://elsewhere"), "307"),
    ],
)
def test_unusable_response_is_not_retried(
    make_client: MakeClient, clock: Clock, broken: Any, part: str
) -> None:
    with fake_service(broken, answer()) as service:
        client = make_client(service.url, clock=clock, max_answer=100_000)
        with pytest.raises(ServiceError, match=part):
            client.decide("decima", STATE)
        assert client.decide("decima", STATE).id == "d-1"
        assert len(service.seen) == 2


@pytest.mark.parametrize(
    ("status", "content", "message", "field"),
    [
        (422, {"error": "must be 1", "field": "state.jobs"}, "state.jobs: must be 1", "state.jobs"),
        (422, {"error": "state.x: no", "field": "state.x"}, "state.x: no", "state.x"),
        (401, {"error": "a token is needed", "field": None}, "a token is needed", None),
        (404, {"error": "two\nlines\x1b[2J", "field": 3}, "two lines [2J", None),
        (500, b"oops", "HTTP status 500", None),
        (409, [1], "HTTP status 409", None),
        (503, {"error": "starting"}, "starting", None),  # transient, but retries have run out
    ],
)
def test_error_response_is_raised_with_status_and_field(
    make_client: MakeClient, clock: Clock, status: int, content: Any, message: str, field: Any
) -> None:
    with fake_service(answer(content, status)) as service:
        with pytest.raises(ServiceError) as raised:
            make_client(service.url, clock=clock, retries=2).decide("decima", STATE)
        assert len(service.seen) == (3 if status == 503 else 1)
    assert str(raised.value) == message
    assert (raised.value.status, raised.value.field) == (status, field)
    assert type(raised.value) is ServiceError


def test_large_state_is_sent_or_refused_before_that(make_client: MakeClient) -> None:
    with fake_service(answer(), fake.refuse_and_drain, fake.refuse_unread) as service:
        client = make_client(service.url)
        assert client.decide("decima", BIG).id == "d-1"
        assert len(service.seen[0].json["state"]["x"]) == 5_000_000
        with pytest.raises(ServiceError, match="too large") as raised:
            client.decide("decima", BIG)
        assert raised.value.status == 413
        # Without draining, the response may be lost with the connection.
        with pytest.raises(ServiceError, match=r"too large|cannot reach"):
            client.decide("decima", BIG)


def test_fallback_decides_during_an_outage_and_logs_its_ends(
    make_client: MakeClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def fair(system: str, state: Any) -> dict[str, Any]:
        return {"system": system, "state": state}

    refused = answer({"error": "wrong", "field": "state.jobs"}, 422)
    with fake_service(answer(), refused, refused, answer()) as service:
        client = make_client(service.url, clock=clock, fallback=fair)
        with caplog.at_level(logging.WARNING, "loadmaster.client"):
            decisions = [client.decide("decima", STATE) for _ in range(4)]
    assert [each.source for each in decisions] == ["policy", "local", "local", "policy"]
    local = decisions[1]
    assert (local.decision, local.cause) == ({"system": "decima", "state": STATE}, "refused")
    assert (local.policy.name, local.reason.summary) == ("fair", "state.jobs: wrong")
    assert [record.getMessage() for record in caplog.records] == [
        "decima is decided locally: state.jobs: wrong",
        "decima is decided by the service again",
    ]


def test_local_decision_has_cause_and_latency(make_client: MakeClient, clock: Clock) -> None:
    client = make_client(unused_url(), clock=clock, fallback=lambda *_: {})
    unreachable = client.decide("das", STATE)
    assert unreachable.cause == "unreachable"
    assert unreachable.latency_ms == pytest.approx(1000 * sum(clock.pauses))
    assert client.decide("das", {"x": float("nan")}).cause == "refused"


def test_token_is_sent_and_never_shown(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_service(answer({"error": "no"}, 401)) as service, caplog.at_level(logging.DEBUG):
        client = make_client(service.url, token="s3cret-token", fallback=lambda *_: {})
        decision = client.decide("decima", STATE)
        monkeypatch.setenv("LOADMASTER_TOKEN", "from-outside")
        make_client(service.url, fallback=lambda *_: {}).decide("decima", STATE)
        sent = [seen.headers["authorization"] for seen in service.seen]
    assert sent == ["Bearer s3cret-token", "Bearer from-outside"]
    address = parse_address(service.url, "s3cret-token")
    for shown in (repr(client), repr(address), str(decision), caplog.text):
        assert "s3cret" not in shown
    assert service.url in repr(client)


@pytest.mark.parametrize(
    ("url", "settings", "part"),
    [
        *((URL, {"token": token}, "token") for token in ("", "two s3cret", "s3cret\r\nX: 1", "ü")),
        *((url, {}, "url") for url in ("127.0.0.1:8700", "ftp://host", "http://", "http://ho st")),
        *((f"http://host{rest}", {}, "url") for rest in (":port", ":99999", "/?x=1", "\r\nX: 1")),
        ("http://me:s3cret@host", {}, "url"),
        (URL, {"deadline_s": 0}, "deadline_s"),
        (URL, {"deadline_s": float("nan")}, "deadline_s"),
        (URL, {"retries": -1}, "retries"),
    ],
)
def test_invalid_setting_is_refused(
    make_client: MakeClient, url: str, settings: dict[str, Any], part: str
) -> None:
    with pytest.raises(ValueError, match=part) as raised:
        make_client(url, **settings)
    assert "s3cret" not in str(raised.value)
