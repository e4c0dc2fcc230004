"""Sweep files, errors that name file, line and key; and one trial without Ray."""

import importlib.util
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint

from loadmaster.envs.errors import InputError
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.sweeps.trial import Trial
from loadmaster.platform.systems.bundle_ref import find_policy
from tests.platform.sweeps.example_system import TRAINER

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
base: {training.epochs: 2}
space:
  training: {learning_rate.last: {loguniform: [1e-5, 1e-1]}, gradient_clip: 0.7}
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


VARIANTS = """
base: {training.epochs: 2}
variants:
  plain: {}
  large: {training: {epochs: 5, clip: 0.3}, network.size: 20}
space: {seed: {choice: [4, 5, 6]}}
"""


def test_a_grid_has_every_combination_of_variants_and_choices(load: LoadSweep) -> None:
    sweep = load(f"{VARIANTS}searcher: grid")
    assert [dimension.name for dimension in sweep.space.dimensions] == ["variant", "seed"]
    assert sweep.settings.trials == 6
    assert load(f"{VARIANTS}searcher: grid\ntrials: 6", trials=6).settings.trials == 6
    with pytest.raises(InputError, match="--trials is 5"):
        load(f"{VARIANTS}searcher: grid", trials=5)
    fixed = load(f"{VARIANTS}searcher: grid", ["seed=9"])
    assert (fixed.settings.trials, fixed.space.config({"variant": "plain"}).seed) == (2, 9)


def test_variants_set_several_settings_over_base(load: LoadSweep) -> None:
    space = load(VARIANTS).space
    plain, large = (space.config({"variant": name, "seed": 4}) for name in ("plain", "large"))
    assert (plain.training.epochs, plain.training.clip, plain.network.size) == (2, 0.2, 8)
    assert (large.training.epochs, large.training.clip, large.network.size) == (5, 0.3, 20)
    assert (plain.seed, large.seed) == (4, 4)
    with pytest.raises(InputError, match=r"set by a variant and by .*, at --set"):
        load(VARIANTS, ["network.size=3"])


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


BASE = SPACE + "base:\n  "
ASHA, PBT = "scheduler:\n  asha: ", "scheduler: {pbt: {every_iterations: 10}}"
# fmt: off
FAULTS = [  # a file; line, key and a word of the error
    (SPACE + "stop:\n  iteration: 3", 6, "stop.iteration", "did you mean 'iterations'"),
    ("trials: 3", 1, "space", "nothing to search"),
    (SPACE + "trials: many", 5, "trials", "valid integer"),
    ('system: example\npurpose: "  "\n' + SPACE, 2, "purpose", "one line"),
    ("purpose: x\nsystem: exampel\n" + SPACE, 2, "system", "did you mean 'example'"),
    (SPACE + ASHA + "{grace_iterations: 9}\n  pbt: {every_iterations: 9}",
     5, "scheduler", "asha and pbt; expected one"),
    (SPACE + "searcher: optima", 5, "searcher", "valid dictionary"),
    (SPACE + ASHA + "{}", 6, "scheduler.asha.grace_iterations", "missing"),
    ("space:\n  training:\n    lr: {uniform: [1, 2]}", 6, "training.lr", "expected one of: "),
    (BASE + "environment:\n\n    strat: 3", 8, "environment.strat", "mean 'start'"),
    (BASE + "rollouts.keep: 1.5", 6, "rollouts.keep", "less than"),
    (BASE + "environment.gait: walk\n  environment.speed: 3", 6, "environment.gait", "walk"),
    (BASE + "environment:\n    name: steep", 6, "base.environment", "unknown hill"),
    ("space:\n  environment.name: {choice: [gentle, steep]}", 5, "environment.name", "steep: unk"),
    ("space:\n  training.learning_rate: {uniform: [1, 2]}", 5, "training.learning_rate", "group"),
    (BASE + "training.epochs: {randint: [1, 2]}", 6, "training.epochs", "under space"),
    ("space:\n  training.epochs: {randint: [1, 2.5]}", 5, "training.epochs", "whole numbers"),
    ("space:\n  rollouts.keep: {quniform: [0.2, 1, 0.3]}", 5, "rollouts.keep", "multiples"),
    ("space:\n  training.epochs: {uniform: [1, 4]}", 5, "training.epochs", "randint or choice"),
    ("space:\n  environment.gait: {choice: [run, walk]}\n  environment.speed: {randint: [1, 3]}",
     6, "environment.speed", "while environment.gait is walk"),
    ("space: {training.epochs: 3}", 4, "space", "nothing to search"),
    (BASE + "training: {clip: 0.2}", 4, "training.clip", "is set as well"),
    ("base:\n  training.entropy.last: 0.1\nspace:\n  training.entropy: {choice: [{last: 1}]}",
     7, "training.entropy", "training.entropy.last is set as well"),
    (BASE + "training.epochs: 3\n  training:\n    epochs: 4", 8, "base.training.epochs", "line 6"),
    (SPACE + "stop: {iterations: 5}", 5, "stop.iterations", "before the first validation"),
    (SPACE + "stop: {iterations: 25}", 5, "stop.iterations", "no multiple"),
    (SPACE + ASHA + "\n    grace_iterations: 5", 7, "scheduler.asha.grace_iterations", "10"),
    (SPACE + ASHA + "{grace_iterations: 20, max_iterations: 40}\nstop: {iterations: 30}",
     6, "scheduler.asha.max_iterations", "beyond stop.iterations"),
    ("space:\n  network.size: {randint: [1, 9]}\n" + PBT, 5, "network.size", "copies weights"),
    (SPACE + PBT + "\nsearcher: optuna", 6, "searcher", "pbt draws by itself"),
    (SPACE + "resources: {cpus_per_trial: 2}", 5, "resources.cpus_per_trial", "2 workers and"),
    ("space: {rollouts: {choice: [{workers: 1}, {workers: 5}]}}\nresources: {cpus_per_trial: 2}",
     5, "resources.cpus_per_trial", "5 workers and"),
    (SPACE + "resources: {gpus_per_trial: 1}", 5, "resources.gpus_per_trial", "gpus in base"),
    ("variants:\n  a: {}\n  b: {training.epoch: 2}", 6, "training.epoch", "mean 'epochs'"),
    ("variants:\n  a: 3", 5, "variants.a", "valid dictionary"),
    ("variants:\n  a: {rollouts.keep: 2}", 4, "variant", "may become a: "),
    ("variants:\n  a: {training.clip: {uniform: [1, 2]}}", 5, "training.clip", "expected a value"),
    (SPACE + "variants:\n  a: {training.clip: 0.2}", 6, "training.clip", "set by a variant and by"),
    ("variants:\n  a: {environment.name: steep}", 4, "variant", "a: unknown hill"),
    ("variants:\n  a: {network.size: 9}\n" + PBT, 4, "variant", "copies weights"),
    (SPACE + "searcher: grid", 4, "training.clip", "a grid has no uniform"),
    ("space: {seed: {choice: [0, 1]}}\nsearcher: grid\ntrials: 3", 6, "trials", "2 combinations"),
    ("space: {seed: {choice: [0, 1]}}\nsearcher: grid\n" + PBT, 5, "searcher", "draws by itself"),
]
# fmt: on
DISTRIBUTIONS = {  # of one setting
    "{loguniforn: [1, 2]}": "did you mean 'loguniform'",
    "{uniform: [1, 2], choice: [3]}": "expected a value, or one of",
    "{uniform: 3}": "takes a list",
    "{choice: []}": "takes a list",
    "{uniform: [3]}": "takes [a, b]",
    "{uniform: [low, 1]}": "takes numbers",
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


RATE = "training.learning_rate.last"
CHOICE = f"space: {{{RATE}: {{choice: [0.1, 0.2, 300]}}}}\n"
MakeTrial = Callable[..., Any]


@pytest.fixture
def make_trial(load: LoadSweep) -> MakeTrial:
    """Makes a trial of a sweep file, at a learning rate."""

    def make(rest: str, rate: float = 0.1) -> Any:
        class Local(Trial):
            def setup(self, config: dict[str, Any]) -> None:
                super().setup(config, load(CHOICE + rest), {}, TRAINER)

        return Local({RATE: rate})

    return make


@pytest.mark.parametrize(
    ("metric", "iterations"), [("", [4, 8, 12]), ("metric: return_mean\nmode: max", [1, 2, 3])]
)
def test_reports_come_with_the_metric(metric: str, iterations: Any, make_trial: MakeTrial) -> None:
    running = make_trial(f"base: {{validation.every: 4}}\n{metric}")
    assert [running.step()["iteration"] for _ in range(3)] == iterations


def test_unknown_metric_is_an_error(make_trial: MakeTrial) -> None:
    with pytest.raises(InputError, match=r"'retrun_mean'.* return_mean"):
        make_trial("metric: retrun_mean").step()


def test_divergence_reports_the_worst_value(make_trial: MakeTrial) -> None:
    report = make_trial("base: {validation.every: 5}", rate=300).step()
    assert (report["validation"], report["done"]) == (math.inf, True)


def test_reset_config_starts_another_trial(make_trial: MakeTrial) -> None:
    running = make_trial("base: {validation.every: 1}")
    running.step()
    assert running.reset_config({RATE: 0.2})
    assert running.step()["validation"] == pytest.approx(10 * (1 - 2 * 0.2))


def test_checkpoints_have_the_policy_unless_it_diverged(
    make_trial: MakeTrial, tmp_path: Path
) -> None:
    for rate, kept in ((0.1, True), (300, False)):
        running, folder = make_trial("base: {validation.every: 5}", rate), tmp_path / str(rate)
        folder.mkdir()
        running.step()
        running.save_checkpoint(str(folder))
        assert (folder / "policy" / "manifest.json").exists() == kept
        if kept:
            assert find_policy(str(folder / "policy")).manifest.trained["searched"] == {RATE: rate}


def test_restore_falls_back_to_the_oldest_checkpoint(make_trial: MakeTrial, tmp_path: Path) -> None:
    running = make_trial("base: {validation.every: 1}")
    for number in (7, 8, 9):
        running.step()
        (tmp_path / f"checkpoint_{number:06d}").mkdir()
        running.save_checkpoint(str(tmp_path / f"checkpoint_{number:06d}"))
    for on_record, expected in ((8, 3), (9, 4), (5, 2)):
        path = tmp_path / f"checkpoint_{on_record:06d}"
        back = make_trial("base: {validation.every: 1}")
        back.restore(_TrainingResult(checkpoint=Checkpoint(str(path)), metrics={}))
        assert back.step()["iteration"] == expected


@pytest.mark.parametrize(
    ("workers", "resources", "expected"),
    [
        ("0", "", [{"CPU": 1}]),
        ("2", "", [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}]),
        ("1", "cpus_per_trial: 2.5", [{"CPU": 1.5}, {"CPU": 1}]),
        ("0, resources.gpus: 1", "gpus_per_trial: 0.5", [{"CPU": 1}, {"GPU": 0.5}]),
        ("0, resources: {gpus: 1, gpu_share: 0.25}", "", [{"CPU": 1}, {"GPU": 0.25}]),
        ("0, resources.gpus: 2", "", [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}]),
        ("0, resources.learners: 1", "cpus_per_trial: 3", [{"CPU": 2}, {"CPU": 1}]),
    ],
)
def test_reserved_resources(workers: str, resources: str, expected: Any, load: LoadSweep) -> None:
    base = f"base: {{rollouts.workers: {workers}}}\nresources: {{{resources}}}"
    sweep = load(CHOICE + base)
    assert sweep.bundles({RATE: 0.1}) == expected
    total = {kind: sum(each.get(kind, 0) for each in expected) for kind in ("CPU", "GPU")}
    assert (sweep.needs["CPU"], sweep.needs["GPU"] >= total["GPU"]) == (total["CPU"], True)


def test_learners_share_the_gpu_of_a_trial(load: LoadSweep) -> None:
    base = "base: {resources.gpus: 2, rollouts.workers: 0}\nresources: {gpus_per_trial: 0.5}"
    resources = load(CHOICE + base).config({RATE: 0.1}).resources
    assert (resources.learners, resources.gpu_share) == (2, 0.25)
    with_learners = load(CHOICE + "base: {resources.learners: 1}").config({RATE: 0.1})
    assert with_learners.resources.gpu_share == 1
