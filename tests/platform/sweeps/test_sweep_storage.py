"""Sweeps at URLs on Ray: trials, interruption and resumption, a bucket that vanishes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.models.storage import Location
from loadmaster.platform.sweeps import run
from loadmaster.platform.sweeps.evaluation import policies_of
from loadmaster.platform.sweeps.folder import SweepFolder
from loadmaster.platform.sweeps.records import Record, TrialDisplay
from loadmaster.platform.training.run_folder import read_config
from tests.e2e.test_train import joined
from tests.object_store import ObjectStore
from tests.platform.cli.one_line import Captured, Cli, Patch
from tests.platform.sweeps.example_system import TRAINER

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
SweepFile = Callable[[str], Path]
RATE = "training.learning_rate.last"
RANDOM = f"""
base: {{validation.every: 2, rollouts.workers: 0, environment.pause_s: 0.05}}
space: {{{RATE}: {{loguniform: [1e-3, 0.4]}}}}
trials: 3
resources: {{concurrent: 1}}
stop: {{iterations: 6}}
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: Patch, example: None) -> Path:
    """Local copies are made here; the example system has its own trainer."""
    monkeypatch.setattr(run, "run_sweep", partial(run.run_sweep, trainer_at=TRAINER))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def once_reported(monkeypatch: Patch, trials: int, act: Callable[[], object]) -> None:
    """Call `act` once, when so many trials are over."""
    update, done = TrialDisplay.update, []

    def update_and_act(display: TrialDisplay, records: Sequence[Record]) -> None:
        update(display, records)
        if not done and sum(record.over for record in records) >= trials:
            done.append(act())

    monkeypatch.setattr(TrialDisplay, "update", update_and_act)


def test_sweep_in_a_bucket_is_interrupted_and_resumed(
    sweep_file: SweepFile, s3: ObjectStore, monkeypatch: Patch, capfd: Captured,
    temporary_folder: Path,
) -> None:  # fmt: skip
    # Workers of Ray may have started before the server: the URL has its address.
    place = Location.of(f"{s3.bucket()}/sweeps/one{s3.query}")
    cli, path = Cli(capfd), sweep_file(RANDOM)
    once_reported(monkeypatch, 1, lambda: signal.raise_signal(signal.SIGINT))
    first = json.loads(cli(f"tune {path} --output '{place}' --json", code=130).out)
    assert (first["folder"], first["interrupted"]) == (str(place), True)
    files = place.files()
    assert {"sweep.yaml", "sweep.json", "trials.csv", "ray.log"} <= set(files)
    assert any(name.startswith("tune/experiment_state-") for name in files)
    assert list(temporary_folder.iterdir()) == []

    again = json.loads(cli(f"tune --resume '{place}' --json").out)
    assert [trial["state"] for trial in again["trials"]] == ["finished"] * 3
    assert again["trials"][0] == first["trials"][0]  # it was over: not trained again
    best = again["best"]
    assert best["config"] == str(place / "best.yaml")
    assert (
        read_config(place / "best.yaml")["training"]["learning_rate"]["last"]
        == (best["parameters"][RATE])
    )
    checkpoints = {name.split("/")[2] for name in place.files() if "/checkpoint_" in name}
    assert checkpoints  # of the trials, written by Tune
    folder, sweep = SweepFolder.open(place, "--sweep")
    policies = policies_of(folder, sweep, {})
    folder.close()
    assert [own.trial for own in policies] == [trial["name"] for trial in again["trials"]]
    for own, trial in zip(policies, again["trials"], strict=True):
        assert own.searched == trial["parameters"]
        assert own.training_s == pytest.approx(trial["seconds"], abs=0.1)
        assert own.bundle.manifest.trained["x"] == pytest.approx(trial["value"])  # the last policy
    assert list(temporary_folder.iterdir()) == []
    assert "exists already" in cli.error(f"tune {path} --output '{place}'")


# A sweep of the example system that writes its records to a file and kills itself, as `kill -9`
# does, some seconds after a number of trials are over.
KILLED = """
import json, os, signal, sys, time
from dataclasses import asdict
from functools import partial
from loadmaster.envs import registry
from loadmaster.platform.cli.main import main
from loadmaster.platform.sweeps import run
from loadmaster.platform.sweeps.records import TrialDisplay
from tests.platform.sweeps.example_system import EXAMPLE, TRAINER

file, trials, later_s, *arguments = sys.argv[1:]
update, seen = TrialDisplay.update, []

def update_and_kill(display, records):
    update(display, records)
    over = [asdict(record) for record in records if record.over]
    if len(over) >= int(trials) and not seen:
        seen.append(time.monotonic())
        with open(file, "w") as output:
            json.dump(over, output)
    if seen and time.monotonic() >= seen[0] + float(later_s):
        os.kill(os.getpid(), signal.SIGKILL)

registry.SYSTEMS = (*registry.SYSTEMS, EXAMPLE)
run.run_sweep = partial(run.run_sweep, trainer_at=TRAINER)
TrialDisplay.update = update_and_kill
sys.exit(main(arguments))
"""


@pytest.mark.long
def test_killed_sweep_in_a_bucket_is_resumed_without_losing_trials(
    sweep_file: SweepFile, s3: ObjectStore, capfd: Captured, tmp_path: Path
) -> None:
    place = Location.of(f"{s3.bucket()}/sweeps/one{s3.query}")
    path = sweep_file(RANDOM.replace("pause_s: 0.05", "pause_s: 0.2"))
    file = tmp_path / "over.json"
    arguments = ["tune", str(path), "--output", str(place), *joined()]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(file), "2", "1", *arguments],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    over = json.loads(file.read_text())
    assert len(over) == 2
    again = Cli(capfd).json(f"tune --resume '{place}'")
    assert again["trials"][:2] == over  # not trained again
    assert [trial["state"] for trial in again["trials"]] == ["finished"] * 3


@pytest.mark.long
def test_bucket_that_vanishes_keeps_the_records(
    sweep_file: SweepFile, s3: ObjectStore, monkeypatch: Patch, capfd: Captured,
    temporary_folder: Path,
) -> None:  # fmt: skip
    bucket = s3.bucket()
    place = Location.of(f"{bucket}/one{s3.query}")
    once_reported(monkeypatch, 1, lambda: s3.delete(bucket))
    err = Cli(capfd)(f"tune {sweep_file(RANDOM)} --output '{place}'", code=2).err
    line = err.splitlines()[-1]
    (kept,) = temporary_folder.glob("loadmaster-*/one")
    assert line.startswith("error: cannot write s3://")
    assert "NO_SUCH_BUCKET" in line
    assert line.endswith(f"kept in {kept}")
    assert (kept / "trials.csv").read_text().count("trial-") >= 1
    assert "Traceback" not in err


def test_only_sweeps_are_resumed(s3: ObjectStore, temporary_folder: Path, capfd: Captured) -> None:
    place = Location.of(f"{s3.bucket()}/one")
    (place / "notes").write(b"mine")
    with pytest.raises(InputError, match="is not a sweep"):
        SweepFolder.open(place)
    assert list(temporary_folder.iterdir()) == []
