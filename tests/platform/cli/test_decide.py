"""`loadmaster decide` and `loadmaster state`: their output and their one-line errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadmaster.platform.cli import decide as command
from loadmaster.serving import system as registry
from loadmaster.serving.system import State
from tests.platform.cli.one_line import Cli, Patch
from tests.serving.client.fake_service import DECISION, answer, fake_service, unused_url


@pytest.fixture(autouse=True)
def no_token(monkeypatch: Patch) -> None:
    monkeypatch.delenv("LOADMASTER_TOKEN", raising=False)


@pytest.fixture
def state_file(tmp_path: Path) -> str:
    file = tmp_path / "state.json"
    file.write_text('{"version": 1, "jobs": []}')
    return str(file)


def test_decision_is_printed_in_lines(state_file: str, cli: Cli) -> None:
    with fake_service() as service:
        shown = cli(f"decide decima {state_file} --url {service.url}").out
        sent = service.seen[0].json
    assert (sent["mode"], sent["state"]) == ("active", {"version": 1, "jobs": []})
    assert shown.splitlines() == [
        'decision  {"stage": 3, "limit": 8}',
        "source    policy, decima-stream 0123456789ab, 1.2 ms",
        "reason    stage 3 of job 17 is next on its critical path",
        "guard     bounds: job 17 from 12 to 8",
        "stage     job 17, stage 3  score 1.5  probability 75.0%",
        "stage     job 4, stage 0   score 0.5 ± 0.25",
    ]


def test_shadow_decision_is_printed(state_file: str, cli: Cli) -> None:
    in_shadow = {"decision": {"stage": 1}, "agrees": False, "policy": {"name": "decima-new"}}
    content = {**DECISION, "source": "fallback", "cause": "shadow", "shadow": in_shadow}
    with fake_service(answer(content)) as service:
        shown = cli(f"decide decima {state_file} --shadow --url {service.url}").out
        assert service.seen[0].json["mode"] == "shadow"
    assert "fallback, decima-stream 0123456789ab (shadow)" in shown
    assert 'shadow    decima-new would decide {"stage": 1}' in shown


def test_json_is_the_whole_response(monkeypatch: Patch, cli: Cli) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"version": 1}')))
    newer = {**DECISION, "carbon_g": 3}
    with fake_service(answer(newer)) as service:
        assert cli.json(f"decide decima - --url {service.url}") == newer
        assert service.seen[0].json["state"] == {"version": 1}


def test_control_characters_are_removed(state_file: str, cli: Cli) -> None:
    reason = {"summary": "\x1b[2Jgone\r", "choices": {"\x1b[1m": [{"name": "\x07bell"}]}}
    with fake_service(answer({**DECISION, "reason": reason})) as service:
        shown = cli(f"decide decima {state_file} --url {service.url}").out
    assert all(line.isprintable() for line in shown.splitlines())
    assert "gone" in shown


def test_token_is_read_from_a_file(state_file: str, tmp_path: Path, cli: Cli) -> None:
    (file := tmp_path / "token").write_text("s3cret\n")
    command = f"decide decima {state_file} --token-file {file} --url"
    with fake_service(answer({"error": "this token is not known"}, 401)) as service:
        line = cli.error(f"{command} {service.url}", 1)
        assert service.seen[0].headers["authorization"] == "Bearer s3cret"
    assert "this token is not known" in line
    assert "s3cret" not in line
    for content in (b"", b"two words", b"\xff\xfe", b"x" * 10_000):
        file.write_bytes(content)
        assert "token" in cli.error(f"{command} {unused_url()}")


def test_invalid_state_names_the_field(state_file: str, cli: Cli) -> None:
    content = {"error": "must be at least 1", "field": "state.jobs[0].tasks"}
    with fake_service(answer(content, 422)) as service:
        line = cli.error(f"decide decima {state_file} --url {service.url}")
    assert line == "error: state.jobs[0].tasks: must be at least 1\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{not json", "is not JSON"),
        (b"\xff\x00\xff", "is not JSON"),
        (b'{"x": NaN}', "NaN is no number"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "holds no JSON object"),
        (b" " * 1001, "1,000 bytes"),
    ],
)
def test_file_without_a_state_is_bad_input(
    content: bytes, words: str, state_file: str, cli: Cli, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(command, "MOST_BYTES", 1000 if content[:1] == b" " else 2**20)
    Path(state_file).write_bytes(content)
    line = cli.error(f"decide decima {state_file} --url {unused_url()}")
    assert words in line
    assert state_file in line


def test_unreachable_service_exits_with_1(state_file: str, cli: Cli) -> None:
    line = cli.error(f"decide decima {state_file} --url {unused_url()}", 1)
    assert "cannot reach http://127.0.0.1:" in line


BAD_INPUT = {
    "decide decima .": "Is a directory",
    "decide decima missing.json": "missing.json",
    "decide decima state.json --url 127.0.0.1": "url",
    "decide decima state.json --deadline 0": "deadline",
    "state decima --name larg": "'large'",
    "state decima -o .": "cannot write",
}


@pytest.mark.usefixtures("endpoint", "state_file")
@pytest.mark.parametrize("line", BAD_INPUT)
def test_bad_input_is_one_line(line: str, here: Path, cli: Cli) -> None:
    assert BAD_INPUT[line] in cli.error(line)
    assert [path.name for path in here.iterdir()] == ["state.json"]


class FakeState(State):
    jobs: int


@pytest.fixture
def endpoint(monkeypatch: Patch) -> None:
    examples = {"small": FakeState(jobs=2), "large": FakeState(jobs=200)}
    found = {"decima": SimpleNamespace(state=FakeState, examples=lambda: examples)}
    monkeypatch.setattr(registry, "find_endpoint", found.__getitem__)


def test_example_states_are_printed(endpoint: None, tmp_path: Path, cli: Cli) -> None:
    assert json.loads(cli("state decima").out) == {"version": 1, "jobs": 2}
    file = tmp_path / "state.json"
    assert cli(f"state decima --name large -o {file}").out == ""
    assert json.loads(file.read_text()) == {"version": 1, "jobs": 200}
    assert set(json.loads(cli("state decima --schema").out)["properties"]) == {"version", "jobs"}
