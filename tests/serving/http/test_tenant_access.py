"""Tokens that are limited to tenants: they use and see only these."""

from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.decisions.tenant_names import ALL_TENANTS
from loadmaster.serving.http import auth
from loadmaster.serving.http.auth import parse_tokens
from loadmaster.serving.policies.manager import AdminAction
from tests.serving.asgi import Answer
from tests.serving.conftest import LocalService, Start

ALL, READ_A, ADMIN_A = "admin-0123456789abcdef", "read-0123456789abcdef", "mine-0123456789abcdef"
STATE = {"load": 42, "replicas": 3}
ESTIMATE = {"mean": 2.0, "lower": 1.0, "source": "fqe", "episodes": 3}
STEP = {"engine": "slurm", "mode": "act", "result": "acted"}
BODIES = {AdminAction.ESTIMATE: ESTIMATE, AdminAction.MEMORY: {"memory": {"f-1": [1.0]}}}


@pytest.fixture
def here(start: Start, tmp_path: Path) -> LocalService:
    file = tmp_path / "tokens"
    file.write_text(f"admin {ALL}\nread {READ_A} tenant=a,a2\nadmin {ADMIN_A} tenant=a\n")
    return start(tokens=file, toy={"guard": {"flaps": 2}})


def send(here: LocalService, token: str, path: str, body: Any = None) -> Answer:
    method = "GET" if body is None else "POST"
    headers = {"Authorization": f"Bearer {token}"}
    return here.request(method, f"/v1/{path}", body, headers=headers)


def decide(here: LocalService, token: str, tenant: str, **more: Any) -> Answer:
    return send(here, token, "toy/decide", {"state": STATE, "tenant": tenant, **more})


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        (f"read {ALL}", [None]),
        (f"read {ALL} tenant=a", [("a",)]),
        (f"read {ALL} tenant=a,b.c,a\nadmin {READ_A}", [("a", "b.c"), None]),
        (f"read {ALL} tenant=a,b, admin {READ_A} tenant=c,\n", [("a", "b"), ("c",)]),
        (f"read {ALL} tenant=read,admin,admin {READ_A}", [("read", "admin"), None]),
    ],
)
def test_tenants_of_a_token_are_parsed(text: str, tenants: list[Any]) -> None:
    assert [one.access.tenants for one in parse_tokens(text, "here")] == tenants


@pytest.mark.parametrize("word", ["tenant=", "tenant=a,,b", "tenant=a/b", "tenants=a", "a", "x=a"])
def test_wrong_tenants_of_a_token_are_refused(word: str) -> None:
    with pytest.raises(InputError, match="line 1") as fault:
        parse_tokens(f"read {ALL} {word}", "here")
    assert ALL not in str(fault.value)


def test_the_token_for_local_checks_is_not_limited_if_possible() -> None:
    text = f"read {READ_A} tenant=a\nread {ALL}"
    assert auth.first_token(None, {auth.TOKENS: text}) == ALL
    assert auth.first_token(None, {auth.TOKENS: text.splitlines()[0]}) == READ_A
    assert parse_tokens(text, "here")[1].access is ALL_TENANTS


def test_other_tenants_are_refused_whether_they_exist_or_not(here: LocalService) -> None:
    assert decide(here, ALL, "b").status == 200
    outcome = {"outcome": {"reward": 1.0}}
    errors = set()
    for token in (READ_A, ADMIN_A):
        for tenant in ("b", "never", "default", "A"):
            answers = [decide(here, token, tenant), decide(here, token, tenant, mode="shadow")]
            answers.append(send(here, token, "toy/feedback", {**outcome, "tenant": tenant}))
            answers.append(send(here, token, "toy/steering", {**STEP, "tenant": tenant}))
            answers += [
                send(here, token, f"{path}?tenant={tenant}")
                for path in ("toy/status", "toy/history", "toy/decisions", "systems")
            ]
            answers += [
                send(here, ADMIN_A, f"toy/{verb}", {"tenant": tenant})
                for verb in (AdminAction.PAUSE, AdminAction.RESUME, AdminAction.PROFILE)
            ]
            for verb, body in BODIES.items():
                answers.append(send(here, ADMIN_A, f"toy/{verb}", {**body, "tenant": tenant}))
            assert {answer.status for answer in answers} == {403}
            errors |= {(answer.json["error"], answer.json["field"]) for answer in answers}
    assert len(errors) == 1  # nothing shows which of them exist
    assert decide(here, ALL, "b").json["cause"] is None
    assert send(here, ALL, "toy/status").json["tenants"]["known"] == 2  # b and the default


def test_a_request_without_a_tenant_belongs_to_the_default(here: LocalService) -> None:
    assert send(here, READ_A, "toy/decide", {"state": STATE}).status == 403
    assert send(here, READ_A, "toy/status").status == 403
    assert send(here, ALL, "toy/decide", {"state": STATE}).json["tenant"] == "default"


@pytest.mark.parametrize("path", ["toy/decide", "toy/feedback", "toy/steering"])
@pytest.mark.parametrize(
    "body",
    [b"", b"no", b"[]", b"null", b'{"tenant": "b", ', b'{"tenant": "a b"}', b"\xff", b"[" * 9999],
)
def test_an_unparsable_body_is_refused_as_for_other_tokens(
    here: LocalService, path: str, body: bytes
) -> None:
    decide(here, ALL, "b")
    mine, other = (send(here, token, path, body) for token in (READ_A, ALL))
    assert (mine.status, mine.json) == (other.status, other.json) == (422, mine.json)
    assert "token" not in mine.json["error"]


def test_a_limited_token_sees_its_tenants_only(here: LocalService) -> None:
    ids = {name: decide(here, ALL, name).json["id"] for name in ("a", "a2", "b")}
    assert decide(here, READ_A, "a").status == 200
    listing = send(here, READ_A, "systems").json
    assert listing["service"]["tenants"] == ["a", "a2"]
    assert (listing["systems"][0]["tenant"], listing["systems"][0]["decisions"]) == ("a", 2)
    status = send(here, READ_A, "toy/status?tenant=a").json
    shown = [(one["tenant"], one["decisions"]) for one in status["tenants"]["most_active"]]
    assert (shown, status["tenants"]["known"]) == ([("a", 2), ("a2", 1)], 2)
    listed = send(here, READ_A, "toy/decisions?tenant=a").json["decisions"]
    assert ids["b"] not in {one["id"] for one in listed}
    # Another tenant's decision is unknown: its outcome counts for what acts for this tenant.
    decide(here, ALL, "b", mode="shadow", request_id="theirs")
    body = {"id": "theirs", "outcome": {"reward": 1.0}, "tenant": "a"}
    assert send(here, READ_A, "toy/feedback", body).status == 200
    rewards = send(here, ALL, "toy/status?tenant=a").json["rewards"]
    assert (rewards["policy"]["count"], rewards["rule"]["count"]) == (1, 0)


def test_a_limited_admin_acts_on_its_tenants_only(here: LocalService) -> None:
    for verb in AdminAction:
        assert send(here, ADMIN_A, f"toy/{verb}", BODIES.get(verb, {})).status == 403
    for verb, body in BODIES.items():
        assert send(here, ADMIN_A, f"toy/{verb}", {**body, "tenant": "a"}).status == 200
        assert send(here, READ_A, f"toy/{verb}", {**body, "tenant": "a"}).status == 403
    assert send(here, READ_A, "toy/pause", {"tenant": "a"}).status == 403  # not its scope
    paused = send(here, ADMIN_A, "toy/pause", {"tenant": "a"}).json
    assert (paused["tenant"], paused["paused_scope"]) == ("a", "tenant")
    causes = [decide(here, ALL, name).json["cause"] for name in ("a", "b")]
    assert causes == ["paused", None]


def test_a_read_token_cannot_freeze_the_job_of_another_tenant(here: LocalService) -> None:
    for turn in range(20):
        moved = {"state": {"load": 10 + 20 * (turn % 2), "replicas": 2}, "tenant": "a"}
        assert send(here, READ_A, "toy/decide", moved).status == 200
    answer = send(here, ALL, "toy/decide", {"state": {"load": 10, "replicas": 2}, "tenant": "b"})
    assert (answer.json["decision"], answer.json["guard"]) == ({"replicas": 1}, [])
