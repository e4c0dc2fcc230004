"""`loadmaster evaluate gpu_scheduling`, and bundles of DAS in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.describe import describe_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.registry import find_system
from loadmaster.models.das.settings import training_settings
from loadmaster.platform.systems.bundle_ref import best_pretrained, find_policy
from loadmaster.platform.systems.das.evaluation import LearnedDas, folder_name
from loadmaster.platform.systems.das.rollout import DasEngine
from tests.bundles import make_bundle
from tests.models.das.builders import NETWORK, module_of
from tests.platform.cli.one_line import Cli

METRICS = ["jct", "fee", "queueing", "slowdown", "utilisation", "fairness", "makespan"]
MACHINE = "machines=[{count: 1, gpus: 4, gpu: V100, cpus: 32}]"
TOY = f"--workload toy --set arrivals=trace --set '{MACHINE}'"
THREE = {"machines": [{"count": 3, "gpus": 8, "gpu": "V100", "cpus": 96}]}
ENVIRONMENT = {"jobs": 60, "max_queue": 9, "history": 4}
SETTINGS = GpuSchedulingSettings(**ENVIRONMENT)


@pytest.mark.slow
def test_all_baselines_run_on_the_same_jobs(here: Path, cli: Cli) -> None:
    record = cli.json("evaluate gpu_scheduling --against all --seeds 2 --set jobs=40")
    assert set(record["policies"]) == set(BASELINES)
    means = [figures["jct"]["mean"] for figures in record["policies"].values()]
    assert means == sorted(means)
    for figures in record["policies"].values():
        assert list(figures)[: len(METRICS)] == METRICS
        assert figures["fee"]["mean"] > 0
        assert 0 < figures["utilisation"]["mean"] <= 1
        assert 0 < figures["fairness"]["mean"] <= 1
        assert 0 <= figures["queueing"]["mean"] < figures["jct"]["mean"]
    true_speeds = {name for name in BASELINES if name.endswith("-true-speeds")}
    assert true_speeds < set(record["oracles"])
    knowing = {name.split("-")[0] for name in set(record["oracles"]) - true_speeds}
    assert knowing == {"sjf", "srtf", "srsf", "tetris", "mosa"}
    folder = here / "results" / "gpu_scheduling-pai-like-small-jobs-40"
    jobs = pd.read_csv(folder / "jobs.csv")
    assert len(jobs) == len(BASELINES) * 2 * 40
    assert len(jobs[["seed", "job", "arrival_s", "work_s"]].drop_duplicates()) == 2 * 40
    assert np.allclose(jobs["jct_s"], jobs["completion_s"] - jobs["arrival_s"], atol=1e-3)
    for chart in ("summary", "jct_distribution", "slowdown_by_size", "jobs_in_system"):
        assert (folder / f"{chart}.png").stat().st_size > 10_000


@pytest.mark.usefixtures("no_charts")
def test_toy_workload_equals_hand_calculation(cli: Cli) -> None:
    """Jobs arrive at 0, 0, 1, 2 and 3 s and end at 10, 4, 7, 4 and 18 s."""
    undisturbed = f"{TOY} --set interference=false --set stragglers=0"
    record = cli.json(f"evaluate gpu_scheduling --policy fifo-first-fit --seeds 1 {undisturbed}")
    figures = record["policies"]["fifo-first-fit"]
    assert figures["jct"]["mean"] == pytest.approx((10 + 4 + 6 + 2 + 15) / 5)
    assert figures["fee"]["mean"] == pytest.approx(57 / 5 * 2.48 / 3600, abs=1e-6)
    words = "5 jobs as recorded, 1 machine with 4 GPUs, interference False, stragglers 0"
    assert record["conditions"] == words


@pytest.mark.usefixtures("no_charts")
def test_oversized_jobs_are_reported_once(here: Path, cli: Cli) -> None:
    policies = "--policy fifo-first-fit --policy las-best-fit --seeds 3"
    small = f"evaluate gpu_scheduling {policies} {TOY.replace('gpus: 4', 'gpus: 3')}"
    record = cli.json(f"{small} --set oversized=queue --output queue")
    (line,) = [note for note in record["notes"] if note.startswith("warning: ")]
    assert "job 4 requests 4 x 1 GPU" in line
    assert "left in the queue" in line
    for figures in record["policies"].values():
        assert figures["unfinished"]["mean"] == 1
    jobs = pd.read_csv(here / "queue" / "jobs.csv")
    assert jobs["completion_s"].isna().sum() == 2 * 3
    assert (jobs["end_s"] >= jobs["completion_s"].fillna(0)).all()
    skipping = cli.json(f"{small} --set oversized=skip --output skip")
    assert "unfinished" not in skipping["policies"]["las-best-fit"]
    assert len(pd.read_csv(here / "skip" / "jobs.csv")) == 2 * 3 * 4


@pytest.mark.usefixtures("no_charts")
def test_known_durations_make_no_oracles(cli: Cli) -> None:
    pair = "--against sjf-first-fit,fifo-first-fit --seeds 3 --set jobs=60"
    blind = cli.json(f"evaluate gpu_scheduling {pair}")
    assert (blind["best_baseline"], blind["oracles"]) == ("fifo-first-fit", ["sjf-first-fit"])
    informed = cli.json(f"evaluate gpu_scheduling {pair} --set durations=known")
    assert informed["best_baseline"] == "sjf-first-fit"
    assert "oracles" not in informed
    assert informed["policies"] == blind["policies"]


@pytest.mark.parametrize(
    ("values", "words", "folder"),
    [
        ({}, "200 jobs at load 1.2, small cluster: 8 machines with 32 GPUs", "small"),
        ({"cluster": "large"}, "large cluster: 128 machines with 1,024 GPUs", "large"),
        ({"arrivals": "batch", "jobs": 50}, "50 jobs at once", "small-jobs-50-arrivals-batch"),
        ({"interarrival_s": 90}, "200 jobs, one every 90 s on average", "small-interarrival_s-90"),
        ({"arrivals": "per-minute"}, "3046 jobs, 1000 a minute", "small-arrivals-per-minute"),
        (THREE, "3 machines with 24 GPUs", "machines-3x8V100-96-4"),
        ({"backfill": False}, "32 GPUs, backfill False", "small-backfill-False"),
    ],
)
def test_conditions_and_folder_names(values: dict[str, Any], words: str, folder: str) -> None:
    settings = GpuSchedulingSettings.model_validate(values)
    assert words in describe_episode(settings, 3046)
    assert folder_name(settings) == f"gpu_scheduling-pai-like-{folder}"


@pytest.mark.slow
def test_evaluation_runs_the_episodes_of_validation() -> None:
    module, seeds = module_of(**NETWORK), [0, 5]
    validated = [score.value for score in DasEngine(SETTINGS).judge(module, seeds)]
    # The sizes of the observation come from the policy, not from the evaluation's settings.
    settings, workload = GpuSchedulingSettings(jobs=60), load_workload(SETTINGS)
    policy = LearnedDas(module.network, SETTINGS)
    results = [policy.run(settings, seed, workload) for seed in seeds]
    assert [result.mean_jct_s for result in results] == pytest.approx(validated, rel=1e-6)
    assert validated[0] != validated[1]
    assert all(np.isfinite(result.finish_s).all() for result in results)


@pytest.mark.slow
def test_printed_explanations_match_the_schedule() -> None:
    policy, workload = LearnedDas(module_of(**NETWORK).network, SETTINGS), load_workload(SETTINGS)
    explanations = policy.explain(SETTINGS, 3, workload, 3)
    recorded = policy.run(SETTINGS, 3, workload, record=True)
    trace, jobs = recorded.trace, recorded.jobs
    assert len(explanations) == 3
    assert sorted(one.time_s for one in explanations) == [one.time_s for one in explanations]
    for one in explanations:
        chosen = one.record["chosen"]
        job = int(np.flatnonzero(jobs.job_id == chosen["job"])[0])
        assert recorded.start_s[job] == pytest.approx(one.time_s)
        assert chosen["machine"] in trace.machine[trace.job == job]
        assert chosen["job"] == one.record["jobs"][0]["job"]
        for heading, options in one.explanation.choices.items():
            assert [option.chosen for option in options] == [True] + [False] * (len(options) - 1)
            assert len({tuple(option.details) for option in options}) == 1  # the same columns
            shown = sum(option.probability or 0.0 for option in options)
            assert 0 < shown <= 1 + 1e-9
            assert one.explanation.others[heading] or shown == pytest.approx(1)


def test_nearest_bundle_is_chosen_by_durations_then_size(here: Path) -> None:
    environments: dict[str, dict[str, Any]] = {
        "small": ENVIRONMENT,
        "large": {"cluster": "large"},
        "known": {"cluster": "large", "durations": "known"},
    }
    for name, environment in environments.items():
        folder = here.parent / "pretrained" / name
        make_bundle(folder, system="das", environment=environment, **NETWORK)
    for name, wanted in {**environments, "small": {}}.items():
        settings = GpuSchedulingSettings.model_validate(wanted)
        assert best_pretrained(find_system("das"), settings).folder.name == name
    small = find_policy("small")
    assert training_settings(small.manifest) == SETTINGS
    assert small.trained_on.startswith("pai-like, 60 jobs at load 1.2, small cluster")
