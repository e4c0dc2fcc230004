"""`loadmaster evaluate`: its output, tables and charts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from loadmaster.platform.evaluation import adapters, charts, files
from tests.platform.cli.one_line import Cli
from tests.platform.evaluation.machine import (
    MACHINE,
    METRICS,
    compared,
    machine_episode,
    machine_jobs,
)

PNGS = {"summary.png", "jct_distribution.png", "jobs_in_system.png", "slowdown_by_size.png"}
TABLES = {"episodes.csv", "jobs.csv", "summary.csv", "summary.json"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, here: Path) -> Path:
    """Make `loadmaster evaluate machine` work in an empty folder; return the folder."""
    monkeypatch.setattr(adapters, "find_adapter", lambda name: MACHINE)
    return here


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the charts, which take a second to draw."""
    monkeypatch.setattr(charts, "draw_all", lambda *_: None)


@pytest.mark.slow
def test_evaluate_prints_a_table_and_writes_everything(machine: Path, cli: Cli) -> None:
    shown = cli("evaluate machine --against all --seeds 6")
    assert "shortest is best" in shown.out
    assert shown.out.endswith("Tables and charts: results/machine-steady/\n")
    assert len(shown.err.splitlines()) == 1
    folder = machine / "results" / "machine-steady"
    assert {file.name for file in folder.iterdir()} == PNGS | TABLES
    assert [file.name for file in folder.parent.iterdir()] == ["machine-steady"]
    for name in PNGS:
        head = (folder / name).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(head[16:20], "big") > 1000  # pixels wide


@pytest.mark.usefixtures("no_charts")
def test_json_is_printed_and_written(machine: Path, cli: Cli) -> None:
    arguments = "--seeds 6 --first-seed 3 --workload rush --set jobs=5 --output out"
    record = cli.json(f"evaluate machine {arguments}")
    assert " ".join(record) == (
        "environment workload conditions seeds few_seeds settings metrics policies best_baseline "
        "differences notes parameters files"
    )
    assert record["seeds"] == [3, 4, 5, 6, 7, 8]
    assert record["settings"] == {"workload": "rush", "jobs": 5}
    assert list(record["policies"]) == ["shortest", "arrival", "longest"]
    assert list(record["policies"]["arrival"]) == ["jct", "makespan", "decisions"]
    assert set(record["differences"]) == {"arrival", "longest"}
    assert {Path(file).name for file in record["files"]} == TABLES
    assert all((machine / file).is_file() for file in record["files"])
    assert json.loads((machine / "out" / "summary.json").read_text()) == record


@pytest.mark.usefixtures("no_charts")
def test_tables_hold_every_episode_and_job(machine: Path, cli: Cli) -> None:
    """The same command writes the same bytes; other files of the folder stay."""
    (machine / "two").mkdir()
    (machine / "two" / "notes.txt").write_text("mine")
    (machine / "two" / "summary.csv").write_text("old")
    for folder in ("one", "two"):
        cli(f"evaluate machine --seeds 4 --output {folder}")
    assert {file.name for file in (machine / "two").iterdir()} == TABLES | {"notes.txt"}
    for name in ("episodes.csv", "jobs.csv", "summary.csv"):
        assert (machine / "one" / name).read_bytes() == (machine / "two" / name).read_bytes()
    episodes, jobs, summary = (
        pd.read_csv(machine / "one" / f"{name}.csv") for name in ("episodes", "jobs", "summary")
    )
    assert (len(episodes), len(jobs), len(summary)) == (3 * 4, 3 * 4 * 8, 3 * len(METRICS))
    for row in episodes.itertuples():
        assert row.jct == machine_episode(row.policy, row.seed).completion_s.mean()
    own = jobs[(jobs.policy == "longest") & (jobs.seed == 2)]
    assert list(own.jct_s) == list(machine_episode("longest", 2).completion_s)


@pytest.mark.parametrize("before", [False, True])
def test_error_leaves_no_files(tmp_path: Path, before: bool) -> None:
    folder = tmp_path / "deep" / "out"
    if before:
        folder.mkdir(parents=True)
        (folder / "summary.csv").write_text("old")
    with pytest.raises(KeyboardInterrupt), files.output_folder(folder) as scratch:  # noqa: PT012
        (scratch / "summary.csv").write_text("half")
        raise KeyboardInterrupt
    assert before or list(tmp_path.iterdir()) == []
    files_left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_text() for path in files_left] == ["old"] * before


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_charts_of_degenerate_results(tmp_path: Path) -> None:
    """One job, seed and policy; and jobs that the horizon cut off, including all of one policy."""

    def table(policy: str, seed: int, jobs: int = 8) -> pd.DataFrame:
        columns = machine_jobs(machine_episode(policy, seed, jobs))
        return pd.DataFrame({"policy": policy, "seed": seed, **columns})

    two = compared("arrival", "shortest", seeds=2)
    jobs = pd.concat(table(policy, seed) for policy in two.policies for seed in (0, 1))
    jobs["end_s"] = 50.0
    late = (jobs["completion_s"] > 50) | (jobs["policy"] == "arrival")
    jobs.loc[late, ["completion_s", "jct_s", "slowdown"]] = np.nan
    alone = compared("arrival", seeds=1)
    for name, result, drawn in (("a", alone, table("arrival", 0, 1)), ("b", two, jobs)):
        (tmp_path / name).mkdir()
        charts.draw_all(result, drawn, tmp_path / name)
        assert {file.name for file in (tmp_path / name).iterdir()} == PNGS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--policy shortst", "'shortst'; did you mean 'shortest'"),
        ("--against arival", "'arival'; did you mean 'arrival'"),
        ("--against optimal", "unknown baseline 'optimal'"),
        ("--seeds 0", "--seeds is 0"),
        ("--first-seed -1", "--first-seed is -1"),
        ("--workers 0", "--workers is 0"),
        ("--set jobs", "--set 'jobs'"),
        ("--set jobs=three", "setting jobs: "),
        ("--workload a --set workload=b", "disagree"),
        ("--output file/below", "--output 'file/below'"),
        ("--output file", "--output 'file'"),
        ("--output /proc/loadmaster/out", "--output '/proc/loadmaster/out'"),
    ],
)
def test_bad_input(
    machine: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, arguments: str, message: str
) -> None:
    (machine / "file").write_text("in the way")
    monkeypatch.setattr(adapters, "run_episodes", lambda *_: pytest.fail("episodes ran"))
    assert message in cli.error(f"evaluate machine {arguments}")
    assert [path.name for path in machine.rglob("*")] == ["file"]
