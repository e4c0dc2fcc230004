"""Off-policy training on Pendulum: the same rows again, resumed, killed, and with workers."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench.pendulum import RECIPE, PendulumTraining
from loadmaster.platform.rl.off_policy import REPLAY
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import CsvTracker
from loadmaster.platform.training.trainer import Trainer

pytestmark = pytest.mark.slow

Start = Callable[..., Trainer]
CLOCKS = ("seconds", "decisions_per_s", "workers")
LAST, EVERY = 9, 2  # iterations, and between checkpoints
PATIENCE_S = 120.0


def small(workers: int = 0, **training: Any) -> PendulumTraining:
    learning = {"warm_up": 200, "replay": 700, "updates_per_step": 0.2, **training}
    values = {
        "seed": 5,
        "rollouts": {"workers": workers, "episodes": 2},
        "training": learning,
        "network": {"actor": [16, 16], "critic": [16, 16], "critics": 2},
        "validation": {"every": 1, "sequences": 2},
    }
    return build_settings(PendulumTraining, values)


def row(trainer: Trainer) -> dict[str, float]:
    """Metrics of one more iteration, without clocks."""
    return {name: value for name, value in trainer.step().items() if not name.endswith(CLOCKS)}


def test_rows_repeat_exactly_and_are_resumed_from_a_run_folder(start: Start, here: Path) -> None:
    config, folders = small(), [here / name for name in ("one", "other")]
    one, other = (start(RECIPE, config, run_folder=folder) for folder in folders)
    rows = []
    for iteration in range(1, 6):
        rows.append(row(one))
        assert row(other) == rows[-1]
        if iteration == 2:
            one.save(here / "checkpoint")
    assert rows[0]["updates"] == int(0.2 * 200)
    assert rows[4]["updates"] == int(0.2 * 1800)
    assert rows[4]["replay_rows"] == 700  # the oldest are gone
    assert len({each["validation"] for each in rows}) == 5
    assert not (here / "checkpoint" / REPLAY).exists()  # it refers to the run's
    assert sum(file.stat().st_size for file in (here / "checkpoint").rglob("*")) < 1e6
    resumed = start(RECIPE, config, resumed=True, run_folder=folders[0])
    resumed.restore(here / "checkpoint")
    assert [row(resumed) for _ in range(3)] == rows[2:]
    with pytest.raises(InputError, match="not the replay of the checkpoint"):
        start(RECIPE, config, resumed=True, run_folder=folders[1]).restore(here / "checkpoint")
    changed = start(RECIPE, small(replay=800), resumed=True, run_folder=folders[0])
    with pytest.raises(InputError, match="capacity 700; expected 800"):
        changed.restore(here / "checkpoint")


def test_checkpoint_without_a_run_folder_holds_the_replay(start: Start, here: Path) -> None:
    """As in sweeps, whose trials are copied to other machines."""
    one = start(RECIPE, small())
    one.save(here / "empty")  # before the first transition
    row(one)
    one.save(here / "checkpoint")
    rows = [row(one) for _ in range(2)]
    for _ in range(2):
        resumed = start(RECIPE, small(), resumed=True)
        row(resumed)
        resumed.restore(here / "checkpoint")
        assert [row(resumed) for _ in range(2)] == rows


@pytest.mark.long
def test_workers_make_the_same_transitions(start: Start) -> None:
    def small_workers(config: PendulumTraining) -> Any:
        return RECIPE.algorithm(config).env_runners(num_cpus_per_env_runner=0.4)

    alone = start(RECIPE, small())
    many = start(replace(RECIPE, algorithm=small_workers), small(workers=2))
    for _ in range(2):
        one, other = row(alone), row(many)
        assert other == pytest.approx(one, rel=1e-3)  # sums of other batches differ in last bits
        assert other["decisions"] == 400


def test_weights_of_a_policy_start_its_target_networks(start: Start) -> None:
    trainer = start(RECIPE, small())
    row(trainer)
    algorithm: Any = trainer.algorithm
    given = {name: np.ones_like(table) for name, table in algorithm.module_weights().items()}
    algorithm.set_module_weights(given)
    learner = algorithm.learner_group._learner
    state = learner.get_state()["rl_module"]["default_policy"]
    for name in ("network.actor.weights.0", "target_network.critic.biases.2"):
        assert (state[name] == 1).all()
    assert set(trainer.weights()) == {
        name.removeprefix("network.") for name in given if name.startswith("network.")
    }
    assert "critic.weights.0" in trainer.weights()  # a bundle holds the critics


def test_learners_in_other_processes_are_refused() -> None:
    with pytest.raises(InputError, match=r"resources\.learners is 1; expected 0"):
        build_settings(PendulumTraining, {"resources": {"learners": 1}})


def run_to_the_end(run: Path) -> None:
    """Train, or go on from the last checkpoint, with a row of metrics for every iteration."""
    config, resumed = small(), run.exists()
    folder = RunFolder(run) if resumed else RunFolder.create(run, config, {"system": "pendulum"})
    checkpoint = folder.latest_checkpoint() if resumed else None
    trainer = Trainer(RECIPE, config, resumed, run)
    if checkpoint is not None:
        trainer.restore(checkpoint)
        folder.resume(config, trainer.iteration)
    tracker = CsvTracker(folder)
    while trainer.iteration < LAST:
        figures = row(trainer)
        if trainer.iteration % EVERY == 0:
            trainer.save(folder.checkpoint_of(trainer.iteration))
        tracker.log(trainer.iteration, figures)
    trainer.stop()


PROGRAM = """
import sys
from pathlib import Path
from loadmaster.platform.ray.session import ray_session, set_ray_env
set_ray_env(None)
from tests.platform.rl.test_off_policy import run_to_the_end
with ray_session(cpus=1):
    run_to_the_end(Path(sys.argv[1]))
"""


def rows_of(run: Path) -> list[dict[str, str]]:
    if not (run / "metrics.csv").exists():
        return []
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_killed_run_resumes_on_the_same_curve(here: Path) -> None:
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "killed"], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        end = time.monotonic() + PATIENCE_S
        while len(rows_of(Path("killed"))) <= EVERY:
            assert killed.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        killed.kill()  # within an iteration, of which some are not in a checkpoint
        killed.wait()
    before = rows_of(Path("killed"))
    assert EVERY < len(before) < LAST
    run_to_the_end(Path("killed"))
    run_to_the_end(Path("whole"))
    assert rows_of(Path("killed")) == rows_of(Path("whole"))
    assert rows_of(Path("whole"))[: len(before)] == before
    assert len(rows_of(Path("whole"))) == LAST
