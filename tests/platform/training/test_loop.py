"""The training loop with a fake trainer: what it writes, and how it stops."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import build_network, load_bundle
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training import loop
from loadmaster.platform.training.display import Progress
from loadmaster.platform.training.loop import Outcome, run
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import CsvTracker

VALIDATIONS = {0: 100.0, 1: 90.0, 4: 70.0, 8: 80.0, 10: 75.0}
REPORTED = {0: 100.0, 4: 70.0, 8: 80.0, 10: 75.0}  # untrained, every fourth, and at the end


class FakeTrainer:
    """Returns VALIDATIONS, and calls `during[i]` in iteration i."""

    def __init__(self, config: DecimaTraining, during: dict[int, Callable[[], Any]]) -> None:
        self.config, self.during = config, during
        self.iteration, self.decisions = 0, 0
        self.validation_seeds = range(5)
        self.network = build_network("decima", {})
        self.recipe: Any = SimpleNamespace(
            system="decima",
            metric=lambda config: "jct_s",
            baselines=lambda config, seeds: {"fair": 90.0, "fifo": 95.0},
            network=lambda config: config.network.model_dump(),
        )

    def step(self) -> dict[str, float]:
        self.iteration += 1
        self.decisions += 10
        self.during.get(self.iteration, lambda: None)()
        figures = {"iteration": float(self.iteration), "kl": 0.01 * self.iteration}
        if self.iteration % self.config.validation.every == 0:
            figures["validation"] = self.validate()
        return figures

    def validate(self) -> float:
        return VALIDATIONS[self.iteration]

    def weights(self) -> Any:
        return self.network.state_dict()

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)


def config_of(**training: Any) -> DecimaTraining:
    values = {
        "training": {"iterations": 10, **training},
        "validation": {"every": 4, "sequences": 5},
        "checkpoints": {"every": 3, "last": 2},
    }
    return build_settings(DecimaTraining, values)


def train(folder: Path, trainer: Any) -> tuple[Outcome, RunFolder]:
    if folder.exists():
        where = RunFolder.open(folder)
    else:
        where = RunFolder.create(folder, trainer.config, {"system": "decima", "command": "..."})
    shown: list[Progress] = []
    outcome = run(trainer, where, [CsvTracker(where)], shown.append)
    assert shown[-1] is outcome.progress
    assert outcome.progress.ended
    return outcome, where


def validated(folder: RunFolder) -> dict[int, float]:
    return {int(r["iteration"]): r["validation"] for r in folder.rows() if "validation" in r}


def checkpoints(folder: RunFolder) -> list[int]:
    return [int(path.name.removeprefix("iteration-")) for path in folder.checkpoints()]


def test_whole_run(tmp_path: Path) -> None:
    outcome, folder = train(tmp_path / "run", FakeTrainer(config_of(), {}))
    assert not outcome.interrupted
    assert [row["iteration"] for row in folder.rows()] == list(range(11))
    assert validated(folder) == REPORTED
    assert outcome.progress.best == (4, 70.0)
    assert outcome.progress.best_baseline == ("fair", 90.0)
    assert checkpoints(folder) == [9, 10]
    best, last = (load_bundle(folder.path / which) for which in ("best", "last"))
    assert (best.trained["iterations"], last.trained["iterations"]) == (4, 10)
    assert best.results["validation"] == 70.0
    assert best.results["best_baseline"] == "fair"
    assert (best.name, best.system) == ("run", "decima")
    assert folder.manifest["status"] == "finished"
    assert folder.manifest["best"] == {"iteration": 4, "validation": 70.0}
    assert folder.manifest["decisions"] == 100


def test_manifest_has_metric_and_baselines_during_the_run(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    during = {1: lambda: seen.update(RunFolder.open(tmp_path / "run").manifest)}
    train(tmp_path / "run", FakeTrainer(config_of(iterations=1), during))
    assert (seen["metric"], seen["command"]) == ("jct_s", "...")
    assert seen["baselines"] == {"fair": 90.0, "fifo": 95.0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_request_finishes_the_iteration(number: int, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    during = {5: lambda: signal.raise_signal(number)}
    outcome, folder = train(tmp_path / "run", FakeTrainer(config_of(), during))
    assert outcome.interrupted
    assert (folder.rows()[-1]["iteration"], checkpoints(folder)) == (5, [3, 5])
    assert folder.manifest["status"] == "interrupted"
    assert load_bundle(folder.path / "last").trained["iterations"] == 5
    assert signal.getsignal(number) == before


def test_second_stop_request_ends_at_once(tmp_path: Path) -> None:
    twice = {5: lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)]}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", FakeTrainer(config_of(), twice))
    folder = RunFolder.open(tmp_path / "run")
    assert folder.rows()[-1]["iteration"] == 4
    assert checkpoints(folder) == [0, 3]  # where a resumed run starts


def test_stop_request_in_the_last_iteration_is_ignored(tmp_path: Path) -> None:
    during = {10: lambda: signal.raise_signal(signal.SIGINT)}
    outcome, folder = train(tmp_path / "run", FakeTrainer(config_of(), during))
    assert (outcome.interrupted, folder.manifest["status"]) == (False, "finished")


def test_stop_request_before_the_first_iteration_leaves_a_checkpoint(tmp_path: Path) -> None:
    trainer = FakeTrainer(config_of(), {})
    trainer.recipe.baselines = lambda config, seeds: signal.raise_signal(signal.SIGINT) or {}
    outcome, folder = train(tmp_path / "run", trainer)
    assert outcome.interrupted
    assert (validated(folder), checkpoints(folder)) == ({0: 100.0}, [0])
    assert "best_baseline" not in load_bundle(folder.path / "best").results


def test_time_limit_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = {8: lambda: monkeypatch.setattr(loop.time, "monotonic", lambda: 111.0)}
    monkeypatch.setattr(loop.time, "monotonic", lambda: 50.0)
    outcome, folder = train(tmp_path / "run", FakeTrainer(config_of(minutes=1), later))
    assert (outcome.interrupted, folder.manifest["status"]) == (False, "finished")
    assert folder.rows()[-1]["iteration"] == 8


def test_resumed_run_continues_its_curve(tmp_path: Path) -> None:
    train(tmp_path / "run", FakeTrainer(config_of(iterations=4), {}))
    again = FakeTrainer(config_of(), {})
    again.iteration, again.decisions = 4, 40
    outcome, folder = train(tmp_path / "run", again)
    assert outcome.progress.first_iteration == 4
    assert [row["iteration"] for row in folder.rows()] == list(range(11))
    assert validated(folder) == REPORTED
    assert load_bundle(folder.path / "best").trained["iterations"] == 4  # from before
