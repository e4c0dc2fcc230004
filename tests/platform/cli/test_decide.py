"""`loadmaster decide` and `loadmaster state`: what they show, and what they refuse in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.platform.cli import decide as command
from loadmaster.platform.cli import main as cli
from loadmaster.serving import system as registry
from loadmaster.serving.system import State
from tests.serving.client.fake_service import DECISION, answer, fake_service, unused_url

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADMASTER_TOKEN", raising=False)


@pytest.fixture
def state_file(tmp_path: Path) -> str:
    file = tmp_path / "state.json"
    file.write_text('{"version": 1, "jobs": []}')
    return str(file)


def refused(arguments: list[str], code: int, capsys: Captured) -> str:
    """The one line that a command ends with."""
    assert cli.main(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_a_decision_for_people(state_file: str, capsys: Captured) -> None:
    with fake_service() as service:
        assert cli.main(["decide", "decima", state_file, "--url", service.url]) == 0
        assert service.seen[0].json["mode"] == "active"
        assert service.seen[0].json["state"] == {"version": 1, "jobs": []}
    assert capsys.readouterr().out.splitlines() == [
        'decision  {"stage": 3, "limit": 8}',
        "source    policy, decima-stream 0123456789ab, 1.2 ms",
        "reason    stage 3 of job 17 is next on its critical path",
        "guard     bounds: job 17 from 12 to 8",
        "stage     job 17, stage 3  score 1.5  probability 75.0%",
        "stage     job 4, stage 0   score 0.5 ± 0.25",
    ]


def test_shadow_mode(state_file: str, capsys: Captured) -> None:
    in_shadow = {"decision": {"stage": 1}, "agrees": False, "policy": {"name": "decima-new"}}
    content = {**DECISION, "source": "fallback", "cause": "shadow", "shadow": in_shadow}
    with fake_service(answer(content)) as service:
        assert cli.main(["decide", "decima", state_file, "--shadow", "--url", service.url]) == 0
        assert service.seen[0].json["mode"] == "shadow"
    shown = capsys.readouterr().out
    assert "fallback, decima-stream 0123456789ab (shadow)" in shown
    assert 'shadow    decima-new would decide {"stage": 1}' in shown


def test_the_whole_answer_as_json(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    given = io.TextIOWrapper(io.BytesIO(b'{"version": 1}'))
    monkeypatch.setattr("sys.stdin", given)
    newer = {**DECISION, "carbon_g": 3}
    with fake_service(answer(newer)) as service:
        assert cli.main(["decide", "decima", "-", "--json", "--url", service.url]) == 0
        assert service.seen[0].json["state"] == {"version": 1}
    assert json.loads(capsys.readouterr().out) == newer


def test_answers_do_not_steer_the_terminal(state_file: str, capsys: Captured) -> None:
    reason = {"summary": "\x1b[2Jgone\r", "choices": {"\x1b[1m": [{"name": "\x07bell"}]}}
    with fake_service(answer({**DECISION, "reason": reason})) as service:
        assert cli.main(["decide", "decima", state_file, "--url", service.url]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert "gone" in shown


def test_the_token_comes_from_a_file(state_file: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    arguments = ["decide", "decima", state_file, "--token-file", str(file)]
    with fake_service(answer({"error": "this token is not known"}, 401)) as service:
        line = refused([*arguments, "--url", service.url], 1, capsys)
        assert service.seen[0].headers["authorization"] == "Bearer s3cret"
    assert "this token is not known" in line
    assert "s3cret" not in line
    for content in (b"", b"two words", b"\xff\xfe", b"x" * 10_000):
        file.write_bytes(content)
        assert "token" in refused([*arguments, "--url", unused_url()], 2, capsys)


def test_an_invalid_state_names_the_field(state_file: str, capsys: Captured) -> None:
    content = {"error": "must be at least 1", "field": "state.jobs[0].tasks"}
    with fake_service(answer(content, 422)) as service:
        line = refused(["decide", "decima", state_file, "--url", service.url], 2, capsys)
    assert line == "error: state.jobs[0].tasks: must be at least 1\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{not json", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\x00\xff", "is not JSON"),
        (b'{"x": NaN}', "NaN is no number"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "holds no JSON object"),
        (b" " * 1001, "too large; expected at most 1,000 bytes"),
    ],
)
def test_files_that_hold_no_state(
    content: bytes, said: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST_BYTES", 1000 if content[:1] == b" " else 2**20)
    file = tmp_path / "state.json"
    file.write_bytes(content)
    line = refused(["decide", "decima", str(file), "--url", unused_url()], 2, capsys)
    assert said in line
    assert str(file) in line


def test_files_that_are_none(tmp_path: Path, capsys: Captured) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        assert str(path) in refused(["decide", "decima", str(path)], 2, capsys)


def test_a_service_that_is_not_there(state_file: str, capsys: Captured) -> None:
    line = refused(["decide", "decima", state_file, "--url", unused_url()], 1, capsys)
    assert "cannot reach http://127.0.0.1:" in line
    assert "url" in refused(["decide", "decima", state_file, "--url", "127.0.0.1"], 2, capsys)
    assert "deadline" in refused(["decide", "decima", state_file, "--deadline", "0"], 2, capsys)


class FakeState(State):
    jobs: int


class FakeEndpoint:
    state = FakeState

    def examples(self) -> dict[str, FakeState]:
        return {"small": FakeState(jobs=2), "large": FakeState(jobs=200)}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(system: str) -> Any:
        assert system == "decima"
        return FakeEndpoint()

    monkeypatch.setattr(registry, "find_endpoint", find)


def test_example_states(endpoint: None, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["state", "decima"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "jobs": 2}
    file = tmp_path / "state.json"
    assert cli.main(["state", "decima", "--name", "large", "-o", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(file.read_text()) == {"version": 1, "jobs": 200}
    assert cli.main(["state", "decima", "--schema"]) == 0
    assert set(json.loads(capsys.readouterr().out)["properties"]) == {"version", "jobs"}


def test_examples_that_there_are_not(endpoint: None, tmp_path: Path, capsys: Captured) -> None:
    assert "'large'" in refused(["state", "decima", "--name", "larg"], 2, capsys)
    assert "cannot write" in refused(["state", "decima", "-o", str(tmp_path)], 2, capsys)
    assert list(tmp_path.iterdir()) == []


def test_unknown_systems(capsys: Captured) -> None:
    assert "'decima'" in refused(["state", "decma"], 2, capsys)
