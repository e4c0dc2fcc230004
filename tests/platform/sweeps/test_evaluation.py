"""`loadmaster evaluate --sweep`: policies of trials, groups, intervals, tables and charts."""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Metric
from loadmaster.envs.settings import Settings, build_settings
from loadmaster.platform.evaluation.adapters import EnvironmentAdapter, EvaluationSetup
from loadmaster.platform.evaluation.statistics import crossed_mean
from loadmaster.platform.sweeps import evaluation
from loadmaster.platform.sweeps.evaluation import SweepEvaluation, evaluate_trials, policies_of
from loadmaster.platform.sweeps.evaluation_charts import draw_all
from loadmaster.platform.sweeps.evaluation_files import episode_rows, result_table, summary_rows
from loadmaster.platform.sweeps.folder import SweepFolder
from loadmaster.platform.sweeps.settings import Sweep
from tests.platform.cli.one_line import Cli, Patch

LoadSweep = Callable[[str], Sweep]

VARIANTS = """
variants: {plain: {}, fast: {environment.speed: 3}, large: {network.size: 20}}
space: {seed: {choice: [0, 1]}}
searcher: grid
"""


class Slope(Settings):
    speed: int = 1
    start: float = 10.0


class Walk(NamedTuple):
    reward: float
    speed: int


class Walker:
    """Its reward is that of its folder's manifest, less a part of the episode's seed."""

    def __init__(self, quality: float) -> None:
        self.quality = quality

    def run(self, settings: Slope, seed: int, workload: Any) -> Walk:
        return Walk(self.quality - 0.5 * seed, settings.speed)

    def decision_s(self, settings: Slope, seed: int, workload: Any, count: int) -> float:
        return 1e-3 * self.quality

    def is_compiled(self) -> bool:
        return True


def prepare(settings: Slope) -> EvaluationSetup:
    metrics = (
        Metric(
            "reward", "reward", "", lambda result: result.reward, better="higher", relative=False
        ),
        Metric("speed", "speed", "m/s", lambda result: result.speed),
    )
    conditions = f"from {settings.start:g}"
    return EvaluationSetup(
        settings, "slope", conditions, metrics, run=lambda rule, seed: Walk(1, 4)
    )


SLOPE = EnvironmentAdapter(
    environment="dag_scheduling",
    baselines=(),
    settings=lambda values: build_settings(Slope, values),
    folder_name=lambda settings: "slope",
    prepare=prepare,
)


def fake_bundle(spec: str) -> Any:
    """What a file that stands for a bundle holds: the searched settings and the quality."""
    record = json.loads((Path(spec) / "manifest.json").read_text())
    return SimpleNamespace(
        folder=Path(spec),
        manifest=SimpleNamespace(trained={"searched": record["searched"]}),
        policy=Walker(record["quality"]),
    )


@pytest.fixture(autouse=True)
def slope(monkeypatch: Patch, example: None, here: Path) -> None:
    monkeypatch.setattr(evaluation, "find_adapter", lambda name: SLOPE)
    monkeypatch.setattr(evaluation, "find_policy", fake_bundle)


def save_trial(
    folder: Path, number: int, quality: float, *checkpoints: int, **searched: Any
) -> None:
    """A trial's folder; earlier checkpoints hold worse policies."""
    for place, checkpoint in enumerate(checkpoints or (1,)):
        last = place == max(0, len(checkpoints) - 1)
        own = folder / "tune" / f"trial-{number:03d}" / f"checkpoint_{checkpoint:06d}" / "policy"
        own.mkdir(parents=True)
        record = {"searched": searched, "quality": quality if last else -100.0}
        (own / "manifest.json").write_text(json.dumps(record))


def evaluated(
    sweep: Sweep,
    given: Mapping[str, Any] | None = None,
    seeds: int = 4,
    rule: str | None = None,
) -> SweepEvaluation:
    policies = policies_of(SweepFolder(Path("out"), {}), sweep, given or {})
    return evaluate_trials(sweep, policies, range(seeds), 1, rule=rule)


@pytest.fixture
def grid(load: LoadSweep) -> Sweep:
    """A grid whose trials ended, with one more trial that failed."""
    sweep = load(VARIANTS)
    SweepFolder.create(Path("out"), sweep, {})
    qualities = {"large": (1.0, 2.0), "plain": (3.0, 5.0), "fast": (4.0, 4.0)}
    number = 0
    for variant, own in qualities.items():
        for seed, quality in enumerate(own):
            number += 1
            save_trial(Path("out"), number, quality, 1, 2, variant=variant, seed=seed)
    (Path("out") / "tune" / "trial-007").mkdir()
    (Path("out") / "tune" / "trial-006" / "checkpoint_000003").mkdir()  # half of one
    rows = [f"trial-{n:03d},{10 * n}" for n in range(1, 8)]
    (Path("out") / "trials.csv").write_text("\n".join(["trial,seconds", *rows]) + "\n")
    return sweep


def test_groups_have_the_order_of_the_file_and_means_over_both_seeds(grid: Sweep) -> None:
    found = evaluated(grid)
    assert [group.searched for group in found.groups] == [
        {"variant": "plain"}, {"variant": "fast"}, {"variant": "large"},
    ]  # fmt: skip
    names = [measure.name for measure in found.measures]
    assert names == ["reward", "speed", "decision_ms", "training_s"]
    reward, speed, decision, training = found.measures
    plain, fast, large = found.groups
    weeks = 0.5 * np.mean(range(4))
    assert plain.values["reward"].tolist() == [[3, 2.5, 2, 1.5], [5, 4.5, 4, 3.5]]
    assert [found.figure(each, reward).mean for each in found.groups] == pytest.approx(
        [4 - weeks, 4 - weeks, 1.5 - weeks]
    )
    # Paired by training seed: -2 and -3.
    apart = found.figure(large, reward)
    assert apart.difference == pytest.approx(-2.5)
    half = 12.7062 * 0.5  # t of one degree of freedom, and the standard error
    ends = (apart.difference_interval.low, apart.difference_interval.high)
    assert ends == pytest.approx((-2.5 - half, -2.5 + half), rel=1e-4)
    # The searched setting of the environment holds in the evaluation.
    assert [found.figure(each, speed).mean for each in (plain, fast)] == [1, 3]
    assert found.figure(plain, decision).mean == pytest.approx(4)
    assert found.figure(large, training).mean == pytest.approx(15)


def test_given_settings_go_before_searched_ones(grid: Sweep) -> None:
    found = evaluated(grid, {"speed": 7}, seeds=1)
    assert {group.values["speed"].item(0) for group in found.groups} == {7}


def test_trials_of_a_mixture_run_in_its_settings_in_percent_of_a_rule(
    load: LoadSweep, monkeypatch: Patch
) -> None:
    """The settings have speeds 1 and 2, the rule has speed 4."""
    sweep = load(VARIANTS.replace("fast: {environment.speed: 3}, ", ""))
    mixture = ({"start": 1.0}, {"start": 2.0, "speed": 2})
    config = SimpleNamespace(environment=Slope(), mixture=mixture)
    monkeypatch.setattr(Sweep, "config", lambda self, drawn: config)
    for number, (variant, seed) in enumerate(product(("plain", "large"), (0, 1)), 11):
        save_trial(Path("out"), number, 3.0, variant=variant, seed=seed)
    found = evaluated(sweep, rule="amble", seeds=6)
    speed, decision = found.measures  # percentages of a reward mean nothing
    assert decision.name == "decision_ms"
    assert (speed.name, speed.unit, speed.title) == ("speed", "%", "speed in % of amble, %")
    assert found.groups[0].values["speed"].tolist() == [[25, 50] * 3] * 2
    assert found.settings == ("slope, from 1", "slope, from 2")
    figure = found.figure(found.groups[1], speed)
    assert (figure.mean, figure.interval.low, figure.interval.high) == (37.5, 37.5, 37.5)
    assert found.figure(found.groups[1], speed, "slope, from 2").mean == 50
    rows = summary_rows(found)
    rows = rows[rows["metric"] == "speed"]
    assert rows["setting"].tolist() == ["all", "slope, from 1", "slope, from 2"] * 2
    assert rows["mean"].tolist() == [37.5, 25, 50] * 2
    assert episode_rows(found)["setting"].tolist()[:2] == ["slope, from 1", "slope, from 2"]
    with pytest.raises(InputError, match=r"mixture of 2 settings.* expected --against"):
        evaluated(sweep, seeds=6)
    with pytest.raises(InputError, match="--seeds is 5; expected a multiple of 2"):
        evaluated(sweep, rule="amble", seeds=5)
    assert evaluated(sweep, {"speed": 7}, seeds=1).settings == ()


def test_a_missing_training_seed_is_left_out_of_differences(load: LoadSweep) -> None:
    sweep = load(VARIANTS)
    for number, (variant, seed, quality) in enumerate(
        [("plain", 0, 3.0), ("plain", 1, 5.0), ("large", 1, 7.0)], 1
    ):
        save_trial(Path("out"), number, quality, variant=variant, seed=seed)
    found = evaluated(sweep)
    assert [measure.name for measure in found.measures] == ["reward", "speed", "decision_ms"]
    assert found.figure(found.groups[1], found.measures[0]).difference == pytest.approx(2)


def test_a_sweep_without_policies_is_refused(load: LoadSweep) -> None:
    sweep = load(VARIANTS)
    SweepFolder.create(Path("out"), sweep, {})
    with pytest.raises(InputError, match="has no policies yet"):
        evaluated(sweep)
    save_trial(Path("out"), 1, 1.0, seed=0)  # without its variant
    with pytest.raises(InputError, match="expected a trial of this sweep"):
        evaluated(sweep)


def test_command_writes_tables_with_the_searched_settings(grid: Sweep, cli: Cli) -> None:
    shown = cli("evaluate example --sweep out --seeds 4 --workers 1").out
    assert shown.startswith("example-hill: 2 trainings each, on episodes of seeds 0 to 3\n")
    folder = Path("results/out")
    assert shown.endswith(f"Tables and charts: {folder}/\n")
    files = {"summary.csv", "episodes.csv", "summary.json", "differences.png"}
    assert {file.name for file in folder.iterdir()} == files
    summary = pd.read_csv(folder / "summary.csv")
    assert list(summary["variant"].unique()) == ["plain", "fast", "large"]
    row = summary[(summary.variant == "large") & (summary.metric == "reward")].iloc[0]
    assert (row["trials"], row["mean"], row["difference"]) == (2, 0.75, -2.5)
    assert row["ci95_low"] < row["mean"] < row["ci95_high"]
    episodes = pd.read_csv(folder / "episodes.csv")
    assert len(episodes) == 3 * 2 * 4
    own = episodes[(episodes.trial == "trial-004") & (episodes.seed == 2)].iloc[0]
    assert (own["training_seed"], own["variant"], own["reward"]) == (1, "plain", 4)
    record = cli.json("evaluate example --sweep out --seeds 4 --workers 1 --output again")
    assert record["groups"][2]["reward"]["difference"] == -2.5
    assert json.loads(Path("again/summary.json").read_text()) == record


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("example --sweep out --policy x", "expected no --policy"),
        ("example --sweep out --against all", "unknown rule of --against with --sweep 'all'"),
        ("example --sweep .", "--sweep '.' is not a sweep"),
        ("sure --sweep out", "is a sweep of 'example', not of 'sure'"),
        ("example --sweep out --seeds 0", "--seeds is 0"),
        ("example --sweep out --set sped=2", "sped"),
    ],
)
def test_bad_input(arguments: str, words: str, grid: Sweep, cli: Cli) -> None:
    assert words in cli.error(f"evaluate {arguments}")
    assert not Path("results").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "chart"),
    [
        ("network.size: {choice: [4, 8]}, training.epochs: {choice: [1, 2]}", "heat_map.png"),
        ("network.size: {choice: [4, 8, 16]}", "lines.png"),
        ("training.method: {choice: [ppo, reinforce]}", "differences.png"),
        ("network.size: {randint: [1, 9]}", "differences.png"),
    ],
)
def test_chart_fits_the_searched_settings(space: str, chart: str, load: LoadSweep) -> None:
    sweep = load(f"space: {{{space}}}")
    probes = [dimension.probes() for dimension in sweep.space.dimensions]
    for number, values in enumerate(zip(*probes, strict=False), 1):
        names = [dimension.name for dimension in sweep.space.dimensions]
        save_trial(Path("out"), number, float(number), **dict(zip(names, values, strict=True)))
    found = evaluated(sweep)
    draw_all(found, "a title", Path())
    assert [path.name for path in Path().glob("*.png")] == [chart]
    assert result_table(found).row_count == len(found.groups) > 1


@pytest.mark.parametrize("spreads", [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)])
def test_intervals_hold_for_other_runs_and_other_seeds(spreads: tuple[float, float]) -> None:
    """In simulated evaluations of three trainings on 20 seeds the interval holds the mean 0."""
    random, of_runs, of_seeds = np.random.default_rng(3), *spreads
    held = 0
    for _ in range(400):
        values = random.normal(size=(3, 20)) + of_runs * random.normal(size=(3, 1))
        _, interval = crossed_mean(values + of_seeds * random.normal(size=(1, 20)))
        held += interval.low <= 0 <= interval.high
    assert 0.9 <= held / 400 <= 0.99


def test_mean_over_one_run_or_one_seed_and_without_nan() -> None:
    row = np.array([[1.0, 2.0, 6.0, 3.0]])
    mean, one_run = crossed_mean(row)
    assert mean == 3
    assert one_run.low < 3 < one_run.high
    mean, one_seed = crossed_mean(np.array([[1.0], [2.0], [3.0]]))
    assert (one_seed.low, one_seed.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), rel=1e-4)
    assert crossed_mean(np.array([[1.0, np.nan], [3.0, 9.0]]))[0] == 2
    assert np.isnan(crossed_mean(np.full((2, 3), np.nan))[0])
    mean, same = crossed_mean(np.ones((3, 4)))
    assert (mean, same.low, same.high) == (1, 1, 1)
