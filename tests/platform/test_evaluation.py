"""Evaluation on a miniature environment whose answers are known: one machine, a batch of jobs.

There shortest-first is optimal in mean completion time (Smith's rule), and the makespan is the
same whatever the order.
"""

from __future__ import annotations

import csv
import json
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from rich.console import Console

from loadmaster.envs.errors import InputError
from loadmaster.envs.metrics import Metric
from loadmaster.envs.settings import Settings, build_settings
from loadmaster.platform.cli.main import main
from loadmaster.platform.evaluation import charts, files, run, subjects
from loadmaster.platform.evaluation.comparison import Comparison, as_json, compare
from loadmaster.platform.evaluation.report import print_report
from loadmaster.platform.evaluation.subjects import Subject, Trial
from loadmaster.platform.evaluation.wording import verdict

PNGS = {"summary.png", "jct_distribution.png", "jobs_in_system.png", "slowdown_by_size.png"}
TABLES = {"episodes.csv", "jobs.csv", "summary.csv", "summary.json"}


class MachineSettings(Settings):
    workload: str = "steady"
    jobs: int = 8


@dataclass(frozen=True)
class MachineDay:
    work_s: NDArray[np.float64]  # (jobs,)
    completion_s: NDArray[np.float64]  # (jobs,)


def machine_day(policy: str, seed: int, jobs: int = 8) -> MachineDay:
    work = np.random.default_rng(seed).integers(1, 100, jobs).astype(float)
    order = {
        "arrival": np.arange(jobs),
        "shortest": np.argsort(work, kind="stable"),
        "longest": np.argsort(-work, kind="stable"),
        "optimal": np.argsort(work, kind="stable"),
        "learned": np.argsort(np.round(work, -1), kind="stable"),
    }[policy]
    completion = np.empty(jobs)
    completion[order] = np.cumsum(work[order])
    return MachineDay(work, completion)


def mean_jct(policy: str, seed: int) -> float:
    return float(machine_day(policy, seed).completion_s.mean())


METRICS = (
    Metric("jct", "mean JCT", "s", lambda day: float(day.completion_s.mean())),
    Metric("makespan", "makespan", "s", lambda day: float(day.completion_s.max())),
    Metric("decisions", "decisions", "", lambda day: len(day.work_s), better=None),
)


def machine_jobs(day: MachineDay) -> Mapping[str, NDArray[Any]]:
    jobs = len(day.work_s)
    return {
        "job": np.arange(jobs),
        "arrival_s": np.zeros(jobs),
        "completion_s": day.completion_s,
        "jct_s": day.completion_s,
        "work_s": day.work_s,
        "slowdown": day.completion_s / day.work_s,
        "end_s": np.full(jobs, day.completion_s.max()),
    }


def prepare(settings: MachineSettings) -> Trial:
    return Trial(
        settings=settings,
        workload=settings.workload,
        conditions=f"{settings.jobs} jobs, one machine",
        metrics=METRICS,
        run=lambda policy, seed: machine_day(policy, seed, settings.jobs),
        job_columns=machine_jobs,
    )


MACHINE = Subject(
    environment="machine",
    baselines=("arrival", "shortest", "longest"),
    settings=lambda values: build_settings(MachineSettings, values),
    folder_name=lambda settings: f"machine-{settings.workload}",
    prepare=prepare,
    references=("optimal",),
)


def compared(*policies: str, seeds: int = 20, subject: Subject = MACHINE) -> Comparison:
    trial = subject.prepare(MachineSettings())
    episodes = run.run_episodes(trial, policies, range(seeds), 2, lambda: None)
    return compare(subject, trial, range(seeds), episodes)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`loadmaster evaluate machine` works in an empty folder; that folder."""
    monkeypatch.setattr(subjects, "find_subject", lambda name: MACHINE)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at tables alone: drawing takes a second."""
    monkeypatch.setattr(charts, "draw_all", lambda *_: None)


# Whom to compare


@pytest.mark.parametrize(
    ("policies", "against", "chosen"),
    [
        ([], None, ("arrival", "shortest", "longest")),
        ([], "all", ("arrival", "shortest", "longest")),
        (["longest"], None, ("longest",)),
        (["longest"], "all", ("longest", "arrival", "shortest")),
        (["longest", "optimal"], "shortest", ("optimal", "longest", "shortest")),
        ([], "shortest, shortest", ("shortest",)),
    ],
)
def test_who_is_compared(policies: list[str], against: str | None, chosen: tuple[str, ...]) -> None:
    assert run.choose_policies(MACHINE, policies, against) == chosen


def test_the_optimum_is_no_baseline() -> None:
    with pytest.raises(InputError, match="unknown baseline 'optimal'"):
        run.choose_policies(MACHINE, [], "optimal")


# Running


def test_threads_change_nothing_but_the_time() -> None:
    trial, seeds = prepare(MachineSettings()), range(5, 12)
    alone, many = (
        run.run_episodes(trial, MACHINE.baselines, seeds, workers, lambda: None)
        for workers in (1, 4)
    )
    for policy in MACHINE.baselines:
        for place, seed in enumerate(seeds):
            expected = machine_day(policy, seed).completion_s
            assert np.array_equal(alone[policy][place].completion_s, expected)
            assert np.array_equal(many[policy][place].completion_s, expected)


def test_episodes_really_overlap() -> None:
    both_inside = threading.Barrier(2, timeout=10)
    warmed_up: list[int] = []

    def wait_for_the_other(policy: str, seed: int) -> MachineDay:
        if warmed_up:
            both_inside.wait()
        warmed_up.append(seed)
        return machine_day(policy, seed)

    trial = replace(prepare(MachineSettings()), run=wait_for_the_other)
    ticks: list[int] = []
    run.run_episodes(trial, ["arrival"], range(5), 2, lambda: ticks.append(1))
    assert len(ticks) == 5


def test_a_fault_stops_the_rest() -> None:
    started: list[int] = []

    def refuse(policy: str, seed: int) -> MachineDay:
        started.append(seed)
        raise InputError("too large")

    trial = replace(prepare(MachineSettings()), run=refuse)
    with pytest.raises(InputError, match="too large"):
        run.run_episodes(trial, ["arrival"], range(1000), 2, lambda: None)
    assert len(started) == 1


# The verdict


def test_comparison_by_hand() -> None:
    result = compared("arrival", "longest", "shortest", seeds=12)
    days = {p: [mean_jct(p, seed) for seed in range(12)] for p in result.policies}
    assert result.policies == ("shortest", "arrival", "longest")
    assert result.best_baseline == "shortest"
    for policy, means in days.items():
        assert result.summaries[policy][0].mean == pytest.approx(np.mean(means))
        assert result.summaries[policy][0].iqm == pytest.approx(np.mean(np.sort(means)[3:9]))
    difference = result.differences["longest"]
    gaps = np.subtract(days["longest"], days["shortest"])
    assert difference.mean == pytest.approx(gaps.mean())
    assert difference.percent == pytest.approx(100 * gaps.mean() / np.mean(days["shortest"]))
    assert difference.interval.low < gaps.mean() < difference.interval.high
    assert difference.interval.excludes_zero
    assert "shortest" not in result.differences


def test_all_policies_met_the_same_jobs() -> None:
    result = compared("arrival", "longest", "shortest")
    makespans = [values[1] for values in result.values.values()]
    assert np.array_equal(makespans[0], makespans[1])
    assert np.array_equal(makespans[0], makespans[2])


def test_gap_to_the_optimum() -> None:
    result = compared("optimal", "shortest", "arrival")
    assert result.best_baseline == "shortest"
    assert result.gaps["shortest"].mean == 0
    ratio = [
        machine_day("arrival", s).completion_s.mean()
        / machine_day("optimal", s).completion_s.mean()
        for s in range(20)
    ]
    assert result.gaps["arrival"].mean == pytest.approx(100 * (np.mean(ratio) - 1))
    assert "optimal" not in result.gaps
    assert as_json(result, [])["optimality_gap_percent"]["arrival"]["mean"] > 0
    assert verdict(result).startswith("shortest is best: mean JCT ")
    assert "0.0% [0.0%, 0.0%] from optimal, arrival is " in verdict(result)


def test_more_can_be_better() -> None:
    reward = Metric("reward", "reward", "", lambda day: -float(day.completion_s.mean()), "higher")

    def rewarded(settings: MachineSettings) -> Trial:
        return replace(prepare(settings), metrics=(reward,))

    result = compared("arrival", "longest", "shortest", subject=replace(MACHINE, prepare=rewarded))
    assert result.policies == ("shortest", "arrival", "longest")
    assert result.best_baseline == "shortest"
    # Rewards are negative here: less of it is a difference below zero, in percent as well.
    assert result.differences["longest"].mean < 0
    assert result.differences["longest"].percent < 0
    assert re.search(r"arrival is \d+\.\d% behind \[\d", verdict(result))


def test_verdict_on_a_clear_lead() -> None:
    text = verdict(compared("arrival", "longest", "shortest"))
    assert re.fullmatch(
        r"shortest is best: mean JCT [\d.]+ s, arrival is [\d.]+% behind \[[\d.]+%, [\d.]+%\]\.",
        text,
    )


def test_verdict_on_a_tie() -> None:
    twins = replace(MACHINE, baselines=("shortest", "learned", "longest"))
    text = verdict(compared("shortest", "learned", "longest", seeds=3, subject=twins))
    assert "but 3 seeds do not tell it from " in text
    assert "longest" not in text


def test_verdict_on_a_newcomer() -> None:
    text = verdict(compared("learned", "arrival", "longest"))
    assert re.match(r"learned is best: .* ahead of arrival, the best baseline\.$", text)


# Oracles


def with_oracles(*names: str) -> Subject:
    def prepared(settings: MachineSettings) -> Trial:
        return replace(prepare(settings), oracles=frozenset(names))

    return replace(MACHINE, prepare=prepared)


KNOWING = with_oracles("shortest")


def test_an_oracle_is_never_the_best_baseline() -> None:
    result = compared("arrival", "longest", "shortest", "learned", subject=KNOWING)
    assert result.policies[0] == "shortest"
    assert result.best_baseline == "arrival"
    assert result.differences["shortest"].percent < 0
    record = as_json(result, [])
    assert record["oracles"] == ["shortest"]
    text = verdict(result)
    assert re.match(r"learned is best: .* ahead of arrival, the best baseline\. The best ", text)
    assert re.search(
        r"The best oracle, shortest, is at mean JCT [\d.]+ s, .*ahead of arrival\.$", text
    )


def test_an_oracle_may_fall_behind() -> None:
    text = verdict(compared("arrival", "longest", subject=with_oracles("longest")))
    assert re.match(r"arrival: mean JCT [\d.]+ s\. The best oracle, longest, is at ", text)
    assert text.endswith(" behind arrival.")


def test_oracles_alone_have_nobody_to_be_measured_against() -> None:
    result = compared("shortest", subject=KNOWING)
    assert (result.best_baseline, result.differences) == (None, {})
    assert verdict(result).startswith("shortest is an oracle: mean JCT ")
    both = with_oracles("shortest", "longest")
    text = verdict(compared("shortest", "longest", subject=both))
    assert text.startswith("shortest is best of the oracles: mean JCT ")
    text = verdict(compared("shortest", "learned", subject=KNOWING))
    assert re.fullmatch(
        r"learned: mean JCT \S+ s\. The best oracle, shortest, is at \D+[\d.]+ s\.", text
    )


def test_oracles_are_marked_in_the_table() -> None:
    lines = printed(compared("arrival", "longest", "shortest", subject=KNOWING), 200).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["shortest*", "arrival", "longest"]
    assert "best baseline" in lines[4]
    assert "* an oracle: it knows what no scheduler can, such as how long jobs will run" in lines
    plain = printed(compared("arrival", "longest", "shortest"), 200)
    assert "oracle" not in plain
    assert "*" not in plain


def many_variants(count: int) -> Subject:
    """`count` baselines of three kinds; variants of one kind do the same."""
    rules = ("arrival", "shortest", "longest")
    names = {f"{rules[place % 3]}-{place}": rules[place % 3] for place in range(count)}

    def prepared(settings: MachineSettings) -> Trial:
        return replace(
            prepare(settings),
            run=lambda policy, seed: machine_day(names[policy], seed),
            oracles=frozenset(name for name, rule in names.items() if rule == "shortest"),
        )

    return replace(MACHINE, baselines=tuple(names), prepare=prepared, families=names)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_table_has_one_line_a_policy(width: int) -> None:
    subject = many_variants(30)
    result = compared(*subject.baselines, subject=subject, seeds=4)
    lines = printed(result, width).splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    rows = [line.split()[0].rstrip("*") for line in table]
    assert rows[rows.index("policy") + 1 :] == list(result.policies)
    assert "do not tell it from arrival-3 (0.0% behind [0.0%, 0.0%]), arrival-6, " in lines[-2]
    assert "arrival-9 and 6 more. The best oracle, shortest-1, is at " in lines[-2]


def test_a_line_for_the_best_of_each_kind() -> None:
    subject = many_variants(30)
    result = compared(*subject.baselines, subject=subject, seeds=2)
    assert result.representatives == ("shortest-1", "arrival-0", "longest-2")
    few = compared(*subject.baselines[:6], subject=subject, seeds=2)
    assert few.representatives == few.policies


def test_warnings_become_one_note() -> None:
    heard: list[str] = []

    def warn() -> None:
        with run.warnings_heard() as lines:
            for job in (3, 4, 3):
                warnings.warn(f"job {job} is left out", stacklevel=1)
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        heard.extend(lines)

    with pytest.warns(DeprecationWarning, match="old"):
        warn()
    assert heard == ["warning: job 3 is left out (and 1 more such warnings)"]


def test_one_seed_promises_nothing() -> None:
    result = compared("arrival", "shortest", seeds=1)
    record = json.loads(json.dumps(as_json(result, []), allow_nan=False))
    assert record["policies"]["shortest"]["jct"]["ci95"] == [None, None]
    assert record["differences"]["arrival"]["excludes_zero"] is False
    assert verdict(result).endswith("One seed gives no interval; try --seeds 20.")


# What is printed and written


def printed(result: Comparison, width: int, terminal: bool = False) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, highlight=False)
    print_report(result, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_table_fits(width: int) -> None:
    text = printed(compared("optimal", "arrival", "longest", "shortest"), width)
    lines = text.splitlines()
    table = lines[2 : lines.index("", 2)]
    assert all(len(line) <= width for line in table)
    assert "…" not in text
    assert "\x1b" not in text
    assert lines[0] == "steady: 8 jobs, one machine; seeds 0 to 19"
    rows = [line.split()[0] for line in table if re.match(r"[a-z]", line)]
    assert rows == ["policy", "optimal", "shortest", "arrival", "longest"]
    for heading in ("mean JCT, s", "IQM", "makespan", "95%", "against"):
        assert heading in "\n".join(table[:2])
    assert ("decisions" in text) == (width >= 120)


def test_terminal_gets_wrapped_sentences_and_styles() -> None:
    text = printed(compared("arrival", "longest", "shortest"), 60, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert all(len(line) <= 60 for line in plain.splitlines())


def test_evaluate_prints_a_table_and_writes_everything(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_json_is_all_there_is_on_stdout(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seeds", "6", "--first-seed", "3", "--workload", "rush", "--set", "jobs=5"]
    assert main(["evaluate", "machine", *arguments, "--output", "out", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record) == [
        "environment",
        "workload",
        "conditions",
        "seeds",
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
    assert {Path(file).name for file in record["files"]} == PNGS | TABLES
    assert all((machine / file).is_file() for file in record["files"])
    assert json.loads((machine / "out" / "summary.json").read_text()) == record


@pytest.mark.usefixtures("no_charts")
def test_tables_hold_every_episode_and_job(machine: Path) -> None:
    assert main(["evaluate", "machine", "--seeds", "4", "--output", "out"]) == 0
    with (machine / "out" / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert len(episodes) == 3 * 4
    for row in episodes:
        day = machine_day(row["policy"], int(row["seed"]))
        assert float(row["jct"]) == day.completion_s.mean()
    with (machine / "out" / "jobs.csv").open() as file:
        jobs = list(csv.DictReader(file))
    assert len(jobs) == 3 * 4 * 8
    mine = [row for row in jobs if row["policy"] == "longest" and row["seed"] == "2"]
    assert [float(row["jct_s"]) for row in mine] == list(machine_day("longest", 2).completion_s)
    with (machine / "out" / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3 * len(METRICS)


@pytest.mark.usefixtures("no_charts")
def test_same_command_same_figures(machine: Path) -> None:
    for folder in ("one", "two"):
        assert main(["evaluate", "machine", "--seeds", "5", "--output", folder]) == 0
    for name in ("episodes.csv", "jobs.csv", "summary.csv"):
        assert (machine / "one" / name).read_bytes() == (machine / "two" / name).read_bytes()


def test_a_folder_keeps_what_is_not_ours(machine: Path) -> None:
    (machine / "out").mkdir()
    (machine / "out" / "notes.txt").write_text("mine")
    (machine / "out" / "summary.csv").write_text("old")
    assert main(["evaluate", "machine", "--seeds", "2", "--output", "out"]) == 0
    assert {file.name for file in (machine / "out").iterdir()} == PNGS | TABLES | {"notes.txt"}
    assert (machine / "out" / "summary.csv").read_text().startswith("policy,metric,")


@pytest.mark.parametrize("before", [False, True])
def test_a_fault_leaves_nothing_behind(tmp_path: Path, before: bool) -> None:
    folder = tmp_path / "deep" / "out"
    if before:
        folder.mkdir(parents=True)
        (folder / "summary.csv").write_text("old")

    def write_and_fail() -> None:
        with files.written_at_once(folder) as scratch:
            (scratch / "summary.csv").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_text() for path in left] == (["old"] if before else [])
    assert before or list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error")
def test_charts_of_odd_results(tmp_path: Path) -> None:
    """One job, one seed, one policy; and jobs that the horizon cut off, all of one policy's."""
    single = compared("arrival", seeds=1)
    day = machine_day("arrival", 0, jobs=1)
    one_job = pd.DataFrame({"policy": "arrival", "seed": 0, **machine_jobs(day)})
    charts.draw_all(single, one_job, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == PNGS
    two = compared("arrival", "shortest", seeds=2)
    jobs = pd.concat(
        pd.DataFrame({"policy": policy, "seed": seed, **machine_jobs(machine_day(policy, seed))})
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


# Bad input: one line, exit code 2, nothing run and nothing written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "shortst"], "unknown policy 'shortst'; did you mean 'shortest'?"),
        (["--against", "arival"], "unknown baseline 'arival'; did you mean 'arrival'?"),
        (["--against", "shortest,"], "unknown baseline ''; expected one of: "),
        (["--seeds", "0"], "--seeds is 0; expected 1 or more"),
        (["--seeds", "-3"], "--seeds is -3; expected 1 or more"),
        (["--seeds", "many"], "Invalid value for '--seeds'"),
        (["--first-seed", "-1"], "--first-seed is -1; expected 0 or more"),
        (["--workers", "0"], "--workers is 0; expected 1 or more"),
        (["--set", "jobs"], "--set 'jobs' is malformed; expected key=value"),
        (["--set", "job=3"], "unknown setting 'job'; did you mean 'jobs'?"),
        (["--set", "jobs=three"], "setting jobs: "),
        (["--workload", "a", "--set", "workload=b"], "disagree; expected one of the two"),
        (
            ["--output", "file/below"],
            "--output 'file/below': file is a file, not a folder",
        ),
        (["--output", "file"], "cannot write to --output 'file': file is a file, not a folder"),
        (["--output", "/proc/loadmaster/out"], "cannot write to --output '/proc/loadmaster/out'"),
    ],
)
def test_bad_input(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (machine / "file").write_text("in the way")
    monkeypatch.setattr(run, "run_episodes", _must_not_run)
    assert main(["evaluate", "machine", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert message in shown.err
    assert [path.name for path in machine.rglob("*")] == ["file"]


_must_not_run: Callable[..., None] = lambda *_: pytest.fail("episodes ran on bad input")  # noqa: E731
