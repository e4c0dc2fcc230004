"""Sweep files: their settings, and errors that name file, line and key."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep

LoadSweep = Callable[..., Sweep]
SPACE = "space: {training.clip: {uniform: [0.1, 0.3]}}\n"  # line 4 of the file
HEADER = re.compile(
    r"# Purpose: .+\n(?:#  .+\n)*# Command: (loadmaster tune \S+).*\n# Cost:    .+\n"
)


def test_shipped_sweeps_are_valid(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    shipped = sorted((root / "tune_configs").rglob("*.yaml"))
    assert {"asha.yaml", "tiny.yaml"} <= {path.name for path in shipped}
    for path in shipped:
        sweep = load_sweep(path)
        header = HEADER.match(path.read_text())
        assert header, f"{path}: expected a header with purpose, command and cost"
        assert header[1] == f"loadmaster tune {path.relative_to(root)}"
        assert sweep.system.name == path.parent.name


@pytest.mark.parametrize("page", ["tune_configs/README.md", "docs/sweeps.md"])
def test_examples_in_docs_are_valid(page: str, root: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (root / page).read_text(), re.DOTALL)
    if "system:" not in example:
        example = f"system: decima\npurpose: An example\n{example}"
    (tmp_path / "example.yaml").write_text(example)
    assert load_sweep(tmp_path / "example.yaml").space.dimensions


def test_sweep_with_all_settings(load: LoadSweep) -> None:
    sweep = load("""
base:
  training: {epochs: 2}
  training.minibatches: 2
space:
  training:
    learning_rate.last: {loguniform: [1e-5, 1e-1]}
    gradient_clip: 0.7
  rollouts.per_sequence: {quniform: [2, 6, 2]}
  rollouts.keep: {quniform: [0.2, 1.0, 0.2]}
  rollouts.sequences: {randint: [1, 3]}
  training.entropy: {choice: [{first: 1, last: 0}, {last: 0.5}]}
metric: return_mean
mode: max
trials: 7
scheduler: {asha: {grace_iterations: 5}}
searcher: {random: {seed: 3}}
resources: {cpus_per_trial: 3, concurrent: 2}
stop: {iterations: 30, minutes: 2.5, validation_below: 1}
""")
    assert (sweep.name, sweep.iterations, sweep.settings.trials) == ("example-hill", 30, 7)
    assert sweep.needs == {"CPU": 3, "GPU": 0}
    drawn = {
        "training.learning_rate.last": 0.0123456,
        "rollouts.per_sequence": 4.0,
        "rollouts.keep": 0.6000000000000001,
        "rollouts.sequences": 3,
        "training.entropy": {"last": 0.5},
    }
    config = sweep.space.config(drawn)
    rate, rollouts = config.training.learning_rate, config.rollouts
    assert (rate.first, rate.last) == (1e-3, 0.01235)  # a default: only `last` was searched
    assert config.training.entropy.iterations == 60
    assert (rollouts.keep, rollouts.per_sequence) == (0.6, 4)
    assert (config.training.epochs, config.training.gradient_clip) == (2, 0.7)


def test_choice_of_several_settings_of_a_group(load: LoadSweep) -> None:
    groups = "{choice: [{sequences: 8, per_sequence: 2}, {sequences: 2}]}"
    space = load(
        f"base: {{rollouts.workers: 0}}\nspace:\n  rollouts: {groups}\n"
        "  rollouts.keep: {uniform: [0.5, 1]}\n"
    ).space
    assert {dimension.name for dimension in space.dimensions} == {"rollouts", "rollouts.keep"}
    for drawn, expected in zip(space.dimensions[0].arguments, [(8, 2), (2, 4)], strict=True):
        found = space.config({"rollouts": drawn, "rollouts.keep": 0.7}).rollouts
        assert (found.workers, found.keep) == (0, 0.7)
        assert (found.sequences, found.per_sequence) == expected


@pytest.mark.parametrize("word", ["none", "fifo", "null"])
def test_scheduler_none(word: str, load: LoadSweep) -> None:
    scheduler = load(f"{SPACE}scheduler: {word}").settings.scheduler
    assert scheduler.asha is scheduler.pbt is None


def test_drawn_values_are_clipped_and_rounded(load: LoadSweep) -> None:
    space = load("space: {training.clip: {uniform: [0.123456, 0.99999]}}").space
    settled = [space.settle({"training.clip": drawn}) for drawn in (0.1, 0.123456, 0.5555555, 2.0)]
    assert [value["training.clip"] for value in settled] == [0.1235, 0.1235, 0.5556, 0.99999]


def test_assignments_override_the_file(load: LoadSweep) -> None:
    sweep = load(
        "base: {training.epochs: 2}\n"
        "space: {training.clip: {uniform: [0.1, 0.3]}, training.minibatches: {randint: [1, 4]}}\n",
        ["training.epochs=5", "training.minibatches=2"],
        trials=3,
    )
    assert [dimension.name for dimension in sweep.space.dimensions] == ["training.clip"]
    config = sweep.space.config({"training.clip": 0.2})
    assert (config.training.epochs, config.training.minibatches) == (5, 2)
    assert sweep.settings.trials == 3


ASHA, PBT = "scheduler:\n  asha: ", "scheduler: {pbt: {every_iterations: 10}}"
# fmt: off
FAULTS = [  # a file; line, key and a word of the error
    (SPACE + "trails: 3", 5, "trails", "did you mean 'trials'"),
    (SPACE + "stop:\n  iteration: 3", 6, "stop.iteration", "did you mean 'iterations'"),
    ("trials: 3", 1, "space", "missing"),
    (SPACE + "trials: many", 5, "trials", "valid integer"),
    ('system: example\npurpose: "  "\n' + SPACE, 2, "purpose", "one line"),
    ("purpose: x\nsystem: exampel\n" + SPACE, 2, "system", "did you mean 'example'"),
    (SPACE + ASHA + "{grace_iterations: 9}\n  pbt: {every_iterations: 9}",
     5, "scheduler", "asha and pbt; expected one"),
    (SPACE + "scheduler: {asher: {}}", 5, "scheduler.asher", "'asha'"),
    (SPACE + "searcher: optima", 5, "searcher", "valid dictionary"),
    (SPACE + ASHA + "{}", 6, "scheduler.asha.grace_iterations", "missing"),
    ("space:\n  training:\n    lr: {uniform: [1, 2]}", 6, "training.lr", "expected one of: "),
    (SPACE + "base:\n  environment:\n\n    strat: 3", 8, "environment.strat", "mean 'start'"),
    (SPACE + "base:\n  rollouts.keep: 1.5", 6, "rollouts.keep", "less than"),
    (SPACE + "base:\n  environment.gait: walk\n  environment.speed: 3",
     6, "environment.gait", "walk"),
    (SPACE + "base:\n  environment:\n    name: steep", 6, "base.environment", "unknown hill"),
    ("space:\n  environment.name: {choice: [gentle, steep]}",
     5, "environment.name", "may become steep: unknown hill"),
    ("space:\n  training.learning_rate: {uniform: [1, 2]}",
     5, "training.learning_rate", "is a group of settings"),
    (SPACE + "base:\n  training.epochs: {randint: [1, 2]}", 6, "training.epochs", "under space"),
    ("space:\n  training.epochs: {randint: [1, 2.5]}", 5, "training.epochs", "whole numbers"),
    ("space:\n  rollouts.keep: {quniform: [0.2, 1, 0.3]}", 5, "rollouts.keep", "multiples"),
    ("space:\n  training.epochs: {uniform: [1, 4]}", 5, "training.epochs", "randint or choice"),
    ("space:\n  environment.gait: {choice: [run, walk]}\n  environment.speed: {randint: [1, 3]}",
     6, "environment.speed", "while environment.gait is walk"),
    ("space: {training.epochs: 3}", 4, "space", "nothing to search"),
    (SPACE + "base:\n  training: {clip: 0.2}", 4, "training.clip", "is set as well"),
    ("base:\n  training.entropy.last: 0.1\nspace:\n  training.entropy: {choice: [{last: 1}]}",
     7, "training.entropy", "training.entropy.last is set as well"),
    (SPACE + "base:\n  training.epochs: 3\n  training:\n    epochs: 4",
     8, "base.training.epochs", "given twice, first on line 6"),
    (SPACE + "stop: {iterations: 5}", 5, "stop.iterations", "before the first validation"),
    (SPACE + "stop: {iterations: 25}", 5, "stop.iterations", "no multiple"),
    (SPACE + ASHA + "\n    grace_iterations: 5",
     7, "scheduler.asha.grace_iterations", "expected 10"),
    (SPACE + ASHA + "{grace_iterations: 20, max_iterations: 40}\nstop: {iterations: 30}",
     6, "scheduler.asha.max_iterations", "beyond stop.iterations"),
    ("space:\n  network.size: {randint: [1, 9]}\n" + PBT, 5, "network.size", "copies weights"),
    (SPACE + PBT + "\nsearcher: optuna", 6, "searcher", "pbt draws by itself"),
    (SPACE + "resources: {cpus_per_trial: 2}",
     5, "resources.cpus_per_trial", "too few for a learner and 2 rollout workers"),
    ("space: {rollouts: {choice: [{workers: 1}, {workers: 5}]}}\nresources: {cpus_per_trial: 2}",
     5, "resources.cpus_per_trial", "5 rollout workers"),
    (SPACE + "resources: {gpus_per_trial: 1}",
     5, "resources.gpus_per_trial", "resources.gpus in base"),
]
# fmt: on
DISTRIBUTIONS = {  # of one setting
    "{loguniforn: [1, 2]}": "did you mean 'loguniform'",
    "{uniform: [1, 2], choice: [3]}": "expected a value, or one of",
    "{uniform: 3}": "takes a list",
    "{choice: []}": "takes a list",
    "{uniform: [3]}": "takes [a, b]",
    "{uniform: [low, 1]}": "takes numbers",
    "{uniform: [1, .inf]}": "numbers",
    "{uniform: [3, 1]}": "is empty",
    "{loguniform: [0, 1]}": "more than 0",
    "{uniform: [0, 1]}": "may become 0: Input should be greater than 0",
}
FAULTS += [
    (f"space:\n  training.clip: {drawn}", 5, "training.clip", message)
    for drawn, message in DISTRIBUTIONS.items()
]


@pytest.mark.parametrize(("text", "line", "key", "message"), FAULTS)
def test_errors_name_file_line_and_key(
    text: str, line: int, key: str, message: str, load: LoadSweep, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        load(text)
    complaint = str(caught.value)
    assert "\n" not in complaint
    assert complaint.startswith(f"{tmp_path}/hill.yaml:{line}: {key}: "), complaint
    assert message in complaint, complaint


def test_optuna_not_installed(load: LoadSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"hill.yaml:5: searcher: .* 'loadmaster\[optuna\]'"):
        load(SPACE + "searcher: {optuna: {seed: 4}}")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.epoch=3", "--set training.epoch: unknown setting of training 'epoch'"),
        ("rollouts.keep=2", "--set rollouts.keep: "),
        ("training.clip={uniform: [1, 2]}", "--set training.clip: "),
    ],
)
def test_invalid_assignments(assignment: str, message: str, load: LoadSweep) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load("space: {training.minibatches: {randint: [1, 3]}}", [assignment])
