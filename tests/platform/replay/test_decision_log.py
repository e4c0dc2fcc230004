"""`loadmaster replay --log`: logged decisions made again by the same or another version."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs import registry
from loadmaster.envs.errors import InputError
from loadmaster.models import manifest
from loadmaster.models.manifest import read_manifest
from loadmaster.serving.decisions.request import iso
from loadmaster.serving.monitoring import log_files
from loadmaster.serving.monitoring.log_files import DecisionRow
from tests.platform.cli.one_line import Cli, Patch
from tests.serving import toy

NOW = 1_800_000_000.0


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: Patch) -> str:
    """Register the toy system with a pretrained bundle; return its version."""
    system = registry.System("toy", "", "a toy", package=toy.__name__)
    monkeypatch.setattr(registry, "SYSTEMS", (*registry.SYSTEMS, system))
    folder = tmp_path / "pretrained"
    version = made(folder / "toy-one")
    monkeypatch.setattr(manifest, "pretrained_folder", lambda: folder)
    return version


def made(folder: Path, **behaviour: Any) -> str:
    """A bundle of the toy system, named as its folder; its version."""
    return read_manifest(toy.make_bundle(folder, folder.name, **behaviour)).version


def row(number: int, load: int, replicas: int, version: str, **change: Any) -> DecisionRow:
    made = DecisionRow(
        id=f"d{number}", time=NOW + 60 * number, system="toy", mode="active", source="policy",
        cause=None, policy="toy-one", version=version, shadow=None, reason="{}", guard=(),
        state=json.dumps({"load": load, "replicas": 3}), latency_ms=1.0,
        decision=json.dumps({"replicas": replicas}),
    )  # fmt: skip
    return made._replace(**change)


def write(folder: Path, *rows: DecisionRow) -> Path:
    log_files.write_part(folder / "log", log_files.DECISIONS, rows, 1)  # named by the earliest
    return folder / "log"


def test_same_version_decides_the_same(shipped: str, tmp_path: Path, cli: Cli) -> None:
    fallback = row(1, 7, 3, "", source="fallback", cause="timeout", policy="hold")
    log = write(tmp_path, row(0, 25, 3, shipped), fallback)
    assert cli.json(f"replay --log {log}") == {
        "replayed": 2, "identical": 2, "different": 0, "different_by_same_version": 0,
        "differences": [], "not_replayable": {},
    }  # fmt: skip
    shown = cli(f"replay --log {log}")
    assert shown == ("2 decisions replayed: 2 identical, 0 different\n", "")


def test_other_decision_of_the_version_exits_with_1(shipped: str, tmp_path: Path, cli: Cli) -> None:
    rows = [row(n, 25, 3 if n < 4 else 4, shipped) for n in range(12)]
    broken = made(tmp_path / "pretrained" / "toy-broken", does="raises")
    failing = row(12, 25, 3, broken, policy="toy-broken")
    log = write(tmp_path, *rows, failing)
    record = cli.json(f"replay --log {log}", 1)
    counts = [record[n] for n in ("identical", "different", "different_by_same_version")]
    assert counts == [4, 9, 9]
    assert record["differences"][0] == {
        "id": "d4", "time": iso(NOW + 240), "system": "toy", "same_version": True,
        "policy": f"toy-one {shipped}", "by": f"toy-one {shipped}",
        "then": '{"replicas":4.0}', "now": '{"replicas":3.0}',
    }  # fmt: skip
    assert len(record["differences"]) == 5
    shown = cli(f"replay --log {log}", 1).out
    assert "9 of the different ones by the same version" in shown
    assert f"  d4, 2027-01-15T08:04:00.000+00:00, toy, toy-one {shipped} (same version)" in shown
    assert '    then: {"replicas":4.0}\n    now:  {"replicas":3.0}' in shown
    assert "  and 4 more" in shown
    record = cli.json(f"replay --log {write(tmp_path / 'late', failing)}", 1)
    assert record["differences"][0]["now"] == "fails: RuntimeError: the policy is broken"


def test_another_bundle_may_decide_otherwise(shipped: str, tmp_path: Path, cli: Cli) -> None:
    other = made(tmp_path / "mine", extra=1)
    most = row(2, 10 * toy.MOST, toy.MOST, shipped)  # which neither exceeds
    log = write(tmp_path, row(0, 25, 3, shipped), row(1, 15, 3, other), most)
    record = cli.json(f"replay --log {log} --bundle toy={tmp_path / 'mine'}")
    assert (record["replayed"], record["identical"], record["different"]) == (3, 2, 1)
    assert record["differences"][0]["by"] == f"mine {other}"
    assert not record["differences"][0]["same_version"]
    assert cli.json(f"replay --log {log} --bundle toy=toy-one")["identical"] == 2


def test_shadow_decision_is_replayed(shipped: str, tmp_path: Path, cli: Cli) -> None:
    shadow = {"decision": {"replicas": 9}, "policy": {"name": "toy-one", "version": shipped}}
    fallback = {"mode": "shadow", "source": "fallback", "cause": "shadow", "policy": "hold"}
    log = write(tmp_path, row(0, 25, 3, "", shadow=json.dumps(shadow), **fallback))
    record = cli.json(f"replay --log {log}", 1)
    assert (record["identical"], record["different"]) == (1, 1)
    assert record["differences"][0]["then"] == '{"replicas":9.0}'


NOT_REPLAYABLE: dict[str, dict[str, Any]] = {  # start of the reason: what differs in the row
    "unknown system 'huge'": {"system": "huge"},
    "its state is refused today: version: ": {"state": '{"version": 2, "load": 1}'},
    "its state is refused today: : Invalid JSON": {"state": "{"},
    "its decision is refused today: replicas: ": {"decision": '{"replicas": "many"}'},
    "the guard changed the decision": {"guard": ("bounds: replicas from 3 to 2",)},
    "no rule 'sevens' is known to toy": {"source": "fallback", "policy": "sevens"},
    "its record is damaged: no policy in its shadow": {"shadow": "{}"},
    "its record is damaged: Expecting property name": {"shadow": "{"},
    "its record is damaged: year": {"time": 9e11},
}


def test_rows_are_not_replayed_for_a_reason(shipped: str, tmp_path: Path, cli: Cli) -> None:
    lost = [row(n, 25, 3, "f" * 12, policy="toy-lost") for n in (1, 2)]
    rows = (row(n, 25, 3, shipped, **c) for n, c in enumerate(NOT_REPLAYABLE.values(), 3))
    log = write(tmp_path, row(0, 25, 3, shipped), *lost, *rows)
    record = cli.json(f"replay --log {log}")
    assert record["replayed"] == 1
    reasons = record["not_replayable"]
    assert sum(reasons.values()) == 2 + len(NOT_REPLAYABLE)
    missing = "the toy bundle 'toy-lost', version ffffffffffff, is not at hand; give it by --bundle"
    assert reasons[f"{missing} toy=FOLDER"] == 2
    for start in NOT_REPLAYABLE:
        assert sum(count for why, count in reasons.items() if why.startswith(start)) == 1, start
    assert f"11 not replayable:\n  2: {missing}" in cli(f"replay --log {log}").out


def test_since_and_until_limit_the_rows(shipped: str, tmp_path: Path, cli: Cli) -> None:
    log = write(tmp_path, *(row(n, 25, 3, shipped) for n in range(10)))
    bounds = "--since 2027-01-15T08:02 --until 2027-01-15T09:05+01:00"
    assert cli.json(f"replay --log {log} {bounds}")["replayed"] == 3


def test_damaged_file_is_warned_of(shipped: str, tmp_path: Path, cli: Cli) -> None:
    log = write(tmp_path, row(0, 25, 3, shipped))
    (log / "decisions-broken.parquet").write_text("no")
    shown = cli(f"replay --log {log}")
    assert "1 decisions replayed" in shown.out
    assert shown.err.startswith(f"warning: {log}/decisions-broken.parquet is passed over: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "'TARGET'"),
        ("dag_scheduling --log LOG", "TARGET cannot be used with --log"),
        ("--log LOG --policy fair", "--policy cannot be used with --log"),
        ("--log LOG --seed 0", "--seed cannot be used with --log"),  # its default
        ("dag_scheduling --bundle a=b", "--bundle cannot be used without --log"),
        ("--log NONE", "decision log"),
        ("--log LOG --since noon", "--since 'noon'"),
        ("--log LOG --since 1h --until 2h", "--until 2h"),
        ("--log LOG --bundle toy", "expected SYSTEM=FOLDER"),
        ("--log LOG --bundle toy=nowhere", "unknown policy 'nowhere'"),
        ("--log LOG --bundle das=toy-one", "expected a bundle of 'das'"),
        ("--log LOG --bundle toy=DAMAGED", "is damaged"),
        ("--log LOG --bundle toy=toy-one --bundle toy=toy-one", "expected one bundle a system"),
    ],
)
def test_bad_input(arguments: str, words: str, shipped: str, tmp_path: Path, cli: Cli) -> None:
    log = write(tmp_path, row(0, 25, 3, shipped))
    made(damaged := tmp_path / "damaged")
    (damaged / "weights.safetensors").write_text("others")
    for name, path in {"LOG": log, "NONE": tmp_path / "none", "DAMAGED": damaged}.items():
        arguments = arguments.replace(name, str(path))
    assert words in cli.error(f"replay {arguments}")


def test_timestamps_have_several_forms() -> None:
    for text in ("2027-01-15T08:00", "2027-01-15T10:00:00+02:00", iso(NOW)):
        assert log_files.parse_timestamp(text, "--since", NOW) == NOW
    for text, before in (("90m", 5400), ("2d", 172_800), ("2027-01-15", 8 * 3600)):
        assert log_files.parse_timestamp(text, "--since", NOW) == NOW - before
    for text in ("", "h", "-3h", "2027-13-01", "9999999d"):
        with pytest.raises(InputError, match="--since"):
            log_files.parse_timestamp(text, "--since", NOW)
