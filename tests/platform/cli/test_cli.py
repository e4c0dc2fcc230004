"""The command line: quick help, one-line errors, exit codes, `list` and `doctor`."""

import errno
import json
import subprocess
import sys
import timeit
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from loadmaster.envs import registry as systems
from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import environments
from loadmaster.platform.cli import main
from loadmaster.platform.cli.main import COMMANDS
from loadmaster.platform.ray import health
from tests.bundles import make_run
from tests.platform.cli.one_line import Cli, Patch

COMMAND = [sys.executable, "-m", "loadmaster.platform.cli.main"]
HEAVY = {"numpy", "numba", "torch", "ray", "pandas", "matplotlib", "gymnasium"}


run = partial(subprocess.run, capture_output=True, text=True)


def imported_by(*arguments: str) -> set[str]:
    """Top-level names of the modules that a fresh `loadmaster ...` has loaded when it ends."""
    code = (
        "import sys; from loadmaster.platform.cli.main import main\n"
        f"assert main({list(arguments)!r}) == 0\n"
        "print('\\n' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    return set(run([sys.executable, "-c", code], check=True).stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_help_is_quick() -> None:
    command = partial(run, [*COMMAND, "--help"], check=True)
    assert min(timeit.repeat(command, number=1, repeat=3)) < 1.5  # the machine may be busy


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help") & HEAVY == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, cli: Cli) -> None:
    shown = cli(f"{name} --help").out
    assert f"Usage: loadmaster {name}" in shown
    assert f"loadmaster {name}" in shown.partition("Example:")[2]
    assert shown.split("\n\n")[1].strip() == COMMANDS[name].summary
    assert imported_by(name, "--help") & {"torch", "ray", "numba"} == set()


def test_help_is_shown_without_arguments(cli: Cli) -> None:
    shown = cli("").out
    assert all(name in shown and command.summary in shown for name, command in COMMANDS.items())
    assert cli("--version").out.startswith("loadmaster 0.")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evalute", "'evaluate'"),
        ("--nonsense", "--nonsense"),
        ("list --jsn", "--json"),
        ("state decma", "'decima'"),
        ("doctor surplus", "surplus"),
        ("evaluate dag_scheduling --seeds many", "--seeds"),
        ("evaluate", "SYSTEM_OR_ENVIRONMENT"),
    ],
)
def test_misuse_is_one_line(line: str, words: str, cli: Cli) -> None:
    assert words in cli.error(line)


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        (InputError("seeds is -1;\nexpected 1"), 2, "error: seeds is -1; expected 1"),
        (FileNotFoundError(2, "No such file", "a.csv"), 2, "error: a.csv: No such file"),
        (OSError(errno.ENOSPC, "No space left"), 2, "error: cannot write: No space left"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_user_errors_are_one_line(
    fault: BaseException, code: int, line: str, monkeypatch: Patch, cli: Cli
) -> None:
    monkeypatch.setattr(main, "load_command", Mock(side_effect=fault))
    assert cli("list", code).err == f"{line}\n"


def test_bug_keeps_its_traceback(monkeypatch: Patch, cli: Cli) -> None:
    monkeypatch.setattr(main, "load_command", Mock(side_effect=ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli("list")


def test_exit_code_of_the_process() -> None:
    done = run([*COMMAND, "lst"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


TOY = "--workload toy --set jobs=3 --set executors=2"
WITHOUT_EXTRAS = {  # commands, and the extra each needs
    "list": None,
    f"evaluate decima --against fair --seeds 1 {TOY}": None,
    f"replay decima {TOY}": None,
    f"calibrate dag_scheduling --seeds 1 --output kept.json {TOY}": None,
    "state decima": None,
    "state das": None,
    "export run bundle": None,
    "train decima": "train",
    "retrain decima --from decima-batch --output out": "train",
    "submit -- list": "train",
    "serve --port 8799": "serve",
}


@pytest.mark.slow
def test_commands_without_ray_run_or_name_the_extra(tmp_path: Path) -> None:
    """One after the other in a process without the packages of `train` and `serve`."""
    make_run(tmp_path / "run", "best")
    code = (
        f"import io, json, sys\nsys.modules.update(dict.fromkeys({[*main.OPTIONAL_PACKAGES]!r}))\n"
        "from loadmaster.platform.cli.main import main\n"
        "results, shown = [], sys.stdout\n"
        "for line in sys.argv[1:]:\n"
        "    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()\n"
        "    results.append((main(line.split()), sys.stderr.getvalue()))\n"
        "json.dump(results, shown)"
    )
    done = run([sys.executable, "-c", code, *WITHOUT_EXTRAS], cwd=tmp_path)
    results = json.loads(done.stdout)
    for (line, extra), (exit_code, err) in zip(WITHOUT_EXTRAS.items(), results, strict=True):
        assert exit_code == (0 if extra is None else 2), err
        if extra is not None:
            assert err.count("\n") == 1
            assert err.startswith(f"error: `loadmaster {line.split()[0]}` needs ")
            assert err.endswith(f"; expected pip install 'loadmaster[{extra}]'\n")


def test_list_names_everything(cli: Cli) -> None:
    listing, shown = cli.json("list"), cli("list").out
    assert set(listing) == {"systems", "environments", "pretrained"}
    for entry, spec in zip(listing["environments"], environments().values(), strict=True):
        assert entry["id"] == spec.gym_id
        assert entry["baselines"] == list(spec.baselines)
        assert entry["workloads"] == list(spec.workloads)
        assert all(name in shown for name in (spec.gym_id, *spec.baselines, *spec.workloads))


def test_systems_come_from_entry_points(monkeypatch: Patch) -> None:
    example = systems.System("example", "dag_scheduling", "decides nothing")
    entries = [
        SimpleNamespace(name="example", load=lambda: example),
        EntryPoint("absent", "no_such_package:SYSTEM", systems.GROUP),
        EntryPoint("wrong", "json:dumps", systems.GROUP),
    ]
    monkeypatch.setattr(systems, "entry_points", lambda group: entries)
    found = systems.systems()
    assert found["example"] == example
    assert "no_such_package" in found["absent"].summary
    assert [name for name in ("absent", "wrong") if found[name].available] == []


def find(name: str) -> health.Check:
    return next(check for check in health.examine() if check.name == name)


@pytest.mark.slow
def test_doctor_on_traces(monkeypatch: Patch, tmp_path: Path, cli: Cli) -> None:
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path / "nowhere"))
    assert "LOADMASTER_DATA" in cli("doctor", 1).out
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    assert find("traces").status == "warn"
    (tmp_path / "tpch" / "2g").mkdir(parents=True)
    (tmp_path / "tpch" / "2g" / "task_duration_1.npy").touch()
    assert (find("traces").status, "tpch (files: 1)" in find("traces").detail) == ("ok", True)


def test_doctor_finds_a_hidden_standard_library(monkeypatch: Patch) -> None:
    assert find("standard library").status == "ok"
    monkeypatch.setattr("platform.__file__", "/elsewhere/platform/__init__.py")
    assert find("standard library").status == "fail"


def test_doctor_finds_a_version_out_of_range(monkeypatch: Patch) -> None:
    wanted = ["numpy<2", "no-such-library>=3", "rich>=14", 'pytest>=9; extra == "dev"']
    monkeypatch.setattr(health, "requires", lambda name: wanted)
    found = {check.name: check for check in health.examine()}
    status = {name: found[name].status for name in ("numpy", "no-such-library", "rich")}
    assert status == {"numpy": "fail", "no-such-library": "fail", "rich": "ok"}
    assert "expected <2" in found["numpy"].detail
    assert "pytest" not in found


@pytest.mark.slow
def test_doctor_as_json(ray_session: None, monkeypatch: Patch, tmp_path: Path) -> None:
    """In a process of its own, which connects to the running Ray."""
    import ray

    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    done = run([*COMMAND, "doctor", "--ray", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == any(check["status"] == "fail" for check in checks.values())
    assert {"python", "ray", "torch", "numba", "machine"} <= set(checks)
    assert checks["compiled code"]["status"] == "ok"
    assert str(tmp_path) in checks["compiled code"]["detail"]
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok")
    assert checks["cluster"]["status"] == "ok", checks["cluster"]["detail"]
    assert "2 CPU" in checks["cluster"]["detail"]
