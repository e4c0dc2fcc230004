"""`loadmaster serve`, `decide` and `state`: settings, output, and one-line errors."""

import io
import json
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli import decide
from loadmaster.platform.cli import serve as command
from loadmaster.platform.ray import serve_session, serve_settings, session
from loadmaster.platform.training.yaml_with_lines import LARGEST
from loadmaster.serving import system as registry
from loadmaster.serving.settings import ServeSettings
from loadmaster.serving.system import State
from tests.platform.cli.one_line import Captured, Cli, Patch
from tests.serving import toy
from tests.serving.client.fake_service import DECISION, answer, fake_service, unused_url

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def one(tmp_path: Path) -> dict[str, Any]:
    return {"endpoint": toy.REFERENCE, "bundle": str(toy.make_bundle(tmp_path / "bundle"))}


@pytest.fixture
def systems(one: dict[str, Any]) -> dict[str, Any]:
    return {"systems": {"toy": one}}


def written(folder: Path, content: Any) -> Path:
    text = yaml.safe_dump(content) if isinstance(content, dict) else content
    file = folder / "serve.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def arguments(
    file: Path, bundles: tuple[str, ...] = (), assignments: tuple[str, ...] = (), **given: Any
) -> dict[str, Any]:
    return serve_settings.serve_arguments(file, bundles, assignments, given)


def test_file_may_be_one_for_serve_deploy(tmp_path: Path, one: dict[str, Any]) -> None:
    content = {"systems": {"toy": {**one, "deadline_ms": 50.0}}, "port": 9000}
    assert arguments(written(tmp_path, content)) == content
    applications = [{"name": "other"}, {"name": "loadmaster", "args": content}]
    assert arguments(written(tmp_path, {"applications": applications})) == content


def test_later_sources_win(tmp_path: Path, one: dict[str, Any]) -> None:
    file = written(tmp_path, {"systems": {"toy": one}, "port": 9000, "host": "127.0.0.2"})
    other = toy.make_bundle(tmp_path / "other", "other")
    assigned = ("systems.toy.deadline_ms=70", "port=9001", "limits.burst=7")
    found = arguments(file, (f"toy={other}",), assigned, port=9002, host=None)
    assert found["systems"]["toy"] == {**one, "bundle": str(other), "deadline_ms": 70.0}
    assert (found["port"], found["host"], found["limits"]) == (9002, "127.0.0.2", {"burst": 7})


def test_folders_are_made_absolute(here: Path, one: dict[str, Any]) -> None:
    """A replica has another working folder."""
    file = written(here, {"systems": {"toy": {**one, "bundle": "./bundle"}}})
    found = arguments(file, folder=Path("kept"), tokens=Path("tokens"))
    assert found["systems"]["toy"]["bundle"] == str(here / "bundle")
    assert (found["folder"], found["tokens"]) == (str(here / "kept"), str(here / "tokens"))


@pytest.mark.parametrize("content", ["", "{}", "systems:\n", "systems:\n  decima:\n"])
def test_missing_settings_have_defaults(tmp_path: Path, content: str) -> None:
    assert arguments(written(tmp_path, content))["systems"]["decima"] == {}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x: 1\n  y: 2\n", "serve.yaml:2: "),
        (b"port: caf\xe9\n", "not UTF-8"),
        (b"\xff\xfe\x00", "YAML"),
        (b" " * (LARGEST + 1), "at most"),
        ("!!python/object/apply:os.system [echo]", "keys and values"),
        ("systems: [toy]", "systems"),
        ("systems: {toy: 5}", "systems.toy"),
        ("systems: {decimal: {}}", "did you mean 'decima'?"),
        ("systems: {x: {endpoint: 'no.such:THING'}}", "cannot be loaded"),
        ("systems: {x: {endpoint: 'json:loads'}}", "is no Endpoint"),
        ("1: 2", "setting"),
        ("prot: 80", "did you mean 'port'?"),
        ("port: 99999999999", "setting port"),
        ("limits: {rate_per_s: .nan}", "limits.rate_per_s"),
    ],
)
def test_malformed_file_is_refused(tmp_path: Path, content: str | bytes, expected: str) -> None:
    with pytest.raises(InputError) as fault:
        arguments(written(tmp_path, content))
    assert expected in str(fault.value)
    assert "\n" not in str(fault.value)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "nowhere", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=r"No such file|no plain file"):
            arguments(file)


def test_unknown_rule_is_refused(tmp_path: Path, systems: dict[str, Any]) -> None:
    file = written(tmp_path, systems)
    found = arguments(file, (), ("systems.toy.rule=follow",))
    assert found["systems"]["toy"]["rule"] == "follow"
    with pytest.raises(InputError, match="expected one of: hold, follow"):
        arguments(file, (), ("systems.toy.rule=folow",))


def test_limits_of_an_unknown_kind_are_refused(tmp_path: Path, systems: dict[str, Any]) -> None:
    file = written(tmp_path, systems)
    with pytest.raises(InputError, match=r"guard\.kinds 'cpu_m'"):
        arguments(file, (), ("systems.toy.guard.kinds.cpu_m.step=500",))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *((given, "SYSTEM=FOLDER_OR_NAME") for given in ("toy", "toy=", "=x", "")),
        ("toy=decima-sream", "did you mean 'decima-stream'?"),
        ("toy=/nowhere", "no policy bundle"),
        ("toy=" + "x" * 300, "cannot read"),
        ("toy=decima-stream", "expected one of toy"),
        ("decima=BUNDLE", "expected one of decima"),
        ("toy=DAMAGED", "is damaged"),
        ("toy=LINKED", "expected a plain file"),
    ],
)
def test_wrong_bundle_is_refused(given: str, expected: str, tmp_path: Path, systems: Any) -> None:
    file = written(tmp_path, systems)
    damaged = toy.make_bundle(tmp_path / "damaged")
    (damaged / "weights.safetensors").write_bytes(b"damaged")
    linked = toy.make_bundle(tmp_path / "linked")
    (linked / "README.md").symlink_to("/etc/hostname")
    given = given.replace("BUNDLE", f"{tmp_path}/bundle").replace("DAMAGED", str(damaged))
    given = given.replace("LINKED", str(linked))
    with pytest.raises(InputError, match=re.escape(expected)):
        arguments(file, (given,))


def test_bundle_without_a_mapping_of_systems_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mapping of systems"):
        arguments(written(tmp_path, "systems: [toy]"), ("toy=x",))


@pytest.mark.parametrize(("mode", "warns"), [(None, False), (0o600, False), (0o604, True)])
def test_token_file_missing_or_open_to_others_is_mentioned(
    mode: int | None, warns: bool, systems: dict[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    (tokens := tmp_path / "tokens").write_text(f"read {TOKEN}\n")
    tokens.chmod(mode or 0o600)
    given = {} if mode is None else {"tokens": tokens}
    command.print_endpoints(build_settings(ServeSettings, {**systems, **given}))
    shown = capsys.readouterr()
    assert "toy: bundle, within 250 ms, else hold" in shown.out
    assert ("No tokens are set" in shown.out) == (mode is None)
    assert shown.err.count("\n") == int(warns)
    assert ("is readable by all users" in shown.err) == warns
    assert TOKEN not in shown.out + shown.err


@pytest.mark.parametrize("where", [None, "file", "environment"])
def test_printed_commands_name_address_and_token(
    where: str | None, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    """A shell expands them to a valid token and to a command for this very service."""
    file = tmp_path / "a file"
    file.write_text(f"# of the service\nread {TOKEN}, admin {TOKEN}x\n")
    given: dict[str, Any] = {"tokens": file} if where == "file" else {}
    monkeypatch.delenv("LOADMASTER_TOKENS", raising=False)
    if where == "environment":
        monkeypatch.setenv("LOADMASTER_TOKENS", f"admin {TOKEN},read {TOKEN}x")
    values = {**given, "systems": {"decima": {}}, "host": "0.0.0.0", "port": 9001}
    command.print_endpoints(build_settings(ServeSettings, values))
    shown = capsys.readouterr().out
    *export, decide_line = shown.partition("Try:\n")[2].splitlines()
    url = "http://127.0.0.1:9001"
    state = "loadmaster state decima | loadmaster decide decima -"
    assert decide_line.strip() == f"{state} --url {url}"
    assert len(export) == (where is not None)
    assert ("No tokens are set" in shown) == (where is None)
    script = "\n".join([*export, 'printf %s "${LOADMASTER_TOKEN:-}"'])
    assert subprocess.check_output(["bash", "-euc", script], text=True) == (TOKEN if where else "")
    command.print_endpoints(build_settings(ServeSettings, {"systems": {"decima": {}}}))
    assert capsys.readouterr().out.endswith(f"{state}\n")  # the default address


def test_try_sends_a_valid_token(systems: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "tokens").write_text(f"read {TOKEN}\n")
    with fake_service(answer({"load": 1}), answer(DECISION)) as service:
        monkeypatch.setattr(serve_session, "base_url", lambda settings: service.url)
        settings = build_settings(ServeSettings, {**systems, "tokens": tmp_path / "tokens"})
        assert command.try_systems(settings) == []
    assert {one.headers["Authorization"] for one in service.seen} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, 200, []),
        ({"source": "fallback", "cause": "timeout"}, 200, ["fallback (timeout)", "policy"]),
        ({"latency_ms": 251.0}, 200, ["251.0 ms", "250 ms"]),
        ({"error": "no such system"}, 404, ["no such system"]),
    ],
)
def test_try_reports_decisions_not_of_the_policy(
    change: Any, status: int, words: list[str], systems: Any, monkeypatch: Patch
) -> None:
    with fake_service(answer({"load": 1}), answer({**DECISION, **change}, status)) as service:
        monkeypatch.setattr(serve_session, "base_url", lambda settings: service.url)
        faults = command.try_systems(build_settings(ServeSettings, systems))
    assert len(faults) == bool(words)
    assert all(fault.startswith("toy ") for fault in faults)
    assert [word for word in words if word not in faults[0]] == []


@pytest.mark.parametrize(("faults", "code"), [([], 0), (["toy was late", "das failed"], 1)])
def test_try_exits_with_1_and_one_line(
    faults: list[str], code: int, monkeypatch: Patch, systems: Any, cli: Cli
) -> None:
    replaced: dict[Any, Any] = {
        serve_settings: {"serve_arguments": systems},
        serve_session: dict.fromkeys(("until_stopped", "serving"), nullcontext())
        | {"check_reachability": None, "set_serve_env": None, "wait_until_ready": True},
        session: {"set_ray_env": None, "ray_session": nullcontext()},
        command: {"try_systems": faults},
    }
    for module, results in replaced.items():
        for name, result in results.items():
            monkeypatch.setattr(module, name, lambda *_, result=result, **__: result)
    shown = cli("serve --try", code)
    assert shown.out.endswith("stopped\n")
    assert shown.err == (f"error: {'; '.join(faults)}\n" if faults else "")


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


def test_long_decision_is_cut_off(state_file: str, cli: Cli) -> None:
    content = {**DECISION, "decision": {"stages": [1] * 1000}}
    with fake_service(answer(content)) as service:
        shown, *_ = cli(f"decide decima {state_file} --url {service.url}").out.splitlines()
    assert shown.endswith(" 1,... (3,012 characters; decide --json prints all)")
    assert len(shown) < 600


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
    monkeypatch.setattr(decide, "MOST_BYTES", 1000 if content[:1] == b" " else 2**20)
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
