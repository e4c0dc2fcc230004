"""`loadmaster evaluate dag_scheduling`."""

from pathlib import Path

import pandas as pd
import pytest

from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.describe import describe_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.platform.systems.decima.evaluation import folder_name
from tests.platform.cli.one_line import Cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_charts")]

EVALUATE = "evaluate dag_scheduling"
TOY = f"{EVALUATE} --workload toy"


def test_baselines_run_on_the_same_jobs(here: Path, cli: Cli) -> None:
    record = cli.json(f"{TOY} --against all --seeds 3 --set arrivals=batch")
    assert set(record["policies"]) == set(BASELINES)
    means = [figures["jct"]["mean"] for figures in record["policies"].values()]
    assert means == sorted(means)
    assert record["best_baseline"] == next(iter(record["policies"]))
    for figures in record["policies"].values():
        assert list(figures) == ["jct", "jct_p95", "makespan", "slowdown", "decisions"]
        assert figures["slowdown"]["mean"] >= 1  # the toy's durations are constant: a true bound
    jobs = pd.read_csv(here / "results" / "dag_scheduling-toy-batch" / "jobs.csv")
    assert len(jobs) == len(BASELINES) * 3 * 20
    assert len(jobs[["seed", "job", "template", "arrival_s"]].drop_duplicates()) == 3 * 20


def test_optimum_is_a_lower_bound(here: Path, cli: Cli) -> None:
    tiny = "--set jobs=2 --set executors=2 --seeds 3"
    record = cli.json(f"{TOY} --policy optimal --against all {tiny}")
    assert record["best_baseline"] != "optimal"
    assert set(record["optimality_gap_percent"]) == set(BASELINES)
    (folder,) = (here / "results").iterdir()
    assert folder.name == "dag_scheduling-toy-batch-jobs-2-executors-2"
    episodes = pd.read_csv(folder / "episodes.csv")
    best = episodes[episodes["policy"] == "optimal"].set_index("seed")["jct"]
    for policy, own in episodes.groupby("policy"):
        assert (own.set_index("seed")["jct"] >= best - 1e-9).all(), policy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--policy optimal --against all", "optimal"),
        ("--set objective=makespan --set horizon_s=9", "horizon_s"),
        ("--set arrivals=bulk", "arrivals"),
    ],
)
def test_invalid_arguments_are_refused(here: Path, cli: Cli, arguments: str, message: str) -> None:
    assert message in cli(f"{EVALUATE} {arguments}", code=2).err.splitlines()[-1]
    assert list(here.iterdir()) == []


def test_folder_names_and_conditions() -> None:
    settings = DagSchedulingSettings()
    assert describe_episode(settings) == "20 jobs at once, 50 executors"
    assert folder_name(settings) == "dag_scheduling-tpch-like-batch"
    stream = DagSchedulingSettings(arrivals="poisson", interarrival_s=15, moving_delay_s=0)
    words = "201 jobs, one every 15 s on average, 50 executors, moving_delay_s 0"
    assert describe_episode(stream) == words
    assert folder_name(stream).endswith("poisson-interarrival_s-15-moving_delay_s-0")
    mixed = [{"count": n, "memory": 0.01 * n} for n in range(1, 40)]
    many = DagSchedulingSettings.model_validate({"executor_classes": mixed})
    assert len(folder_name(many)) < 120
