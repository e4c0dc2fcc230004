"""Wrong requests: refused with the field named, quickly, in few words, and nothing changes."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.serving.http.body import MOST_NESTED, MOST_VALUES, SMALL_BYTES
from loadmaster.serving.settings import LimitSettings
from tests.serving.built_in import ALL, SYSTEMS
from tests.serving.conftest import Here, Start
from tests.serving.refusals import refused, state_of

LARGEST = LimitSettings().largest_bytes
BOM = b"\xef\xbb\xbf"


class Wrong(NamedTuple):
    name: str
    body: bytes
    field: str | None
    says: str = ""
    status: int = 422


def wrong_requests(state: dict[str, Any]) -> list[Wrong]:
    """Of any system, made of one of its states."""
    s = json.dumps(state).encode()

    def beside(field: str, value: bytes) -> bytes:
        return b'{"state": %s, "%s": %s}' % (s, field.encode(), value)

    def inside(field: str, value: Any) -> bytes:
        return json.dumps({"state": {**state, field: value}}).encode()

    many = b",".join(b'"k%d":1' % number for number in range(MOST_VALUES // 2))
    return [
        Wrong("empty", b"", None, "JSON"),
        Wrong("blank", b" \n", None, "JSON"),
        Wrong("no JSON", b"state=3", None, "JSON"),
        Wrong("unfinished", b'{"state": ' + s, None, "JSON"),
        Wrong("something after it", b'{"state": %s} x' % s, None, "JSON"),
        Wrong("single quotes", b"{'state': {}}", None, "JSON"),
        Wrong("null", b"null", None, "object"),
        Wrong("a list", b"[]", None, "object"),
        Wrong("a text", b'"state"', None, "object"),
        Wrong("a number", b"3", None, "object"),
        Wrong("byte order mark", BOM + b'{"state": %s}' % s, None, "JSON"),
        Wrong("UTF-16", json.dumps({"state": state}).encode("utf-16"), None, "JSON"),
        Wrong("no UTF-8", beside("request_id", b'"\xff"'), None, "JSON"),
        Wrong("half a surrogate pair", beside("request_id", b'"\\ud800"'), None, "JSON"),
        Wrong("NUL in a text", beside("request_id", b'"\x00"'), None, "JSON"),
        Wrong("escaped NUL", beside("request_id", b'"\\u0000"'), "request_id"),
        Wrong("nested lists", b"[" * 90_000, None, "recursion"),
        Wrong("nested objects", b'{"state":' * 90_000, None, "recursion"),
        Wrong("200,000 brackets", b"[" * 200_000, None, "too much", 413),
        Wrong("too many values", b"[%s1, 2]" % (b"1," * MOST_VALUES), None, "much", 413),
        Wrong("too many lists", b"[" + b"[]," * MOST_NESTED + b"1]", None, "much", 413),
        Wrong("no state", b"{}", "state", "required"),
        Wrong("misspelt state", b'{"stat": %s}' % s, "stat", "did you mean 'state'?"),
        Wrong("misspelt mode", beside("mood", b'"shadow"'), "mood", "did you mean 'mode'?"),
        Wrong("state is null", b'{"state": null}', "state", "object"),
        Wrong("state is a list", b'{"state": [%s]}' % s, "state", "object"),
        Wrong("state is a text", b'{"state": "x"}', "state", "object"),
        Wrong("unknown mode", beside("mode", b'"fast"'), "mode", "active"),
        Wrong("mode is null", beside("mode", b"null"), "mode", "active"),
        Wrong("no time", beside("deadline_ms", b"0"), "deadline_ms", "greater"),
        Wrong("less than none", beside("deadline_ms", b"-1"), "deadline_ms", "greater"),
        Wrong("an hour", beside("deadline_ms", b"3600000"), "deadline_ms", "less"),
        Wrong("NaN", beside("deadline_ms", b"NaN"), "deadline_ms", "finite"),
        Wrong("Infinity", beside("deadline_ms", b"Infinity"), "deadline_ms", "finite"),
        Wrong("1e999", beside("deadline_ms", b"1e999"), "deadline_ms", "finite"),
        Wrong("400 digits", beside("deadline_ms", b"9" * 400), "deadline_ms"),
        Wrong("5,000 digits", beside("deadline_ms", b"9" * 5000), None, "JSON"),
        Wrong("a number in quotes", beside("deadline_ms", b'"5"'), "deadline_ms", "number"),
        Wrong("true for a number", beside("deadline_ms", b"true"), "deadline_ms", "number"),
        Wrong("empty id", beside("request_id", b'""'), "request_id"),
        Wrong("id in another script", beside("request_id", '"\u00e2"'.encode()), "request_id"),
        Wrong("id with a blank", beside("request_id", b'"a b"'), "request_id"),
        Wrong("id with a new line", beside("request_id", b'"a\\n"'), "request_id"),
        Wrong("id of megabytes", beside("request_id", b'"%s"' % (b"x" * 4_000_000)), "request_id"),
        Wrong("a number for an id", beside("request_id", b"7"), "request_id", "string"),
        Wrong("version 2", inside("version", 2), "state.version", "1"),
        Wrong("version 0", inside("version", 0), "state.version", "1"),
        Wrong("version true", inside("version", True), "state.version", "1"),
        Wrong("version in quotes", inside("version", "1"), "state.version", "1"),
        Wrong("unknown field", inside("versoin", 1), "state.versoin", "did you mean 'version'?"),
        Wrong("strange name", inside("<script>\n", 1), "state.<script>?", "unknown field"),
        Wrong("name of a megabyte", inside("x" * 1_000_000, 1), ("state." + "x" * 200)[:200]),
        Wrong("value of megabytes", inside("x", "y" * 4_000_000), "state.x", "unknown field"),
        Wrong("many unknown fields", b'{"state": {%s}}' % many, "k0", "no such field"),
        Wrong("many fields for a state", b'{%s}' % many, "k0", "no such field"),
        Wrong("a list of many", b'{"state": [%s1]}' % (b"1," * (MOST_VALUES - 1)), "state"),
        Wrong(
            "many lists", b'{"state": [%s1]}' % (b"[]," * (MOST_NESTED - 2)), "state", "object"
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("system", ALL)
def test_wrong_requests_for_decisions(everything: Here, system: str) -> None:
    before = everything.ask("GET", f"/v1/{system}/status").json
    state = state_of(everything, system)
    everything.ask("POST", f"/v1/{system}/decide", {"state": state})
    counted = before["decisions"]["total"] + 1
    for wrong in wrong_requests(state):
        assert refused(
            lambda wrong=wrong: everything.ask(  # type: ignore[misc]
                "POST", f"/v1/{system}/decide", wrong.body
            ),
            wrong.status,
            wrong.field,
            wrong.says,
        )
    after = everything.ask("GET", f"/v1/{system}/status").json
    assert after["decisions"]["total"] == counted, "what is refused is not decided on"
    assert after["breaker"] == "closed", "nor is it the worker's fault"


def changed(state: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Of a copy; a path such as jobs.0.id."""
    new = copy.deepcopy(state)
    *where, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    branch: Any = new
    for part in where:
        branch = branch[part]
    branch[last] = value
    return new


@pytest.mark.parametrize(
    ("path", "value", "field", "says"),
    [
        ("jobs", [], "jobs", "at least 1"),
        ("jobs", {}, "jobs", "array"),
        ("jobs.0", "x", "jobs[0]", "object"),
        ("jobs", [{"id": "x"}], "jobs[0].stages", "required"),
        ("jobs", [{"id": "x", "stage": []}], "jobs[0].stage", "did you mean 'stages'?"),
        ("jobs.1.stages", [], "jobs[1].stages", "at least 1"),
        ("executors", [], "executors", "at least 1"),
        ("executors.0.count", 0, "executors[0].count", "greater"),
        ("executors.0.count", 8.0, "executors[0].count", "integer"),
        ("executors.0.count", "8", "executors[0].count", "integer"),
        ("executors.0.count", True, "executors[0].count", "integer"),
        ("executors.0.count", 10**30, "executors[0].count", "less"),
        ("executors.0.free", 9, "executors[0].free", "at most as many as there are"),
        ("executors.0.free", 0, "executors[0].free", "at least one to place"),
        ("jobs.0.stages.0.parents", ["join"], "jobs[0].stages[0].parents", "a DAG"),
        ("jobs.0.stages.1.parents", ["join"], "jobs[0].stages[1].parents", "a DAG"),
        ("jobs.0.stages.1.parents", ["nope"], "jobs[0].stages[1].parents[0]", "'nope'"),
        ("jobs.0.stages.1.parents", ["read"] * 2, "jobs[0].stages[1].parents", "twice"),
        ("jobs.0.stages.1.task", 5, "jobs[0].stages[1].task", "did you mean 'tasks'?"),
        ("jobs.0.stages.1.task_ms", float("nan"), "jobs[0].stages[1].task_ms", "finite"),
        ("jobs.0.stages.1.task_ms", -1, "jobs[0].stages[1].task_ms", "greater"),
        ("jobs.0.stages.1.tasks", None, "jobs[0].stages[1].tasks", "integer"),
        ("jobs.0.stages.1.started", 3, "jobs[0].stages[1].started", "at most the 2"),
        ("jobs.0.stages.1.chosen", 1, "jobs[0].stages[1].chosen", "boolean"),
        ("jobs.1.id", "daily-report", "jobs[1].id", ""),
        ("jobs.1.id", "", "jobs[1].id", "at least 1"),
        ("jobs.1.id", "x" * 201, "jobs[1].id", "at most 200"),
        ("jobs.1.id", 7, "jobs[1].id", "string"),
        ("source.job", "nobody", "source.job", "'nobody'"),
        ("source", {"stage": "read"}, "source.stage", ""),
        ("ask", "all", "ask", "round"),
        ("more_to_come", "yes", "more_to_come", "boolean"),
    ],
)
def test_wrong_states_of_decima(
    everything: Here, path: str, value: Any, field: str, says: str
) -> None:
    state = changed(state_of(everything, "decima", "tiny"), path, value)
    ask = lambda: everything.ask("POST", "/v1/decima/decide", {"state": state})  # noqa: E731
    assert refused(ask, 422, f"state.{field}", says)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_lists_of_many_wrong_things(everything: Here, system: str) -> None:
    """The first of them is told, at once."""
    state = state_of(everything, system)
    for field in (name for name, value in state.items() if isinstance(value, list)):
        body = json.dumps({"state": {**state, field: [1] * (MOST_VALUES - 2000)}}).encode()
        assert refused(
            lambda body=body: everything.ask(  # type: ignore[misc]
                "POST", f"/v1/{system}/decide", body
            ),
            422,
            f"state.{field}[0]",
            "should be",
        )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for key, one in inside:
        found += paths_in(one, (*path, key))
    return found


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_states_that_come_close_to_valid_ones(everything: Here, system: str) -> None:
    """A value of a valid state is replaced, removed or doubled: decided on, or refused by name."""
    names = everything.service.systems[system].endpoint.examples()
    valid = min((state_of(everything, system, name) for name in names), key=lambda s: len(str(s)))
    paths = paths_in(valid)
    seen = set()

    @settings(
        max_examples=200, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(data=st.data())
    def close(data: st.DataObject) -> None:
        state = copy.deepcopy(valid)
        for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
            branch: Any = state
            try:
                for part in path[:-1]:
                    branch = branch[part]
                here = branch[path[-1]]
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took it away
            how = data.draw(st.sampled_from(["replace", "nudge", "remove", "double"]))
            if how == "remove":
                del branch[path[-1]]
            elif how == "double" and isinstance(branch, list):
                branch.append(here)
            elif how == "nudge" and isinstance(here, int):
                branch[path[-1]] = here + data.draw(st.integers(-3, 3))
            else:
                branch[path[-1]] = data.draw(JSON_VALUES)
        answered = everything.ask("POST", f"/v1/{system}/decide", {"state": state})
        seen.add(answered.status)
        assert answered.status in (200, 422), answered
        if answered.status == 422:
            assert answered.json["field"].startswith("state"), answered
        else:
            assert answered.json["cause"] is None, answered

    close()
    assert seen == {200, 422}


@pytest.mark.parametrize("system", ALL)
@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"", None, "JSON"),
        (b"[1]", None, "object"),
        (b'{"outcome": NaN}', "outcome", "object"),
        (b"{}", "outcome", "required"),
        (b'{"outcome": {}}', None, "required"),
        (b'{"outcomes": {}}', "outcomes", "did you mean 'outcome'?"),
        (b'{"outcome": {"nope": 1}}', "outcome.nope", "unknown field"),
        (b'{"id": 7, "outcome": {}}', "id", "string"),
        (b'{"id": "%s", "outcome": {}}' % (b"x" * 101), "id", "at most 100"),
    ],
)
def test_wrong_feedback(
    everything: Here, system: str, body: bytes, field: str | None, says: str
) -> None:
    ask = lambda: everything.ask("POST", f"/v1/{system}/feedback", body)  # noqa: E731
    if body == b'{"outcome": {}}':
        field = ask().json["field"]
        assert field.startswith("outcome.")
    assert refused(ask, 422, field, says)


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999", b"9" * 400, b'"1"', b"true"])
def test_rewards_that_are_no_numbers(everything: Here, value: bytes) -> None:
    body = b'{"outcome": {"reward": %s}}' % value
    ask = lambda: everything.ask("POST", "/v1/toy/feedback", body)  # noqa: E731
    assert refused(ask, 422, "outcome.reward")


def test_rewards_beyond_all_measure_harm_nobody(start: Start) -> None:
    here = start()
    for reward in (1e308, -1e308, 1.7e308, 1e-320) * 20:
        answered = here.ask("POST", "/v1/toy/feedback", {"outcome": {"reward": reward}})
        assert answered.status in (200, 422), answered
    assert here.ask("POST", "/v1/toy/feedback", {"outcome": {"reward": 1.0}}).status == 200
    for path in ("status", "history"):
        told = here.ask("GET", f"/v1/toy/{path}").body.decode()
        assert "NaN" not in told
        assert "Infinity" not in told
    rewards = here.status()["rewards"]
    here.run(here.service.systems["toy"].look_after())
    here.close()
    assert start().status()["rewards"] == rewards, "it was written down, and is read again"


@pytest.mark.parametrize("verb", ["pause", "resume", "promote", "rollback"])
def test_wrong_orders(everything: Here, verb: str) -> None:
    before = everything.status()
    for body, field, says in [
        (b"no", None, "JSON"),
        (b"[]", None, "object"),
        (b"null", None, "object"),
        (b"[" * 90_000, None, "recursion"),
        (b'{"reason": 5}', "reason", "string"),
        (b'{"reason": "%s"}' % (b"x" * 301), "reason", "at most 300"),
        (b'{"raeson": "x"}', "raeson", "did you mean 'reason'?"),
    ]:
        assert refused(
            lambda body=body: everything.ask("POST", f"/v1/toy/{verb}", body),  # type: ignore[misc]
            422,
            field,
            says,
        )
    large = b'{"reason": "%s"}' % (b"x" * SMALL_BYTES)
    assert refused(lambda: everything.ask("POST", f"/v1/toy/{verb}", large), 413, None, "too large")
    after = everything.status()
    assert {**after, "log": 0, "latency_ms": 0} == {**before, "log": 0, "latency_ms": 0}
