"""`loadmaster evaluate`: its output, tables, charts and report."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from loadmaster.platform.evaluation import adapters, comparison_charts, files, report
from loadmaster.platform.evaluation.comparison import Comparison
from tests.platform.cli.one_line import Cli, Patch
from tests.platform.evaluation import machine as example
from tests.platform.evaluation.machine import MACHINE, compared, machine_episode, with_oracles

PNGS = {"summary.png", "jct_distribution.png", "jobs_in_system.png", "slowdown_by_size.png"}
TABLES = {"episodes.csv", "jobs.csv", "summary.csv", "summary.json"}


@pytest.fixture
def machine(monkeypatch: Patch, here: Path) -> Path:
    """Make `loadmaster evaluate machine` work in an empty folder; return the folder."""
    monkeypatch.setattr(adapters, "find_adapter", lambda name: MACHINE)
    return here


@pytest.fixture
def no_charts(monkeypatch: Patch) -> None:
    """Skip the charts, which take a second to draw."""
    monkeypatch.setattr(comparison_charts, "draw_all", lambda *_: None)


@pytest.mark.slow
def test_evaluate_prints_a_table_and_writes_everything(machine: Path, cli: Cli) -> None:
    shown = cli("evaluate machine --against all --seeds 6")
    assert "shortest is best" in shown.out
    assert shown.out.endswith("Tables and charts: results/machine-steady/\n")
    assert len(shown.err.splitlines()) == 1
    folder = machine / "results" / "machine-steady"
    assert {file.name for file in folder.iterdir()} == PNGS | TABLES
    assert [file.name for file in folder.parent.iterdir()] == ["machine-steady"]
    assert {(folder / name).read_bytes()[:8] for name in PNGS} == {b"\x89PNG\r\n\x1a\n"}


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
    assert (len(episodes), len(jobs), len(summary)) == (3 * 4, 3 * 4 * 8, 3 * len(example.METRICS))
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
@pytest.mark.filterwarnings("error", "default::pytest.PytestUnraisableExceptionWarning")
def test_charts_of_degenerate_results(tmp_path: Path) -> None:
    """One job, seed and policy; and jobs that the horizon cut off, including all of one policy."""

    def table(policy: str, seed: int, jobs: int = 8) -> pd.DataFrame:
        columns = example.machine_jobs(machine_episode(policy, seed, jobs))
        return pd.DataFrame({"policy": policy, "seed": seed, **columns})

    two = compared("arrival", "shortest", seeds=2)
    jobs = pd.concat(table(policy, seed) for policy in two.policies for seed in (0, 1))
    jobs["end_s"] = 50.0
    late = (jobs["completion_s"] > 50) | (jobs["policy"] == "arrival")
    jobs.loc[late, ["completion_s", "jct_s", "slowdown"]] = np.nan
    alone = compared("arrival", seeds=1)
    for name, result, drawn in (("a", alone, table("arrival", 0, 1)), ("b", two, jobs)):
        (tmp_path / name).mkdir()
        comparison_charts.draw_all(result, drawn, tmp_path / name)
        assert {file.name for file in (tmp_path / name).iterdir()} == PNGS


@pytest.mark.parametrize(
    ("arguments", "words"),
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
def test_bad_input(arguments: str, words: str, machine: Path, cli: Cli, monkeypatch: Patch) -> None:
    (machine / "file").write_text("in the way")
    monkeypatch.setattr(adapters, "run_episodes", lambda *_: pytest.fail("episodes ran"))
    assert words in cli.error(f"evaluate machine {arguments}")
    assert [path.name for path in machine.rglob("*")] == ["file"]


def printed(result: Comparison, width: int, terminal: bool = False) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, highlight=False)
    report.print_report(result, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_table_fits(width: int) -> None:
    text = printed(compared("optimal", "arrival", "longest", "shortest"), width)
    lines = text.splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    assert not {"…", "\x1b"} & set(text)
    assert lines[0] == "steady: 8 jobs, one machine; seeds 0 to 19"
    rows = [line.split()[0] for line in table if re.match(r"[a-z]", line)]
    assert rows == ["policy", "optimal", "shortest", "arrival", "longest"]
    for heading in ("mean JCT, s", "IQM", "makespan", "95%", "against"):
        assert heading in "\n".join(table[:2])
    assert ("decisions" in text) == (width >= 120)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_table_has_one_line_a_policy(width: int) -> None:
    adapter = example.many_variants(30)
    result = compared(*adapter.baselines, adapter=adapter, seeds=4)
    lines = printed(result, width).splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    rows = [line.split()[0].rstrip("*") for line in table]
    assert rows[rows.index("policy") + 1 :] == list(result.policies)
    assert "do not tell it from arrival-3 (0.0% behind [0.0%, 0.0%]), arrival-6, " in lines[-3]
    assert "arrival-9 and 6 more. The best oracle, shortest-1, is at " in lines[-3]


def test_oracles_are_marked_in_the_table() -> None:
    marked = compared("arrival", "longest", "shortest", adapter=with_oracles("shortest"))
    lines = printed(marked, 200).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["shortest*", "arrival", "longest"]
    assert "best baseline" in lines[4]
    assert any(line.startswith("* an oracle: ") for line in lines)
    plain = printed(compared("arrival", "longest", "shortest"), 200)
    assert [word for word in ("oracle", "*") if word in plain] == []


def test_terminal_gets_wrapped_sentences_and_styles() -> None:
    text = printed(compared("arrival", "longest", "shortest"), 60, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert all(len(line) <= 60 for line in plain.splitlines())


@pytest.mark.parametrize(("seeds", "note"), [(1, "one seed"), (4, "only 4 seeds"), (5, "")])
def test_few_seeds_are_flagged(seeds: int, note: str) -> None:
    result = compared("arrival", "shortest", seeds=seeds)
    assert files.as_json(result, [])["few_seeds"] == bool(note)
    shown = [line for line in report.notes(result) if "seed" in line]
    assert [line[: len(note)] for line in shown] == [note] * bool(note)
    assert set(shown) <= set(printed(result, 200).splitlines())
    _, subtitle = (text.get_text() for text in comparison_charts.draw_summary(result).texts)
    assert subtitle.splitlines()[1:] == shown


SCORE, PERCENT, BEHIND = "mean JCT # s", "#% [#%, #%]", "arrival is #% behind [#%, #%]"
AHEAD = f"learned is best: {SCORE}, {PERCENT} ahead of arrival, the best baseline."
SHORTEST, LONGEST = (f"The best oracle, {name}, is at {SCORE}" for name in ("shortest", "longest"))
CONCLUSIONS = {  # on policies, of which those with a star are oracles; # is a number
    "arrival longest shortest": f"shortest is best: {SCORE}, {BEHIND}.",
    "learned arrival longest": AHEAD,
    "optimal shortest arrival": f"shortest is best: {SCORE}, {PERCENT} from optimal, {BEHIND}.",
    "arrival shortest* learned": f"{AHEAD} {SHORTEST}, {PERCENT} ahead of arrival.",
    "arrival longest*": f"arrival: {SCORE}. {LONGEST}, {PERCENT} behind arrival.",
    "shortest*": f"shortest is an oracle: {SCORE}.",
    "shortest* longest*": f"shortest is best of the oracles: {SCORE}.",
    "shortest* learned": f"learned: {SCORE}. {SHORTEST}.",
}


@pytest.mark.parametrize("policies", CONCLUSIONS)
def test_conclusion(policies: str) -> None:
    oracles = with_oracles(*re.findall(r"(\w+)\*", policies))
    result = compared(*policies.replace("*", "").split(), adapter=oracles)
    assert re.sub(r"\d+\.\d", "#", report.conclusion(result)) == CONCLUSIONS[policies]


def test_conclusion_on_a_tie_names_the_tied_policy() -> None:
    twins = replace(MACHINE, baselines=("shortest", "learned", "longest"))
    text = report.conclusion(compared("shortest", "learned", "longest", seeds=3, adapter=twins))
    assert "3 seeds do not tell it from learned" in text
    assert "longest" not in text


def test_learned_policies_are_compared_with_the_first() -> None:
    result = compared("learned", "arrival", "longest", seeds=6)
    assert report.learned_differences(result) == []
    bundles: Any = dict.fromkeys(("longest", "learned"))  # only the names matter
    (line,) = report.learned_differences(replace(result, learned=bundles))
    pattern = r"learned against longest: mean JCT (\S+)% \[(\S+), (\S+)\], makespan \+0\.0% .*"
    ((percent, low, high),) = re.findall(pattern, line)
    ours, theirs = (result.values[policy][0] for policy in ("learned", "longest"))
    expected = 100 * (ours.mean() / theirs.mean() - 1)
    assert float(percent) == pytest.approx(expected, abs=0.05)
    assert float(low) < expected < float(high) < 0
