"""The training loop with a fake trainer, and its progress on the console."""

import io
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from loadmaster.envs.metrics import Measure
from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import build_network, load_bundle
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training import display, loop
from loadmaster.platform.training.display import Progress, line
from loadmaster.platform.training.loop import Outcome, run
from loadmaster.platform.training.run_folder import RunFolder
from loadmaster.platform.training.tracking import CsvTracker
from loadmaster.platform.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("here")
JCT_S = Measure("jct_s", "mean JCT", "s")
VALIDATIONS = {0: 100.0, 1: 90.0, 4: 70.0, 8: 80.0, 10: 75.0}
REPORTED = {0: 100.0, 4: 70.0, 8: 80.0, 10: 75.0}  # untrained, every fourth, and at the end


class FakeTrainer:
    """Returns VALIDATIONS, and calls `during[i]` in iteration i."""

    save_policy: Any = Trainer.save_policy

    def __init__(self, during: dict[int, Callable[[], Any]], **training: Any) -> None:
        values = {
            "training": {"iterations": 10, **training},
            "validation": {"every": 4, "sequences": 5},
            "checkpoints": {"every": 3, "last": 2},
        }
        self.config, self.during = build_settings(DecimaTraining, values), during
        self.iteration, self.decisions = 0, 0
        self.validation_seeds = range(5)
        self.network = build_network("decima", {})
        self.recipe: Any = SimpleNamespace(
            system="decima",
            metric=lambda config: JCT_S,
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


def train(trainer: Any) -> tuple[Outcome, RunFolder]:
    where = RunFolder(Path("run"))
    if not where.path.exists():
        RunFolder.create(where.path, trainer.config, {"system": "decima", "command": "..."})
    shown: list[Progress] = []
    outcome = run(trainer, where, [CsvTracker(where)], shown.append)
    assert shown[-1] is outcome.progress
    assert outcome.progress.ended
    return outcome, where


def validated(folder: RunFolder) -> dict[int, float]:
    return {int(r["iteration"]): r["validation"] for r in folder.rows() if "validation" in r}


def checkpoints(folder: RunFolder) -> list[int]:
    return [int(path.name.removeprefix("iteration-")) for path in folder.checkpoints()]


def test_whole_run() -> None:
    outcome, folder = train(FakeTrainer({}))
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


def test_manifest_has_metric_and_baselines_during_the_run() -> None:
    seen: dict[str, Any] = {}
    during = {1: lambda: seen.update(RunFolder(Path("run")).manifest)}
    train(FakeTrainer(during, iterations=1))
    assert (seen["metric"], seen["command"]) == ("jct_s", "...")
    assert seen["baselines"] == {"fair": 90.0, "fifo": 95.0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_request_finishes_the_iteration(number: int) -> None:
    before = signal.getsignal(number)
    during = {5: lambda: signal.raise_signal(number)}
    outcome, folder = train(FakeTrainer(during))
    assert outcome.interrupted
    assert (folder.rows()[-1]["iteration"], checkpoints(folder)) == (5, [3, 5])
    assert folder.manifest["status"] == "interrupted"
    assert load_bundle(folder.path / "last").trained["iterations"] == 5
    assert signal.getsignal(number) == before


def test_second_stop_request_ends_at_once() -> None:
    twice = {5: lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)]}
    with pytest.raises(KeyboardInterrupt):
        train(FakeTrainer(twice))
    folder = RunFolder(Path("run"))
    assert folder.rows()[-1]["iteration"] == 4
    assert checkpoints(folder) == [0, 3]  # where a resumed run starts


def test_stop_request_in_the_last_iteration_is_ignored() -> None:
    during = {10: lambda: signal.raise_signal(signal.SIGINT)}
    outcome, folder = train(FakeTrainer(during))
    assert (outcome.interrupted, folder.manifest["status"]) == (False, "finished")


def test_stop_request_before_the_first_iteration_leaves_a_checkpoint() -> None:
    trainer = FakeTrainer({})
    trainer.recipe.baselines = lambda config, seeds: signal.raise_signal(signal.SIGINT) or {}
    outcome, folder = train(trainer)
    assert outcome.interrupted
    assert (validated(folder), checkpoints(folder)) == ({0: 100.0}, [0])
    assert "best_baseline" not in load_bundle(folder.path / "best").results


def test_time_limit_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {8: lambda: monkeypatch.setattr(loop.time, "monotonic", lambda: 111.0)}
    monkeypatch.setattr(loop.time, "monotonic", lambda: 50.0)
    outcome, folder = train(FakeTrainer(later, minutes=1))
    assert (outcome.interrupted, folder.manifest["status"]) == (False, "finished")
    assert folder.rows()[-1]["iteration"] == 8


def test_resumed_run_continues_its_curve() -> None:
    train(FakeTrainer({}, iterations=4))
    again = FakeTrainer({})
    again.iteration, again.decisions = 4, 40
    outcome, folder = train(again)
    assert outcome.progress.first_iteration == 4
    assert [row["iteration"] for row in folder.rows()] == list(range(11))
    assert validated(folder) == REPORTED
    assert load_bundle(folder.path / "best").trained["iterations"] == 4  # from before


# fmt: off
FIGURES = {
    "iteration": 30.0, "decisions_per_s": 12345.6, "decisions_in_all": 400_000.0,
    "return_mean": -1234.5, "return_spread": 99.4, "entropy": 1.234, "workers": 2.0,
    "rollout_seconds": 0.5, "update_seconds": 0.25,
}
# fmt: on
SEARCH = {"iteration": 30.0, "decisions_per_s": 10.0, "cost_mean": 70.0, "cost_best": 60.0}


OFF_POLICY = {
    **{name: value for name, value in FIGURES.items() if name != "entropy"},
    "q_mean": -61.234,
    "noise": 0.1987,
}


def progress(**changed: Any) -> Progress:
    """Thirty iterations of 100 done in sixty seconds."""
    values: dict[str, Any] = {
        "metric": JCT_S, "iterations": 100, "began": 1000.0, "updated": 1060.0, "workers": 2,
        "baselines": {"fifo": 200.0, "fair": 80.0}, "figures": dict(FIGURES),
        "curve": [(0, 160.0), (10, 100.0), (20, 60.0)],
    }  # fmt: skip
    return Progress(**{**values, **changed})


def drawn(shown: Progress, now: float) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(display.panel(shown, "training decima in runs/[one]", now))
    return file.getvalue()


START = {"iteration": 0.0}
SPEED = "12,346 decisions/s  return -1,234 ±99"
RETURN = f"{SPEED}  entropy 1.23"
JCT = "mean JCT 60.0 s (fair 80.0, -25.0%)"
REWARD = Measure("reward", "reward", "", better="higher", relative=False)
CURVE = [(0, -0.4), (10, 0.1), (20, 0.01)]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, f"30/100  {RETURN}  {JCT}  2:20 left"),
        (
            {"figures": OFF_POLICY},
            f"30/100  {SPEED}  q_mean -61.23  noise 0.20  {JCT}  2:20 left",
        ),
        ({"figures": START, "curve": []}, "0/100"),
        ({"figures": START, "curve": [(0, 160.0)]}, "0/100  mean JCT 160.0 s (fair 80.0, +100.0%)"),
        (
            {"figures": SEARCH, "metric": Measure("cost", "cost", ""), "baselines": {}},
            "30/100  10 decisions/s  candidates 70.0, best 60.0  cost 60.0  2:20 left",
        ),
        (
            {"metric": REWARD, "curve": CURVE, "baselines": {"hpa": -0.05, "static": -0.2}},
            f"30/100  {RETURN}  reward 0.010 (hpa -0.050, +0.060)  2:20 left",
        ),
    ],
)
def test_line(changed: dict[str, Any], expected: str) -> None:
    assert line(progress(**changed), 1060.0) == f"iteration {expected}"


def test_higher_values_are_better_where_the_metric_says_so() -> None:
    shown = progress(metric=REWARD, curve=CURVE)
    assert shown.best == (10, 0.1)
    assert "▁█▇  -0.400 to 0.100" in drawn(shown, 1060.0)


@pytest.mark.parametrize(
    ("now", "changed", "expected"),
    [
        (1070.0, {}, "2:10 left"),  # counts down during an iteration
        (1060.0, {"first_iteration": 20}, "7:00 left"),  # ten done in this session
        (1060.0, {"ends": 1100.0}, "0:40 left"),  # the time limit comes first
        (9999.0, {"ends": 1100.0}, "0:00 left"),
        (1060.0, {"stopping": True}, "stopping after this iteration (Ctrl-C again: at once)"),
        (1075.0, {"stopping": True, "ended": True}, "1:15 in all"),
        (1075.0, {"iterations": 30}, "1:15 in all"),
    ],
)
def test_time_left(now: float, changed: dict[str, Any], expected: str) -> None:
    assert display.time_left(progress(**changed), now) == expected


def test_panel_has_fixed_width() -> None:
    shown = drawn(progress(), 1060.0)
    assert {len(row) for row in shown.splitlines()} == {76}
    speed = ("0.50 s rolling out and 0.25 s learning", "12,346 decisions/s, 400,000 in all")
    title = "training decima in runs/[one]"  # brackets are not markup
    for part in (title, *speed, "-1,234 ±99", JCT, "█▄▁  160.0 to 60.0", "2:20 left"):
        assert part in shown


def test_panel_at_the_start_with_a_missing_worker_and_of_a_search() -> None:
    empty = drawn(progress(figures={}, curve=[], baselines={}), 1000.0)
    assert "0 of 100" in empty
    assert "starting" in empty
    short = progress(figures={**FIGURES, "workers": 1.0})
    assert "1 of 2 workers" in drawn(short, 1060.0)
    assert "1 of 2 workers" in line(short, 1060.0)
    assert "70.0 in the mean, 60.0 at best" in drawn(progress(figures=SEARCH), 1060.0)


def test_sparkline_and_clock() -> None:
    assert display.sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert display.sparkline([5, 5, 5]) == "▁▁▁"
    assert display.sparkline(list(range(1000)), width=8) == "▁▂▃▄▅▆▇█"
    shown = [display.clock(seconds) for seconds in (0, 59.4, 59.6, 3600, 86_461)]
    assert shown == ["0:00", "0:59", "1:00", "1:00:00", "24:01:01"]


def test_without_a_terminal_a_line_per_validation() -> None:
    file = io.StringIO()
    shown = progress(figures={"iteration": 0.0}, curve=[(0, 160.0)])
    with display.display(Console(file=file, width=80), "training") as show:
        show(shown)
        for iteration in range(1, 31):
            shown.figures = {**FIGURES, "iteration": float(iteration)}
            if iteration % 10 == 0:
                shown.curve.append((iteration, 100.0))
            show(shown)
    iterations = [text.split()[1] for text in file.getvalue().splitlines()]
    assert iterations == ["0/100", "10/100", "20/100", "30/100"]


def test_on_a_terminal_the_last_panel_remains() -> None:
    file = io.StringIO()
    with display.display(Console(file=file, width=80, force_terminal=True), "training") as show:
        show(progress())
        show(progress(ended=True))
    assert "in all" in file.getvalue()
