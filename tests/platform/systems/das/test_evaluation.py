"""`loadmaster evaluate gpu_scheduling`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.describe import describe_episode
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.platform.cli.main import main
from loadmaster.platform.evaluation import charts
from loadmaster.platform.systems.das.evaluation import EVALUATION, folder_name

METRICS = ["jct", "fee", "queueing", "slowdown", "utilisation", "fairness", "makespan"]
FOUR_GPUS = "machines=[{count: 1, gpus: 4, gpu: V100, cpus: 32}]"
TOY = ("--workload", "toy", "--set", "arrivals=trace", "--set", FOUR_GPUS)
UNDISTURBED = ("--set", "interference=false", "--set", "stragglers=0")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "draw_all", lambda *_: None)


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", "gpu_scheduling", *arguments, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.slow
def test_all_baselines_run_on_the_same_jobs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = evaluated(capsys, "--against", "all", "--seeds", "2", "--set", "jobs=40")
    assert set(record["policies"]) == set(BASELINES)
    assert len(BASELINES) == 31
    means = [figures["jct"]["mean"] for figures in record["policies"].values()]
    assert means == sorted(means)
    for figures in record["policies"].values():
        assert list(figures)[: len(METRICS)] == METRICS
        assert figures["fee"]["mean"] > 0
        assert 0 < figures["utilisation"]["mean"] <= 1
        assert 0 < figures["fairness"]["mean"] <= 1
        assert 0 <= figures["queueing"]["mean"] < figures["jct"]["mean"]
    knowing = {name.split("-")[0] for name in record["oracles"]}
    assert knowing == {"sjf", "srtf", "tetris", "mosa"}
    # The best one that is no oracle.
    first = next(name for name in record["policies"] if name not in record["oracles"])
    assert record["best_baseline"] == first
    folder = here / "results" / "gpu_scheduling-pai-like-small-jobs-40"
    jobs = pd.read_csv(folder / "jobs.csv")
    sequences = {
        tuple(own[["seed", "job", "arrival_s", "work_s"]].itertuples(index=False, name=None))
        for _, own in jobs.groupby("policy")
    }
    assert len(sequences) == 1
    assert len(jobs) == len(BASELINES) * 2 * 40
    assert np.allclose(jobs["jct_s"], jobs["completion_s"] - jobs["arrival_s"], atol=1e-3)
    for chart in ("summary", "jct_distribution", "slowdown_by_size", "jobs_in_system"):
        assert (folder / f"{chart}.png").stat().st_size > 10_000


@pytest.mark.usefixtures("here", "no_charts")
def test_toy_workload_equals_hand_calculation(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs arrive at 0, 0, 1, 2 and 3 s and end at 10, 4, 7, 4 and 18 s."""
    record = evaluated(capsys, "--policy", "fifo-first-fit", "--seeds", "1", *TOY, *UNDISTURBED)
    figures = record["policies"]["fifo-first-fit"]
    assert figures["jct"]["mean"] == pytest.approx((10 + 4 + 6 + 2 + 15) / 5)
    assert figures["fee"]["mean"] == pytest.approx(57 / 5 * 2.48 / 3600, abs=1e-6)
    assert record["conditions"] == (
        "5 jobs as recorded, 1 machine with 4 GPUs, interference False, stragglers 0"
    )
    assert record["best_baseline"] == "fifo-first-fit"
    assert "oracles" not in record


@pytest.mark.usefixtures("no_charts")
def test_oversized_jobs_are_reported_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [part.replace("gpus: 4", "gpus: 3") for part in TOY]
    queue = ("--policy", "fifo-first-fit", "--policy", "las-best-fit", "--seeds", "3", *small)
    record = evaluated(capsys, *queue, "--set", "oversized=queue", "--output", "queue")
    (line,) = [note for note in record["notes"] if note.startswith("warning: ")]
    assert "job 4 requests 4 x 1 GPU" in line
    assert "left in the queue" in line
    for figures in record["policies"].values():
        assert figures["unfinished"]["mean"] == 1
    jobs = pd.read_csv(here / "queue" / "jobs.csv")
    assert jobs["completion_s"].isna().sum() == 2 * 3
    assert (jobs["end_s"] >= jobs["completion_s"].fillna(0)).all()
    skipping = evaluated(capsys, *queue, "--set", "oversized=skip", "--output", "skip")
    assert "unfinished" not in skipping["policies"]["las-best-fit"]
    assert len(pd.read_csv(here / "skip" / "jobs.csv")) == 2 * 3 * 4


@pytest.mark.usefixtures("here", "no_charts")
def test_known_durations_make_no_oracles(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ("--against", "sjf-first-fit,fifo-first-fit", "--seeds", "3", "--set", "jobs=60")
    blind = evaluated(capsys, *pair)
    assert (blind["best_baseline"], blind["oracles"]) == ("fifo-first-fit", ["sjf-first-fit"])
    informed = evaluated(capsys, *pair, "--set", "durations=known")
    assert informed["best_baseline"] == "sjf-first-fit"
    assert "oracles" not in informed
    assert informed["policies"] == blind["policies"]


def test_families_are_the_orderings() -> None:
    families = EVALUATION.families
    assert set(families.values()) == {"fifo", "sjf", "srtf", "drf", "tetris", "las"}
    assert all(name.startswith(f"{ordering}-") for name, ordering in families.items())
    assert set(BASELINES) - set(families) == {"mosa"}


def test_conditions_and_folder_names() -> None:
    small = GpuSchedulingSettings()
    assert describe_episode(small) == "200 jobs at load 1.2, small cluster: 8 machines with 32 GPUs"
    assert folder_name(small) == "gpu_scheduling-pai-like-small"
    own = GpuSchedulingSettings.model_validate(
        {
            "workload": "pai",
            "arrivals": "per-minute",
            "machines": [{"count": 3, "gpus": 8, "gpu": "V100", "cpus": 96}],
            "backfill": False,
        }
    )
    assert describe_episode(own, 3046) == (
        "3046 jobs, 1000 a minute, 3 machines with 24 GPUs, backfill False"
    )
    assert folder_name(own) == (
        "gpu_scheduling-pai-arrivals-per-minute-backfill-False-machines-3x8V100-96-4"
    )
    large = GpuSchedulingSettings(cluster="large", arrivals="batch", jobs=50)
    assert describe_episode(large) == "50 jobs at once, large cluster: 128 machines with 1,024 GPUs"
    slow = GpuSchedulingSettings(interarrival_s=90)
    assert describe_episode(slow).startswith("200 jobs, one every 90 s on average, small cluster")
    known = [small, own, large, slow, GpuSchedulingSettings(cluster="medium")]
    assert len({folder_name(settings) for settings in known}) == len(known)
