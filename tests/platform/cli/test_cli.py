"""The command line: quick help, one-line errors, exit codes, `list` and `doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from loadmaster.envs import registry as systems
from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import environments
from loadmaster.platform.cli import main as cli
from loadmaster.platform.ray import health
from tests.bundles import make_run
from tests.platform.cli.one_line import error_line
from tests.serving.live import free_port

Captured = pytest.CaptureFixture[str]

COMMAND = [sys.executable, "-m", "loadmaster.platform.cli.main"]
HEAVY = {"numpy", "numba", "torch", "ray", "pandas", "matplotlib", "gymnasium"}


def run_in_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def imported_by(*arguments: str) -> set[str]:
    """Top-level names of the modules that a fresh `loadmaster ...` has loaded when it ends."""
    output = run_in_process(
        "import sys; from loadmaster.platform.cli.main import main\n"
        f"assert main({list(arguments)!r}) == 0\n"
        "print('\\n' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    return set(output.splitlines()[-1].split())


@pytest.mark.slow
def test_help_is_quick() -> None:
    seconds = []
    for _ in range(3):  # the best of three: the machine may be busy
        start = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.5


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help") & HEAVY == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_command(name: str, capsys: Captured) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: loadmaster {name}" in shown
    example = shown.partition("Example:")[2]
    assert f"loadmaster {name}" in example
    assert shown.split("\n\n")[1].strip() == cli.COMMANDS[name].summary
    assert imported_by(name, "--help") & {"torch", "ray", "numba"} == set()


def test_help_is_shown_without_arguments(capsys: Captured) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and command.summary in shown for name, command in cli.COMMANDS.items())


def test_version_is_printed(capsys: Captured) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("loadmaster 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evalute"], "'evaluate'"),
        (["nonsense"], "'nonsense'"),
        (["--nonsense"], "--nonsense"),
        (["list", "--jsn"], "--json"),
        (["doctor", "surplus"], "surplus"),
        (["evaluate", "dag_scheduling", "--seeds", "many"], "--seeds"),
        (["evaluate"], "SYSTEM_OR_ENVIRONMENT"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], words: str, capsys: Captured) -> None:
    assert words in error_line(arguments, capsys)


def run_failing(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], Any]) -> int:
    """Run `loadmaster list` with `fail` in place of the command."""
    single = typer.Typer()
    single.command()(fail)
    monkeypatch.setattr(cli, "load_command", lambda name: typer.main.get_command(single))
    return cli.main(["list"])


def test_user_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    def bad_input() -> None:
        raise InputError("seeds is -1;\nexpected 1 or more")

    def unwritable() -> None:
        (tmp_path / "no such folder" / "table.csv").write_text("")

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert run_failing(monkeypatch, bad_input) == 2
    assert capsys.readouterr().err == "error: seeds is -1; expected 1 or more\n"
    assert run_failing(monkeypatch, unwritable) == 2
    assert capsys.readouterr().err.endswith("table.csv: No such file or directory\n")
    assert run_failing(monkeypatch, interrupted) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_failing(monkeypatch, bug)


def test_exit_code_of_the_process() -> None:
    done = subprocess.run([*COMMAND, "lst"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


# Installed without the extras `train` and `serve`


def run_without_extras(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({[*cli.OPTIONAL_PACKAGES]!r}))\n"
        "from loadmaster.platform.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["train", "decima"], "train"),
        (["retrain", "decima", "--from", "decima-batch", "--output", "out"], "train"),
        (["submit", "--", "list"], "train"),
        (["serve", "--port", str(free_port())], "serve"),
    ],
)
def test_command_without_ray_names_the_extra(
    arguments: list[str], extra: str, tmp_path: Path
) -> None:
    done = run_without_extras(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: `loadmaster {arguments[0]}` needs ")
    assert done.stderr.endswith(f"; expected pip install 'loadmaster[{extra}]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_commands_that_need_no_ray(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "best")
    toy = ["--workload", "toy", "--set", "jobs=3", "--set", "executors=2"]
    for arguments in (
        ["list"],
        ["evaluate", "decima", "--against", "fair", "--seeds", "1", *toy],
        ["replay", "decima", *toy],
        ["calibrate", "dag_scheduling", "--seeds", "1", "--output", "kept.json", *toy],
        ["state", "decima"],
        ["state", "das"],
        ["export", "run", "bundle"],
    ):
        done = run_without_extras(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr


def test_list_as_json(capsys: Captured) -> None:
    assert cli.main(["list", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert set(listing) == {"systems", "environments", "pretrained"}
    for entry, spec in zip(listing["environments"], environments().values(), strict=True):
        assert entry["id"] == spec.gym_id
        assert entry["baselines"] == list(spec.baselines)
        assert entry["workloads"] == list(spec.workloads)
    first, second = listing["environments"]
    assert {"fifo", "fair", "random"} <= set(first["baselines"])
    assert {"tpch-like", "toy"} <= set(first["workloads"])
    assert {"fifo-first-fit", "mosa"} <= set(second["baselines"])
    assert {"pai-like", "toy"} <= set(second["workloads"])


def test_list_as_tables(capsys: Captured) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for spec in environments().values():
        assert all(name in shown for name in (spec.gym_id, *spec.baselines, *spec.workloads))


def test_systems_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    example = systems.System("example", "dag_scheduling", "decides nothing")
    entries = [
        SimpleNamespace(name="example", load=lambda: example),
        EntryPoint("absent", "no_such_package:SYSTEM", systems.GROUP),
        EntryPoint("wrong", "json:dumps", systems.GROUP),
    ]
    monkeypatch.setattr(systems, "entry_points", lambda group: entries)
    found = systems.systems()
    assert found["example"] == example
    assert not found["absent"].available
    assert "no_such_package" in found["absent"].summary
    assert not found["wrong"].available


@pytest.mark.slow
def test_doctor_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path))
    done = subprocess.run([*COMMAND, "doctor", "--json"], capture_output=True, text=True)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == any(check["status"] == "fail" for check in checks.values())
    assert {"python", "ray", "torch", "numba", "compiled code", "machine"} <= set(checks)
    assert checks["compiled code"]["status"] == "ok"
    assert str(tmp_path) in checks["compiled code"]["detail"]
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok")


def find(name: str) -> health.Check:
    return next(check for check in health.examine() if check.name == name)


@pytest.mark.slow
def test_doctor_on_traces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path / "nowhere"))
    assert cli.main(["doctor"]) == 1
    assert "LOADMASTER_DATA" in capsys.readouterr().out
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    assert find("traces").status == "warn"
    (tmp_path / "tpch" / "2g").mkdir(parents=True)
    (tmp_path / "tpch" / "2g" / "task_duration_1.npy").touch()
    assert find("traces").status == "ok"
    assert "tpch (files: 1)" in find("traces").detail


def test_doctor_finds_a_hidden_standard_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import platform

    assert find("standard library").status == "ok"
    monkeypatch.setattr(platform, "__file__", str(tmp_path / "platform" / "__init__.py"))
    assert find("standard library").status == "fail"


def test_doctor_finds_a_version_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy<2", "no-such-library>=3", "rich>=14", 'pytest>=9; extra == "dev"']
    monkeypatch.setattr(health, "requires", lambda name: wanted)
    found = {check.name: check for check in health.examine()}
    assert found["numpy"].status == "fail"
    assert "expected <2" in found["numpy"].detail
    assert found["no-such-library"].status == "fail"
    assert found["rich"].status == "ok"
    assert "pytest" not in found


@pytest.mark.slow
def test_doctor_connects_to_ray(ray_session: None) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [*COMMAND, "doctor", "--ray", "--json"],
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        check=False,
    )
    (cluster,) = (c for c in json.loads(done.stdout)["checks"] if c["name"] == "cluster")
    assert cluster["status"] == "ok", cluster["detail"]
    assert "2 CPU" in cluster["detail"]
