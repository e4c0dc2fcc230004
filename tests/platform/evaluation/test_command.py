"""`loadmaster evaluate`: its output, tables and charts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from loadmaster.platform.cli.main import main
from loadmaster.platform.evaluation import adapters as run
from loadmaster.platform.evaluation import charts, files
from tests.platform.cli.one_line import error_line
from tests.platform.evaluation.machine import METRICS, compared, machine_episode, machine_jobs

Captured = pytest.CaptureFixture[str]

PNGS = {"summary.png", "jct_distribution.png", "jobs_in_system.png", "slowdown_by_size.png"}
TABLES = {"episodes.csv", "jobs.csv", "summary.csv", "summary.json"}


@pytest.mark.slow
def test_evaluate_prints_a_table_and_writes_everything(machine: Path, capsys: Captured) -> None:
    assert main(["evaluate", "machine", "--against", "all", "--seeds", "6"]) == 0
    shown = capsys.readouterr()
    assert "shortest is best" in shown.out
    assert shown.out.endswith("Tables and charts: results/machine-steady/\n")
    assert "\x1b" not in shown.out
    assert len(shown.err.splitlines()) == 1
    folder = machine / "results" / "machine-steady"
    assert {file.name for file in folder.iterdir()} == PNGS | TABLES
    assert [file.name for file in folder.parent.iterdir()] == ["machine-steady"]
    for name in PNGS:
        head = (folder / name).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(head[16:20], "big") > 1000  # pixels wide


@pytest.mark.usefixtures("no_charts")
def test_json_is_printed_and_written(machine: Path, capsys: Captured) -> None:
    arguments = ["--seeds", "6", "--first-seed", "3", "--workload", "rush", "--set", "jobs=5"]
    assert main(["evaluate", "machine", *arguments, "--output", "out", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record) == [
        "environment",
        "workload",
        "conditions",
        "seeds",
        "few_seeds",
        "settings",
        "metrics",
        "policies",
        "best_baseline",
        "differences",
        "notes",
        "parameters",
        "files",
    ]
    assert record["seeds"] == [3, 4, 5, 6, 7, 8]
    assert record["settings"] == {"workload": "rush", "jobs": 5}
    assert list(record["policies"]) == ["shortest", "arrival", "longest"]
    assert list(record["policies"]["arrival"]) == ["jct", "makespan", "decisions"]
    figures = record["policies"]["arrival"]["jct"]
    assert figures["ci95"][0] < figures["mean"] < figures["ci95"][1]
    assert set(record["differences"]) == {"arrival", "longest"}
    assert {Path(file).name for file in record["files"]} == TABLES
    assert all((machine / file).is_file() for file in record["files"])
    assert json.loads((machine / "out" / "summary.json").read_text()) == record


@pytest.mark.usefixtures("no_charts")
def test_tables_hold_every_episode_and_job(machine: Path) -> None:
    assert main(["evaluate", "machine", "--seeds", "4", "--output", "out"]) == 0
    with (machine / "out" / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert len(episodes) == 3 * 4
    for row in episodes:
        episode = machine_episode(row["policy"], int(row["seed"]))
        assert float(row["jct"]) == episode.completion_s.mean()
    with (machine / "out" / "jobs.csv").open() as file:
        jobs = list(csv.DictReader(file))
    assert len(jobs) == 3 * 4 * 8
    mine = [row for row in jobs if row["policy"] == "longest" and row["seed"] == "2"]
    assert [float(row["jct_s"]) for row in mine] == list(machine_episode("longest", 2).completion_s)
    with (machine / "out" / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3 * len(METRICS)


@pytest.mark.usefixtures("no_charts")
def test_same_command_same_figures(machine: Path) -> None:
    for folder in ("one", "two"):
        assert main(["evaluate", "machine", "--seeds", "5", "--output", folder]) == 0
    for name in ("episodes.csv", "jobs.csv", "summary.csv"):
        assert (machine / "one" / name).read_bytes() == (machine / "two" / name).read_bytes()


@pytest.mark.usefixtures("no_charts")
def test_folder_keeps_other_files(machine: Path) -> None:
    (machine / "out").mkdir()
    (machine / "out" / "notes.txt").write_text("mine")
    (machine / "out" / "summary.csv").write_text("old")
    assert main(["evaluate", "machine", "--seeds", "2", "--output", "out"]) == 0
    assert {file.name for file in (machine / "out").iterdir()} == TABLES | {"notes.txt"}
    assert (machine / "out" / "summary.csv").read_text().startswith("policy,metric,")


@pytest.mark.parametrize("before", [False, True])
def test_error_leaves_no_files(tmp_path: Path, before: bool) -> None:
    folder = tmp_path / "deep" / "out"
    if before:
        folder.mkdir(parents=True)
        (folder / "summary.csv").write_text("old")

    def write_and_fail() -> None:
        with files.output_folder(folder) as scratch:
            (scratch / "summary.csv").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_text() for path in left] == (["old"] if before else [])
    assert before or list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_charts_of_degenerate_results(tmp_path: Path) -> None:
    """One job, seed and policy; and jobs that the horizon cut off, including all of one policy."""
    single = compared("arrival", seeds=1)
    episode = machine_episode("arrival", 0, jobs=1)
    one_job = pd.DataFrame({"policy": "arrival", "seed": 0, **machine_jobs(episode)})
    charts.draw_all(single, one_job, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == PNGS
    two = compared("arrival", "shortest", seeds=2)
    jobs = pd.concat(
        pd.DataFrame(
            {"policy": policy, "seed": seed, **machine_jobs(machine_episode(policy, seed))}
        )
        for policy in two.policies
        for seed in (0, 1)
    )
    jobs["end_s"] = 50.0
    late = (jobs["completion_s"] > 50) | (jobs["policy"] == "arrival")
    jobs.loc[late, ["completion_s", "jct_s", "slowdown"]] = np.nan
    for name in PNGS:
        (tmp_path / name).unlink()
    charts.draw_all(two, jobs, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == PNGS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "shortst"], "'shortst'; did you mean 'shortest'"),
        (["--against", "arival"], "'arival'; did you mean 'arrival'"),
        (["--against", "shortest,"], "unknown baseline ''"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--seeds", "-3"], "--seeds is -3"),
        (["--seeds", "many"], "--seeds"),
        (["--first-seed", "-1"], "--first-seed is -1"),
        (["--workers", "0"], "--workers is 0"),
        (["--set", "jobs"], "--set 'jobs'"),
        (["--set", "job=3"], "'job'; did you mean 'jobs'"),
        (["--set", "jobs=three"], "setting jobs: "),
        (["--workload", "a", "--set", "workload=b"], "disagree"),
        (["--output", "file/below"], "--output 'file/below'"),
        (["--output", "file"], "--output 'file'"),
        (["--output", "/proc/loadmaster/out"], "--output '/proc/loadmaster/out'"),
    ],
)
def test_bad_input(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    arguments: list[str],
    message: str,
) -> None:
    (machine / "file").write_text("in the way")
    monkeypatch.setattr(run, "run_episodes", lambda *_: pytest.fail("episodes ran"))
    assert message in error_line(["evaluate", "machine", *arguments], capsys)
    assert [path.name for path in machine.rglob("*")] == ["file"]
