"""`loadmaster train` as a command: to the end, stopped, killed and resumed.

Most of a short run is startup on one core, so independent commands run in parallel.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from loadmaster.envs.compiled import cache_folder
from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import Bundle, load_bundle
from loadmaster.platform.cli.main import main
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.run_folder import read_config

pytestmark = pytest.mark.slow

COMMAND = [str(Path(sys.executable).with_name("loadmaster")), "train"]
SETTINGS = {
    "environment.workload": "toy",
    "environment.jobs": 3,
    "environment.executors": 4,
    "rollouts.sequences": 2,
    "rollouts.per_sequence": 3,
    "training.iterations": 14,
    "training.learning_rate": "{first: 0.01, last: 0.01}",
    "validation.every": 4,
    "validation.sequences": 3,
}
LAST, FEWER = 14, 12  # iterations
BUNDLES = ("best", "last")
CLOCKS = ("seconds", "decisions_per_s")  # the only columns in which two runs may differ
PATIENCE_S = 240.0


def settings(**changed: Any) -> list[str]:
    values = {**SETTINGS, **{name.replace("__", "."): value for name, value in changed.items()}}
    given = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return ["decima", "--workers", "1", *given]


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """`loadmaster train ...` in a process group of its own, as a shell starts it."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.run = cwd / "run"  # by --output or --resume
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd,
            env={**(env or os.environ), "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants: those of its Ray among them."""
        driver = psutil.Process(self._process.pid)
        return [driver, *driver.children(recursive=True)]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process.poll() is None, self._process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Send SIGINT to the whole group, as Ctrl-C does."""
        os.killpg(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill the driver alone, without cleanup."""
        self._process.kill()

    def done(self) -> Done:
        out, err = self._process.communicate(timeout=PATIENCE_S)
        return Done(self._process.returncode, out, err)


def rows_of(run: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv, as written, without clocks."""
    with (run / "metrics.csv").open() as file:
        return [
            {name: value for name, value in row.items() if not name.endswith(CLOCKS)}
            for row in csv.DictReader(file)
        ]


def iteration_of(run: Path) -> int:
    try:
        return int(rows_of(run)[-1]["iteration"])
    except (FileNotFoundError, IndexError, TypeError, ValueError):
        return -1


def manifest_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def joined() -> list[str]:
    import ray

    return ["--address", ray.get_runtime_context().gcs_address]


class Finished(NamedTuple):
    done: Done
    run: Path
    rows: list[dict[str, str]]
    bundles: dict[str, Bundle]


class Stopped(NamedTuple):
    done: Done
    run: Path
    iteration: int  # of its last checkpoint


@pytest.fixture(scope="module")
def whole(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A run from start to finish, on an existing cluster."""
    arguments = [*settings(), *joined(), "--output", "run", "--json"]
    return Command(*arguments, cwd=tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def stopped(whole: Command, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """The same run on its own Ray, stopped early with Ctrl-C."""
    # Checkpoints only from stops, so that everything after one is repeated.
    fewer = settings(checkpoints__every=1000, training__iterations=FEWER)
    arguments = [*fewer, "--output", "run"]
    command = Command(*arguments, cwd=tmp_path_factory.mktemp("stopped"))
    command.wait_until(lambda: iteration_of(command.run) >= 2)
    family = command.family()
    command.interrupt()
    done = command.done()
    psutil.wait_procs(family, timeout=10)  # on a busy machine Ray's workers end a little later
    assert alive(family) == []
    return Stopped(done, command.run, iteration_of(command.run))


def test_ctrl_c_saves_a_checkpoint_and_prints_how_to_resume(stopped: Stopped) -> None:
    done, run, reached = stopped
    assert done.code == 130
    assert "Stopped before the end. Go on: loadmaster train --resume run\n" in done.out
    assert done.err.endswith("interrupted\n")
    assert "Traceback" not in done.err
    assert 2 <= reached < FEWER
    assert (run / "checkpoints" / f"iteration-{reached:06d}").is_dir()
    assert manifest_of(run)["status"] == "interrupted"


@pytest.fixture(scope="module")
def finished(whole: Command) -> Finished:
    done, run = whole.done(), whole.run
    assert done.code == 0, done.err
    return Finished(done, run, rows_of(run), {one: load_bundle(run / one) for one in BUNDLES})


def test_files_of_a_run(finished: Finished) -> None:
    run, rows = finished.run, finished.rows
    assert {path.name for path in run.iterdir()} == {
        "config.yaml", "manifest.json", "metrics.csv", "tensorboard", "checkpoints", "best", "last",
        "curve.png", "ray.log",
    }  # fmt: skip
    config = build_settings(DecimaTraining, read_config(run / "config.yaml"))
    assert (config.environment.jobs, config.rollouts.workers) == (3, 1)
    assert [row["iteration"] for row in rows] == [str(i) for i in range(LAST + 1)]
    validated = {int(row["iteration"]): row["validation"] for row in rows if row["validation"]}
    assert list(validated) == [0, 4, 8, 12, LAST]
    assert len(list((run / "tensorboard").glob("events.*"))) == 1
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["iteration-000000", "iteration-000010", "iteration-000014"]
    assert finished.bundles["last"].trained["iterations"] == LAST
    best = min(validated, key=lambda iteration: float(validated[iteration]))
    assert finished.bundles["best"].trained["iterations"] == best
    manifest = manifest_of(run)
    assert manifest["status"] == "finished"
    assert manifest["command"].startswith("loadmaster train decima --workers 1")
    assert {"ray", "torch", "python"} <= set(manifest["versions"])
    assert {"seed", "machine", "revision", "started", "baselines"} <= set(manifest)


def test_json_output(finished: Finished) -> None:
    found = json.loads(finished.done.out)
    assert found["run"] == "run"
    assert (found["interrupted"], found["iterations"]) == (False, LAST)
    assert found["untrained"] == pytest.approx(float(finished.rows[0]["validation"]))


def test_stderr_has_progress_lines_only(finished: Finished) -> None:
    lines = finished.done.err.splitlines()
    assert [line for line in lines if not line.startswith("iteration ")] == []
    shown = {line.split()[1] for line in lines}  # slow iterations are shown as well
    assert shown >= {"0/14", "4/14", "8/14", "12/14", "14/14"}


@pytest.fixture(scope="module")
def killed(stopped: Stopped) -> list[psutil.Process]:
    """Processes of the stopped run, which was resumed and killed after its last checkpoint."""
    _, run, reached = stopped
    command = Command("--resume", "run", cwd=run.parent)
    command.wait_until(lambda: iteration_of(run) >= reached + 2)
    family = command.family()
    command.kill()
    assert command.done().code == -signal.SIGKILL
    assert reached < iteration_of(run) < FEWER
    assert manifest_of(run)["status"] == "running"
    assert len(family) > 4  # its Ray
    return family


@pytest.fixture(scope="module")
def resumed(
    stopped: Stopped, killed: list[psutil.Process], tmp_path_factory: pytest.TempPathFactory
) -> Command:
    """The killed run, resumed on an existing cluster, with more iterations than it began with.

    The cluster's token is only in the file of `ray start`.
    """
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(os.environ["RAY_AUTH_TOKEN"])
    removed = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
    env = {name: value for name, value in os.environ.items() if name not in removed}
    env |= {"HOME": str(home), "LOADMASTER_CACHE": str(cache_folder().parents[2])}
    more = ["--resume", "run", "--set", f"training.iterations={LAST}", *joined()]
    return Command(*more, cwd=stopped.run.parent, env=env)


def test_ctrl_c_during_startup_leaves_no_files(tmp_path: Path) -> None:
    command = Command(*settings(), cwd=tmp_path)
    command.wait_until(lambda: (tmp_path / "runs").exists())
    time.sleep(1.0)  # Ray is starting
    command.interrupt()
    done = command.done()
    assert done.code == 130
    assert done.err.endswith("interrupted\n")
    assert list(tmp_path.iterdir()) == []


def check_refusal(address: str, done: Done, folder: Path) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: --address {address!r}: ")
    assert "expected 'auto' or" in done.err
    assert done.err.count("\n") == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "ray://127.0.0.1:1"])
def test_invalid_or_unreachable_address(
    address: str,
    resumed: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In this process, as if Ray was not initialised; the resumed run goes on meanwhile."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # the command sets it otherwise
    monkeypatch.chdir(tmp_path)
    code = main(["train", *settings(), "--address", address])
    check_refusal(address, Done(code, *capfd.readouterr()), tmp_path)


def test_killed_and_resumed_run_equals_an_uninterrupted_one(
    stopped: Stopped, resumed: Command, finished: Finished
) -> None:
    done, (_, run, reached) = resumed.done(), stopped
    assert done.code == 0, done.err
    assert rows_of(run) == finished.rows
    assert [again["iteration"] for again in manifest_of(run)["resumed"]] == [reached, reached]
    assert manifest_of(run)["status"] == "finished"
    assert read_config(run / "config.yaml")["training"]["iterations"] == LAST
    for which, other in finished.bundles.items():
        one = load_bundle(run / which)
        assert one.trained["iterations"] == other.trained["iterations"]
        for name, weights in one.weights.items():
            assert weights.equal(other.weights[name])


@pytest.fixture(scope="session")
def remaining_agents() -> Iterator[list[psutil.Process]]:
    """Processes that end soon; checked after all tests."""
    processes: list[psutil.Process] = []
    yield processes
    _, left = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive(left) == [], "of the training that test_no_process_survives_a_kill killed"


def test_no_process_survives_a_kill(
    killed: list[psutil.Process], remaining_agents: list[psutil.Process]
) -> None:
    """Ray ends with its driver; two of its agents take a minute."""

    def agents() -> list[psutil.Process]:
        return [process for process in alive(killed) if is_agent(process)]

    end = time.monotonic() + PATIENCE_S
    while set(alive(killed)) - set(agents()):
        assert time.monotonic() < end
        time.sleep(0.1)
    remaining_agents += agents()
    assert len(remaining_agents) <= 2


def is_agent(process: psutil.Process) -> bool:
    try:
        return "Agent" in "".join(process.cmdline()[:1])
    except psutil.NoSuchProcess:
        return False
