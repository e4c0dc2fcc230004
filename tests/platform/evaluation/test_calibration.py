"""`loadmaster calibrate`: the search on a small problem, and the command."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.calibration import TunedEntry, TuningProblem, read_entries
from loadmaster.envs.dag_scheduling import calibration as dag_calibration
from loadmaster.envs.dag_scheduling.baselines import BASELINES, Baseline
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.tuning import SPACES, prepare
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from loadmaster.platform.evaluation.calibration import FIRST_SEED, calibrate
from tests.platform.cli.one_line import Cli

Episode = tuple[float, int]


@dataclass(frozen=True)
class Found(TunedEntry):
    value: float
    cost: float
    seeds: int

    @property
    def setting(self) -> tuple[str]:
        return (self.baseline,)


class Line:
    """A baseline is a number; its cost is its distance from 7, plus a cost that a seed adds."""

    def __init__(self, **changed: Any) -> None:
        self.ran: list[Episode] = []
        self.seed_costs: dict[Episode, float] = {}
        self.problem: TuningProblem[float] = TuningProblem(**{
            "conditions": "a line",
            "candidates": lambda name: [float(value) for value in range(0, 16, 4)],
            "score": self.cost,
            "better": "lower",
            "entry": lambda value, mean, seeds: Found("point", value, mean, len(seeds)),
            "describe": lambda value, mean: f"{value:g}: {mean:g}",
            **changed,
        })  # fmt: skip

    def cost(self, value: float, seed: int) -> float:
        self.ran.append((value, seed - FIRST_SEED))
        return abs(value - 7) + self.seed_costs.get((value, seed - FIRST_SEED), 0.0)

    def search(self, seeds: int = 8) -> tuple[Found, list[float]]:
        best, scored = calibrate("point", self.problem, seeds, 1)
        assert isinstance(best, Found)
        assert best.cost == scored[0][0]
        return best, [value for _, value in scored]


def test_best_quarter_runs_on_all_seeds() -> None:
    line = Line()
    best, finalists = line.search(8)
    assert (best.value, best.cost, best.seeds, finalists) == (8.0, 1.0, 8, [8.0])
    assert {seed for value, seed in line.ran if value != 8} == {0, 1}
    assert sorted(seed for value, seed in line.ran if value == 8) == list(range(8))


def test_few_first_seeds_can_mislead_but_the_published_parameters_always_run() -> None:
    """Without the published 12, a candidate that fails on late seeds is found."""
    for published, expected in ((None, 8.0), (12.0, 12.0)):
        line = Line(published=lambda name, value=published: value)
        line.seed_costs = {(8.0, seed): 100.0 for seed in range(2, 8)}
        assert line.search(8)[0].value == expected


def test_higher_can_be_better_and_undefined_scores_are_the_worst() -> None:
    line = Line(better="higher", candidates=lambda name: [7.0, 0.0, 20.0, 3.0])
    assert line.search()[0].value == 20.0
    line.seed_costs[20.0, 0] = float("nan")
    assert line.search()[0].value == 0.0


def steps(*sizes: float) -> Any:
    return lambda value: [lambda now, size=size: now + size if now < 30 else None for size in sizes]


def test_moves_improve_the_best_candidate_while_the_mean_does() -> None:
    line = Line(moves=steps(0.25, -0.25, 40.0))
    best, values = line.search()
    assert (best.value, best.cost) == (7.0, 0.0)
    assert values == [7.0, 8.0], "the candidate it started from follows"
    line.seed_costs = {(7.75, seed): 5.0 for seed in range(2, 8)}  # better on the first seeds only
    assert line.search()[0].value == 8.0


def test_progress_ends_at_the_planned_episodes() -> None:
    line, shown = Line(moves=steps(-0.5, 0.5), published=lambda name: 0.0), list[Any]()
    calibrate("point", line.problem, 8, 2, lambda *counts: shown.append(counts))
    assert shown[-1][0] == len(line.ran)
    assert [run for run, _ in shown] == list(range(1, len(line.ran) + 1))
    assert all(run <= planned for run, planned in shown)


SMALL = "dag_scheduling --set jobs=4 --set executors=10"
TUNED = f"calibrate {SMALL} --seeds 4 --policy weighted-fair"


def tuned_baseline(name: str = "weighted-fair", **settings: Any) -> Baseline:
    made = DagSchedulingSettings(**settings)
    return dag_calibration.tuned_baseline(name, made, load_workload(made))


@pytest.mark.slow
def test_best_is_the_cheapest_of_the_finalists() -> None:
    ran: list[Any] = []
    problem = prepare(DagSchedulingSettings(jobs=4, executors=10))
    best, scored = calibrate("weighted-fair", problem, 4, 2, lambda *counts: ran.append(counts))
    tried = len(SPACES["weighted-fair"].candidates(BASELINES["weighted-fair"]))
    assert ran[-1] == (tried + 21 * 3, tried + 21 * 3)
    assert isinstance(best, dag_calibration.Calibration)
    assert best.cost == pytest.approx(min(cost for cost, _ in scored), abs=1e-3)
    assert best.parameters == scored[0][1].parameters
    assert len(scored) == 21  # a quarter of alpha = -2, -1.9 .. 2, executors kept or released
    assert best.first_seed >= 1_000_000  # no evaluation counts that far


@pytest.mark.slow
def test_evaluate_uses_the_result_of_calibrate(tmp_path: Path, cli: Cli) -> None:
    kept = tmp_path / "kept.json"
    (found,) = cli.json(f"{TUNED} --output {kept}")["calibrations"]
    assert json.loads(kept.read_text()) == [found]
    assert tuned_baseline(jobs=4, executors=10, calibration=kept).parameters == found["parameters"]
    record = cli.json(
        f"evaluate {SMALL} --against weighted-fair --seeds 2 --set calibration={kept} "
        f"--output {tmp_path / 'results'}"
    )
    words = record["parameters"]["weighted-fair"]
    assert words == ", ".join(f"{name} {value:g}" for name, value in found["parameters"].items())


@pytest.mark.slow
def test_second_run_replaces_the_entry_of_the_same_setting(tmp_path: Path, cli: Cli) -> None:
    kept = tmp_path / "kept.json"
    for extra in ("", "", "--set arrivals=poisson"):
        shown = cli(f"{TUNED} {extra} --output {kept}").out.splitlines()
    assert shown[0].startswith("weighted-fair, tpch-like, load ")
    assert shown[0].endswith(", 4 sequences:")
    assert shown[1].startswith("  alpha ")
    assert shown[-1] == f"Kept in {kept}"
    entries = json.loads(kept.read_text())
    assert [entry["conditions"]["arrivals"] for entry in entries] == ["batch", "poisson"]


@pytest.mark.slow
def test_nearest_load_is_used() -> None:
    wanted = dag_calibration.Conditions(arrivals="poisson", jobs=0)
    entries = read_entries(dag_calibration.SHIPPED_PATH, dag_calibration.Calibration)
    own = [entry for entry in entries if entry.baseline == "weighted-fair"]
    streams = [e for e in own if replace(e.conditions, load=0.0) == wanted]
    assert len({e.conditions.load for e in streams}) >= 3  # shipped for three loads
    for entry in streams:
        near = tuned_baseline(arrivals="poisson", load=entry.conditions.load * 1.02)
        assert near.parameters == entry.parameters


def test_what_must_be_equal_counts_before_sizes() -> None:
    here = dag_calibration.Conditions(load=0.8, jobs=0, arrivals="poisson", executors=10)
    ordered = [
        here,
        replace(here, executors=20),
        replace(here, executors=20, load=1.6),
        replace(here, classes=4),
        replace(here, estimates="missing"),
        replace(here, objective="makespan"),
        replace(here, workload="alibaba"),
        replace(here, arrivals="batch"),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=here.distance) == ordered


def test_untuned_baselines_are_unchanged() -> None:
    assert tuned_baseline("fair") is BASELINES["fair"]


def test_bad_calibration_files_raise(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('[{"alpha": 1}]')
    for name, words in (("bad.json", "malformed"), ("none.json", "No such file")):
        with pytest.raises(InputError, match=words):
            tuned_baseline(calibration=tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dag_scheduling --policy fair", "tunable baseline 'fair'"),
        ("stream_scaling --policy random", "tunable baseline 'random'"),
        ("stream_scaling --policy flnk", "did you mean 'flink'"),
        ("stream_scaling --set job=smal-1 --output kept.json", "small-1"),
        ("stream_scaling --seeds 0", "--seeds is 0"),
        ("gpu_scheduling --policy las-fastest", "tunable baseline 'las-fastest'"),
        ("das --each", "gpu_scheduling has no sets"),
        ("dag_schedulin", "did you mean 'dag_scheduling'"),
    ],
)
def test_bad_input_is_one_line(arguments: str, words: str, here: Path, cli: Cli) -> None:
    assert words in cli.error(f"calibrate {arguments}")
    assert list(here.iterdir()) == []
