"""`evaluate --matrix` and `calibrate --matrix`: outcomes, files, kept settings, bad files."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.platform.evaluation import adapters, calibration, charts, matrix, matrix_files
from loadmaster.platform.evaluation.matrix_charts import draw_matrix
from loadmaster.platform.evaluation.matrix_file import missing_traces, read_matrix, reads_traces
from loadmaster.platform.evaluation.statistics import paired_difference, summarise
from tests.platform.cli.one_line import Cli, Patch
from tests.platform.evaluation import machine as example
from tests.platform.evaluation.machine import MACHINE, machine_episode

FILE = """
environment: machine
seeds: 6
first_seed: 30
base: {workload: rush}
settings:
  - {name: few, group: small, set: {jobs: 4}}
  - {name: some, group: small, set: {jobs: 8}, seeds: 5}
  - {name: many, set: {jobs: 16}}
"""
COMMAND = "evaluate machine --matrix m.yaml --policy shortest --output out"
Count = Callable[[], list[int]]


@pytest.fixture
def machine(monkeypatch: Patch, here: Path) -> Path:
    """Make `loadmaster evaluate machine --matrix m.yaml` work, without charts."""
    monkeypatch.setattr(adapters, "find_adapter", lambda name: MACHINE)
    monkeypatch.setattr(charts, "save", lambda path, draw: None)
    (here / "m.yaml").write_text(FILE)
    return here


@pytest.fixture
def episodes_run(monkeypatch: Patch) -> Count:
    """Count the episodes of every call of `run_episodes` since the last look."""
    counts: list[int] = []
    run = adapters.run_episodes

    def counted(setup: Any, learned: Any, policies: Any, seeds: Any, *more: Any) -> Any:
        counts.append(len(policies) * len(seeds))
        return run(setup, learned, policies, seeds, *more)

    def look() -> list[int]:
        found = counts.copy()
        counts.clear()
        return found

    monkeypatch.setattr(adapters, "run_episodes", counted)
    return look


def jct(policy: str, jobs: int, seeds: range) -> Any:
    return np.array([machine_episode(policy, seed, jobs).completion_s.mean() for seed in seeds])


def test_figures_by_hand(machine: Path, cli: Cli) -> None:
    record = cli.json(COMMAND)
    expected = []
    for name, jobs, seeds in (("few", 4, 6), ("some", 8, 5), ("many", 16, 6)):
        row, drawn = record["settings"][name], range(30, 30 + seeds)
        ours, rivals = jct("shortest", jobs, drawn), ("arrival", "longest")
        rule = min(rivals, key=lambda one, j=jobs, d=drawn: float(jct(one, j, d).mean()))
        difference = paired_difference(ours, jct(rule, jobs, drawn))
        expected.append(difference.percent)
        assert (row["policy"], row["best_rule"], row["outcome"]) == ("shortest", rule, "win")
        assert row["difference"]["percent"] == pytest.approx(difference.percent, abs=1e-6)
        assert row["difference"]["percent_ci95"][1] < 0
        assert row["policies"]["shortest"]["mean"] == pytest.approx(ours.mean(), abs=1e-6)
        assert row["settings"] == {"workload": "rush"} | ({} if jobs == 8 else {"jobs": jobs})
        assert (row["first_seed"], row["seeds"]) == (30, seeds)
    overall, summary = summarise(np.array(expected)), record["summary"]
    assert (summary["win"], summary["tie"], summary["loss"]) == (3, 0, 0)
    assert summary["difference"]["mean"] == pytest.approx(overall.mean, abs=1e-6)
    assert summary["difference"]["ci95"][0] == pytest.approx(overall.interval.low, abs=1e-6)
    assert sum(summary["best_rules"].values()) == 3
    assert record["groups"]["small"]["win"] == 2
    assert json.loads((machine / "out" / "matrix.json").read_text()) == record


def test_tables(machine: Path, cli: Cli) -> None:
    shown = cli(COMMAND)
    assert "3 wins, 0 ties, 0 losses" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines()[3:6]] == ["few", "some", "many"]
    assert len(shown.err.splitlines()) == 3
    table = pd.read_csv(machine / "out" / "matrix.csv")
    assert len(table) == 3 * 3
    judged = table[table.outcome.notna()]
    assert list(judged.setting) == ["few", "some", "many"]
    assert set(judged.policy) == {"shortest"}
    assert table[table.best_rule].difference.isna().all()
    episodes = pd.read_csv(machine / "out" / "episodes.csv")
    assert len(episodes) == 3 * (6 + 5 + 6)
    own = episodes[(episodes.setting == "many") & (episodes.policy == "longest")]
    assert list(own.jct) == list(jct("longest", 16, range(30, 36)))


@pytest.mark.parametrize(
    ("policy", "changes", "outcome"),
    [
        ("shortest", {}, "win"),
        ("longest", {}, "loss"),
        ("arrival", {"oracles": frozenset({"shortest"})}, "win"),
        ("shortest", {"metrics": example.METRICS[1:]}, "tie"),  # of the makespan
    ],
)
def test_outcome(
    policy: str, changes: Any, outcome: str, machine: Path, cli: Cli, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(adapters, "find_adapter", lambda name: example.varied(**changes))
    record = cli.json(COMMAND.replace("shortest", policy))
    assert {row["outcome"] for row in record["settings"].values()} == {outcome}
    rules = {row["best_rule"] for row in record["settings"].values()}
    assert not rules & {policy, *changes.get("oracles", ())}


def test_best_oracle_is_compared_with_the_best_rule(
    machine: Path, cli: Cli, monkeypatch: Patch
) -> None:
    assert cli.json(COMMAND)["summary"]["oracle"] is None
    adapter = example.varied(oracles=frozenset({"shortest"}))
    monkeypatch.setattr(adapters, "find_adapter", lambda name: adapter)
    command = COMMAND.replace("shortest", "arrival")
    record, expected = cli.json(command), []
    for name, jobs, seeds in (("few", 4, 6), ("some", 8, 5), ("many", 16, 6)):
        row, drawn = record["settings"][name], range(30, 30 + seeds)
        rule, oracle = jct("longest", jobs, drawn), jct("shortest", jobs, drawn)
        expected.append(paired_difference(oracle, rule).percent)
        assert (row["best_oracle"], row["best_rule"]) == ("shortest", "longest")
        assert row["oracle_difference"]["percent"] == pytest.approx(expected[-1], abs=1e-6)
    assert record["summary"]["oracle"]["mean"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert f"{np.mean(expected):+.1f}%" in cli(command).out.split("Best oracle")[1]


SELECTING = FILE.replace("base:", "select: {first_seed: 70, seeds: 4}\nbase:")


def test_best_rule_is_chosen_on_other_sequences(
    machine: Path, cli: Cli, episodes_run: Count
) -> None:
    (machine / "m.yaml").write_text(SELECTING)
    record = cli.json(COMMAND)
    assert episodes_run() == [8, 18, 8, 15, 8, 18]
    for name, jobs, seeds in (("few", 4, 6), ("some", 8, 5), ("many", 16, 6)):
        row, rules = record["settings"][name], ("arrival", "longest")
        for key, drawn in (
            ("best_rule", range(70, 74)),
            ("best_rule_in_hindsight", range(30, 30 + seeds)),
        ):
            means = {rule: float(jct(rule, jobs, drawn).mean()) for rule in rules}
            assert row[key] == min(means, key=means.__getitem__)
        judged = range(30, 30 + seeds)
        expected = paired_difference(
            jct("shortest", jobs, judged), jct(row["best_rule"], jobs, judged)
        )
        assert row["difference"]["percent"] == pytest.approx(expected.percent, abs=1e-6)
        assert (row["first_selection_seed"], row["selection_seeds"]) == (70, 4)
    assert sum(record["hindsight"]["best_rules"].values()) == 3
    assert "Against the rule that is best on the judged sequences" in cli(COMMAND).out
    assert episodes_run() == []
    cli(f"{COMMAND} --seeds 2")
    assert episodes_run() == [4, 6] * 3


def test_rules_that_change_places_on_the_judged_sequences(
    machine: Path, cli: Cli, monkeypatch: Patch
) -> None:
    """The rule of the selection counts, though another one is ahead where it is judged."""

    def alternating(policy: str, seed: int, jobs: int) -> Any:
        swapped = {"arrival": "longest", "longest": "arrival"} if seed < 50 else {}
        return machine_episode(swapped.get(policy, policy), seed, jobs)

    monkeypatch.setattr(example, "machine_episode", alternating)
    (machine / "m.yaml").write_text(SELECTING)
    record = cli.json(COMMAND)
    for row in record["settings"].values():
        assert row["best_rule"] != row["best_rule_in_hindsight"]
    best = record["summary"]["difference"]["mean"], record["hindsight"]["difference"]["mean"]
    assert best[0] < best[1] < 0


def test_higher_can_be_better(machine: Path, cli: Cli, monkeypatch: Patch) -> None:
    reward = example.Metric(
        "reward", "reward", "", lambda e: -float(e.completion_s.mean()),
        better="higher", relative=False,
    )  # fmt: skip
    adapter = example.varied(metrics=(reward,))
    monkeypatch.setattr(adapters, "find_adapter", lambda name: adapter)
    record = cli.json(COMMAND)
    assert record["summary"]["win"] == 3
    assert record["summary"]["difference"]["mean"] > 0


def test_finished_settings_are_kept(machine: Path, cli: Cli, episodes_run: Count) -> None:
    first = cli.json(COMMAND)
    assert episodes_run() == [18, 15, 18]
    assert cli.json(COMMAND) == first
    assert episodes_run() == []
    (machine / "m.yaml").write_text(FILE.replace("jobs: 8", "jobs: 9"))
    cli(COMMAND)
    assert episodes_run() == [15]
    kept = machine / "out" / "settings" / "many.json"
    kept.write_text(kept.read_text()[:-100])
    cli(COMMAND)
    assert episodes_run() == [18]
    cli(f"{COMMAND} --seeds 3")
    assert episodes_run() == [9, 9, 9]
    cli(f"{COMMAND} --seeds 3 --against arrival")
    assert episodes_run() == [6, 6, 6]


def test_it_continues_after_an_interruption(
    machine: Path, cli: Cli, monkeypatch: Patch, episodes_run: Count
) -> None:
    prepare = MACHINE.prepare

    def interrupted(settings: Any) -> Any:
        if settings.jobs == 16:
            raise KeyboardInterrupt
        return prepare(settings)

    with monkeypatch.context() as patch:
        adapter = example.replace(MACHINE, prepare=interrupted)
        patch.setattr(adapters, "find_adapter", lambda name: adapter)
        cli(COMMAND, code=130)
    assert episodes_run() == [18, 15]
    assert [file.name for file in (machine / "out").iterdir()] == ["settings"]
    cli(COMMAND)
    assert episodes_run() == [18]
    assert (machine / "out" / "matrix.csv").is_file()


def test_setting_without_traces_is_not_run(machine: Path, cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        matrix, "missing_traces", lambda _, settings: "no traces" * (settings.jobs == 8)
    )
    shown = cli(COMMAND)
    assert "2/3 some: not run: no traces" in shown.err.splitlines()
    assert "Not run: 1 (some)" in shown.out
    record = cli.json(COMMAND)
    assert (list(record["settings"]), record["not_run"]) == (["few", "many"], {"some": "no traces"})


def test_traces_that_are_missing(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    toy, tpch = DagSchedulingSettings(workload="toy"), DagSchedulingSettings(workload="tpch")
    assert (reads_traces("dag_scheduling", toy), reads_traces("dag_scheduling", tpch)) == (0, 1)
    assert missing_traces("dag_scheduling", toy) == ""
    assert "LOADMASTER_DATA" in missing_traces("dag_scheduling", tpch)
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    assert str(tmp_path) in missing_traces("dag_scheduling", tpch)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("settings: [", "m.yaml:1: not YAML"),
        ("environment: machine", "m.yaml:1: settings: missing"),
        ("environment: machine\nsettings: []", "m.yaml:2: settings: "),
        (FILE.replace("seeds: 6", "seed: 6"), "m.yaml:3: unknown key 'seed'; did you mean 'seeds'"),
        (FILE.replace("group: small,", "goup: a,", 1), "m.yaml:7: unknown key 'goup'"),
        (FILE.replace("name: some, ", ""), "m.yaml:8: settings.1.name: missing"),
        (FILE.replace("name: some", "name: few"), "m.yaml:8: the name 'few' is given twice"),
        (FILE.replace("name: some", "name: a/b"), "m.yaml:8: settings.1.name: "),
        (FILE.replace("jobs: 8", "jobs: eight"), "m.yaml:8: some: setting jobs: "),
        (FILE.replace("jobs: 8", "job: 8"), "m.yaml:8: some: unknown setting 'job'"),
        (FILE.replace("seeds: 5", "seeds: 0"), "m.yaml:8: settings.1.seeds: "),
        (FILE.replace(": machine", ": toaster"), "m.yaml:2: environment: 'toaster'"),
        (SELECTING.replace("70", "34"), "m.yaml:5: select: the best rule is chosen on sequences"),
        (SELECTING.replace("first_seed: 70, ", ""), "m.yaml:5: select.first_seed: missing"),
        (SELECTING.replace("seeds: 4}", "sees: 4}"), "m.yaml:5: unknown key 'sees'"),
    ],
)
def test_bad_file_is_one_line(text: str, words: str, machine: Path, cli: Cli) -> None:
    (machine / "m.yaml").write_text(text)
    assert words in cli.error(COMMAND)
    assert [path.name for path in machine.iterdir()] == ["m.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--matrix m.yaml", "expected --policy"),
        ("--matrix m.yaml --policy shortest --policy longest", "one --policy at most"),
        ("--matrix m.yaml --policy shortest --explain 2", "--explain"),
        ("--matrix m.yaml --policy shortest --against shortest", "m.yaml:7: few: no rule beside"),
        ("--matrix m.yaml --policy shortest --seeds 0", "--seeds is 0"),
        ("--matrix m.yaml --policy shortest --set job=3", "unknown setting 'job'"),
        ("--matrix none.yaml --policy shortest", "none.yaml"),
        ("--matrix shipped --policy shortest", "no matrix ships for machine"),
    ],
)
def test_bad_options_are_one_line(arguments: str, words: str, machine: Path, cli: Cli) -> None:
    assert words in cli.error(f"evaluate machine {arguments}")
    assert [path.name for path in machine.iterdir()] == ["m.yaml"]


@pytest.mark.slow
def test_chart(machine: Path, cli: Cli, monkeypatch: Patch) -> None:
    """Also of one seed, which has no interval."""
    monkeypatch.undo()
    monkeypatch.chdir(machine)
    monkeypatch.setattr(adapters, "find_adapter", lambda name: MACHINE)
    drawn = []
    monkeypatch.setattr(
        "loadmaster.platform.evaluation.matrix_charts.draw_matrix",
        lambda *given: drawn.append(draw_matrix(*given)) or drawn[-1],
    )
    for seeds in (6, 1):
        cli(f"{COMMAND} --seeds {seeds}")
        assert (machine / "out" / "matrix.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        labels = [tick.get_text() for tick in drawn[-1].axes[0].get_yticklabels()]
        assert labels == ["few", "some", "many", "mean of all settings"]


def test_nothing_ran(machine: Path, cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setattr(matrix, "missing_traces", lambda *_: "no traces")
    record = cli.json(COMMAND)
    assert (record["settings"], record["summary"]) == ({}, None)
    assert {Path(file).name for file in record["files"]} == {matrix_files.MATRIX_JSON}
    assert "Not run: 3" in cli(COMMAND).out


NAMED = {  # settings that the shipped matrices must hold
    "dag_scheduling": [
        *({"arrivals": "batch", "jobs": jobs} for jobs in (1, 5, 20, 50, 100)),
        *({"arrivals": "poisson", "interarrival_s": gap} for gap in (15, 20, 25, 35, 50)),
        *({"arrivals": "poisson", "load": load} for load in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)),
        *({"arrivals": "poisson", "executors": count} for count in (5, 10, 20, 100, 200)),
        *({"workload": name, "arrivals": "batch"} for name in ("alibaba", "tpch")),
        *({"workload": name, "arrivals": "poisson"} for name in ("alibaba", "tpch")),
        {"objective": "makespan"},
        {"estimates": "missing"},
        {"moving_delay_s": 0},
    ],
    "gpu_scheduling": [
        *({"workload": "pai-like", "cluster": name} for name in ("small", "medium", "large")),
        *({"workload": "pai", "cluster": name} for name in ("small", "medium", "large")),
        *({"workload": "philly", "cluster": name} for name in ("medium", "large")),
        {"workload": "openb"},
        *({"load": load} for load in (0.3, 0.6, 0.9, 1.2, 1.5)),
        {"load": 1.5, "jobs": 800},
        {"interference": False},
        {"stragglers": 0},
        {"arrivals": "trace"},
    ],
}


@pytest.mark.parametrize(("environment", "least"), [("dag_scheduling", 20), ("gpu_scheduling", 15)])
def test_shipped_matrix(environment: str, least: int) -> None:
    adapter = adapters.find_adapter(environment)
    shipped = read_matrix(Path("shipped"), environment, adapter.settings)
    assert len(shipped.entries) >= least
    assert {entry.seeds[0] for entry in shipped.entries} == {800_000}
    assert {entry.selection[0] for entry in shipped.entries} == {850_000}
    for named in NAMED[environment]:
        assert any(
            all(getattr(entry.settings, key) == value for key, value in named.items())
            for entry in shipped.entries
        ), named
    assert all(entry.group for entry in shipped.entries)
    assert len({entry.settings for entry in shipped.entries}) == len(shipped.entries)


def test_example_in_docs_is_valid(root: Path, tmp_path: Path) -> None:
    page = (root / "docs" / "evaluation.md").read_text()
    (example_file,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "example.yaml").write_text(example_file)
    environment = yaml.safe_load(example_file)["environment"]
    adapter = adapters.find_adapter(environment)
    assert read_matrix(tmp_path / "example.yaml", environment, adapter.settings).entries


TUNED = """
environment: dag_scheduling
settings:
  - {name: batch, set: {workload: toy, jobs: 3}}
  - {name: slower, set: {workload: toy, jobs: 3, warmup_s: 5}}
  - {name: recorded, set: {workload: tpch}}
  - {name: stream, set: {workload: toy, arrivals: poisson}}
"""


@pytest.fixture
def tuning(here: Path, monkeypatch: Patch) -> list[str]:
    """Replace the search by its first candidate; return the conditions that were tuned for."""
    tuned: list[str] = []

    def first(name: str, problem: Any, seeds: int, *_: Any) -> Any:
        tuned.append(problem.conditions)
        candidate = problem.candidates(name)[0]
        return problem.entry(candidate, 1.0, range(seeds)), [(1.0, candidate)]

    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    monkeypatch.setattr(calibration, "calibrate", first)
    (here / "m.yaml").write_text(TUNED)
    return tuned


def test_calibrate_writes_after_each_setting(
    tuning: list[str], here: Path, cli: Cli, monkeypatch: Patch
) -> None:
    line = "calibrate dag_scheduling --matrix m.yaml --policy weighted-fair --output kept.json"
    shown = cli(line)
    assert len(tuning) == 2
    assert shown.err.splitlines()[0] == "slower: weighted-fair shares its entry with batch"
    assert shown.err.splitlines()[1].startswith("recorded: not tuned: ")
    entries = json.loads((here / "kept.json").read_text())
    assert [entry["conditions"]["arrivals"] for entry in entries] == ["batch", "poisson"]
    assert len(cli.json(line)["calibrations"]) == 2
    (here / "kept.json").unlink()
    stub = calibration.calibrate

    def interrupted(name: str, problem: Any, *more: Any) -> Any:
        if tuning[-1:] == ["toy, load 0"]:
            raise KeyboardInterrupt
        return stub(name, problem, *more)

    monkeypatch.setattr(calibration, "calibrate", interrupted)
    cli(line, code=130)
    (entry,) = json.loads((here / "kept.json").read_text())
    assert entry["conditions"]["arrivals"] == "batch"


@pytest.mark.usefixtures("tuning")
def test_calibrate_refuses_bad_files(here: Path, cli: Cli) -> None:
    assert "--each" in cli.error("calibrate pod_scaling --matrix m.yaml --each --output kept.json")
    words = cli.error("calibrate stream_scaling --matrix m.yaml --output kept.json")
    assert "expected 'stream_scaling'" in words
    (here / "m.yaml").write_text(TUNED.replace("warmup_s: 5", "warmup_s: -1"))
    assert "m.yaml:5: slower: " in cli.error("calibrate dag_scheduling --matrix m.yaml")
    assert [path.name for path in here.iterdir()] == ["m.yaml"]


@pytest.mark.slow
def test_pretrained_policy_is_judged(here: Path, cli: Cli) -> None:
    (here / "m.yaml").write_text(
        "environment: dag_scheduling\nseeds: 2\nsettings: [{name: toy, set: {workload: toy}}]\n"
    )
    record = cli.json("evaluate decima --matrix m.yaml --against fair,fifo --output out")
    row = record["settings"]["toy"]
    assert row["policy"].startswith("decima")
    assert row["learned"]["system"] == "decima"
    assert row["best_rule"] in ("fair", "fifo")
    assert set(row["secondary"]) == {"makespan"}
