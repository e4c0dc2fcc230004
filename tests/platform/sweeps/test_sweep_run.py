"""Sweeps on Ray: schedulers, failures, Ctrl-C, and files."""

import json
import math
import os
import re
import signal
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import typer
from rich.console import Console

from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli import tune
from loadmaster.platform.sweeps import run
from loadmaster.platform.sweeps.file import load_sweep
from loadmaster.platform.sweeps.folder import SweepFolder
from loadmaster.platform.sweeps.records import Outcome, Record, TrialDisplay, best_of, trial_table
from loadmaster.platform.sweeps.settings import Sweep
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.run_folder import read_config
from tests.platform.cli.one_line import Captured, Cli, Patch
from tests.platform.sweeps.example_system import TRAINER, ExampleTraining

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

SweepFile = Callable[[str], Path]
LoadSweep = Callable[[str], Sweep]

OVER = {"finished", "stopped"}
RATE = "training.learning_rate.last"
QUICK = "base: {validation.every: 2, rollouts.workers: 0}\n"
ASHA = f"""{QUICK}
space: {{training.learning_rate.last: {{loguniform: [1e-3, 0.5]}}}}
trials: 6
scheduler: {{asha: {{grace_iterations: 2, reduction: 2}}}}
stop: {{iterations: 8}}
"""


def silent(sweep: Sweep) -> TrialDisplay:
    return TrialDisplay(sweep, Console(file=StringIO(), width=200))


def start(path: Path) -> tuple[Sweep, Outcome]:
    """Run the sweep in a file from its beginning to its end."""
    sweep = load_sweep(path)
    folder = SweepFolder.create(path.parent / "out", sweep, {"command": "loadmaster tune hill"})
    return sweep, run.run_sweep(sweep, folder, silent(sweep), TRAINER)


def report_data(folder: Path) -> Any:
    """The data in a sweep's report."""
    page = (folder / "report.html").read_text()
    (data,) = re.findall(r'<script id="sweep-data" type="application/json">(.*?)</script>', page)
    return json.loads(data)


@pytest.fixture
def by_example(monkeypatch: Patch, example: None) -> None:
    """The command line trains the example system with its own trainer."""
    monkeypatch.setattr(run, "run_sweep", partial(run.run_sweep, trainer_at=TRAINER))


def test_asha_stops_some_and_finds_the_best(
    sweep_file: SweepFile, by_example: None, capfd: Captured
) -> None:
    path = sweep_file(ASHA)
    out = path.parent / "out"
    options = f"--trials 5 --set environment.start=20 --output {out} --json"
    shown, printed = Cli(capfd)(f"tune {path} {options}")
    found = json.loads(shown)  # Tune printed nothing
    assert (found["system"], found["folder"], found["interrupted"]) == ("example", str(out), False)
    trials, best = found["trials"], found["best"]
    names = [trial["name"] for trial in trials]
    assert names == [f"trial-{n:03d}" for n in range(1, 6)]
    assert {trial["state"] for trial in trials} == OVER
    # x shrinks by 1 - 2 rate an iteration: the nearer the rate is to a half, the better.
    rate = best["parameters"][RATE]
    assert rate == max(trial["parameters"][RATE] for trial in trials)
    assert best["value"] == pytest.approx(20 * (1 - 2 * rate) ** 8)
    assert (best["iterations"], best["state"]) == (8, "finished")
    assert f"{best['name']}: started with {RATE}={rate:.4g}\n" in printed
    assert all(line.startswith("trial-") for line in printed.splitlines())
    assert (out / "ray.log").exists()  # the output of Ray

    table = pd.read_csv(out / "trials.csv", index_col="trial")
    assert list(table.index) == names
    row = table.loc[best["name"]]
    assert (row[RATE], row["state"], row["iterations"]) == (rate, "finished", 8)
    assert row["validation"] == pytest.approx(best["value"], rel=1e-5)
    manifest = json.loads((out / "sweep.json").read_text())
    assert {"revision", "machine", "versions", "set", "trials"} <= set(manifest)
    assert f"# Found:   {manifest['command']}\n" in (out / "best.yaml").read_text()
    config = build_settings(ExampleTraining, read_config(out / "best.yaml"))
    assert config == load_sweep(path, ["environment.start=20"]).space.config({RATE: rate})

    shown = Cli(capfd)(f"tune --resume {out}").out  # finished: reported again, nothing trained
    assert f"Best: {best['name']}, validation {best['value']:.5g}" in shown
    assert f"loadmaster train example --config {out / 'best.yaml'}" in shown


def test_interrupted_sweep_resumes(
    sweep_file: SweepFile, by_example: None, capfd: Captured, monkeypatch: Patch
) -> None:
    update, handler = TrialDisplay.update, signal.getsignal(signal.SIGINT)

    def update_and_press(display: TrialDisplay, records: Sequence[Record]) -> None:
        """Ctrl-C, once, when two trials have reported."""
        update(display, records)
        if sum(record.iterations > 0 for record in records) >= 2:
            monkeypatch.setattr(TrialDisplay, "update", update)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrialDisplay, "update", update_and_press)
    path = sweep_file(ASHA.replace("rollouts", "environment.pause_s: 0.02, rollouts"))
    out = path.parent / "out"
    shown, printed = Cli(capfd)(f"tune {path} --output {out} --json", 130)
    before = {trial["name"]: trial for trial in json.loads(shown)["trials"]}
    assert "stopping; Ctrl-C again to leave at once\n" in printed
    assert f"go on with: loadmaster tune --resume {out}\n" in printed
    assert {"running", "waiting"} & {trial["state"] for trial in before.values()}
    assert signal.getsignal(signal.SIGINT) is handler, "Tune's handler was left behind"

    def states() -> dict[str, str]:
        return {trial["name"]: trial["state"] for trial in report_data(out)["trials"]}

    assert states() == {name: trial["state"] for name, trial in before.items()}
    assert Cli(capfd).json(f"tune --report {out}") == {"report": str(out / "report.html")}
    for name, state in states().items():  # Tune's state has no running trials
        assert state == before[name]["state"] or state in ("unfinished", "waiting")

    found = Cli(capfd).json(f"tune --resume {out}")
    after = {trial["name"]: trial for trial in found["trials"]}
    assert [trial["state"] in OVER for trial in after.values()] == [True] * 6
    for name, trial in before.items():
        assert after[name]["parameters"] == trial["parameters"]
        assert trial["state"] not in OVER or after[name] == trial  # no trial ran twice
    assert found["best"]["iterations"] == 8


@pytest.mark.parametrize("begun", [False, True])
def test_interrupt_removes_a_sweep_without_state(
    begun: bool, sweep_file: SweepFile, cli: Cli, monkeypatch: Patch
) -> None:
    path = sweep_file(ASHA)
    out = path.parent / "new" / "folder" / "out"

    def stop(sweep: Sweep, folder: SweepFolder, display: TrialDisplay) -> Outcome:
        if begun:
            folder.tune.mkdir()
            (folder.tune / "experiment_state-1.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_sweep", stop)
    advice = f"go on with: loadmaster tune --resume {out}\n" if begun else ""
    assert cli(f"tune {path} --output {out}", 130).err == f"{advice}interrupted\n"
    assert out.exists() == begun
    assert begun or list(path.parent.iterdir()) == [path]


def test_unexpected_error_names_the_log(
    sweep_file: SweepFile, monkeypatch: Patch, here: Path, cli: Cli
) -> None:
    monkeypatch.setattr(run, "run_sweep", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as fault:
        cli(f"tune {sweep_file(ASHA)} --output out")
    assert fault.value.__notes__ == ["Ray's output is in out/ray.log"]


def test_asha_rungs_survive_a_resume(load: LoadSweep) -> None:
    sweep = load(ASHA)
    first, second = run.scheduler_of(sweep), run.scheduler_of(sweep)
    early, late = SimpleNamespace(trial_id="early"), SimpleNamespace(trial_id="late")
    for scheduler in (first, second):
        scheduler.set_search_properties("validation", "min")
    first.on_trial_add(None, early)
    reached = {"iteration": 2, "validation": 1.0}
    assert first.on_trial_result(None, early, reached) == "CONTINUE"
    state = run.TrialMonitor(sweep, first, silent(sweep)).get_state()
    run.TrialMonitor(sweep, second, silent(sweep)).set_state(state or {})
    second.on_trial_add(None, late)
    assert second.on_trial_result(None, late, {**reached, "validation": 5.0}) == "STOP"


@pytest.mark.long
def test_trials_that_crash_fail_or_diverge(sweep_file: SweepFile, tmp_path: Path) -> None:
    path = sweep_file(f"""
base:
  validation.every: 1
  rollouts.workers: 0
  environment: {{crash_at: 3, folder: {tmp_path}}}
space:
  training.learning_rate.last: {{choice: [0.1, 300, 0.2]}}
  environment.forbidden: {{choice: [true, false, false]}}
trials: 3
searcher: {{random: {{seed: 1}}}}  # which draws one of each kind
stop: {{iterations: 5}}
""")
    sweep, outcome = start(path)
    by_state = {record.state: record for record in outcome.records}
    failed, diverged, finished = (by_state[s] for s in ("failed", "diverged", "finished"))
    assert (tmp_path / "crashed").exists()  # a process died, and its trial continued in another
    assert failed.parameters["environment.forbidden"] is True
    assert failed.fault == "this hill is closed; expected another"
    assert diverged.parameters[RATE] == 300
    assert diverged.iterations < 5
    assert best_of(outcome.records, sweep) is finished
    assert finished.value == pytest.approx(10 * (1 - 2 * finished.parameters[RATE]) ** 5)


STALLED = "no report for 0.08 minutes (stop.stall_minutes), after iteration"
FAILURES = {  # state, iterations, and the end of the reason
    "none": ("finished", 5, ""),
    "exit": ("failed", 2, "End of file."),
    "hang": ("hung", 2, f"{STALLED} 2"),
    "hang at once": ("hung", 0, f"{STALLED} 0"),
}
FAULTY = """
base: {validation.every: 1, rollouts.workers: 0}
space: {environment.failure: {choice: [none, exit, hang, hang at once]}}
trials: 4
searcher: {random: {seed: 31}}  # which draws each, and first those that hang
stop: {iterations: 5, stall_minutes: 0.08}
"""


@pytest.mark.long
def test_command_names_trials_that_crash_or_hang(
    sweep_file: SweepFile, by_example: None, capfd: Captured
) -> None:
    path = sweep_file(FAULTY)
    out = path.parent / "out"
    shown, printed = Cli(capfd)(f"tune {path} --output {out} --json", tune.TRIALS_FAILED)
    found = json.loads(shown[shown.index('{\n  "sweep"') :])  # Ray of the tests prints before it
    trials = {trial["parameters"]["environment.failure"]: trial for trial in found["trials"]}
    for failure, (state, iterations, reason) in FAILURES.items():
        trial = trials[failure]
        assert (trial["state"], trial["iterations"]) == (state, iterations)
        assert trial["fault"].endswith(reason)
        named = f"{trial['name']}: {state}: {trial['fault']}; with environment.failure={failure}\n"
        assert (named in printed) == (failure != "none")
    assert found["best"]["name"] == trials["none"]["name"]
    table = pd.read_csv(out / "trials.csv", index_col="trial", keep_default_na=False)
    assert {name: row["fault"] for name, row in table.iterrows()} == {
        trial["name"]: trial["fault"] for trial in trials.values()
    }
    written = report_data(out)
    assert found["report"] == str(out / "report.html")
    Cli(capfd)(f"tune --resume {out}", tune.TRIALS_FAILED)  # nothing runs again
    resumed = report_data(out)
    Cli(capfd)(f"tune --report {out}")
    for pages in zip(
        *(page["trials"] for page in (written, resumed, report_data(out))), strict=True
    ):
        assert pages[0] == pages[1] == pages[2]
    assert [trial["fault"] for trial in written["trials"]] == list(table["fault"])
    assert [len(trial["curve"]) for trial in written["trials"]] == list(table["iterations"])


def test_pbt_copies_the_best_trial(sweep_file: SweepFile) -> None:
    path = sweep_file("""
base: {validation.every: 1, rollouts.workers: 0}
space: {training.learning_rate.last: {choice: [1e-5, 0.3]}}
trials: 2
searcher: {random: {seed: 2}}  # which draws one of each
scheduler: {pbt: {every_iterations: 2, quantile: 0.5, resample: 0}}
resources: {cpus_per_trial: 2}  # of two: they take turns
stop: {iterations: 12}
""")
    _, outcome = start(path)
    # The slow one alone would still be at 10: it went on from a copy of the other.
    assert [(record.value or 10) < 5 for record in outcome.records] == [True, True]
    assert [record.iterations for record in outcome.records] == [12, 12]


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_optuna_draws_valid_values(sweep_file: SweepFile) -> None:
    path = sweep_file(f"""{QUICK}
space:
  training.learning_rate: {{choice: [{{last: 0.1}}, {{first: 1, last: 0.3}}]}}
  training.clip: {{loguniform: [0.1, 1]}}
  rollouts.per_sequence: {{quniform: [2, 6, 2]}}
  training.epochs: {{randint: [1, 3]}}
trials: 3
searcher: {{optuna: {{seed: 1}}}}
resources: {{concurrent: 1}}
stop: {{iterations: 2}}
""")
    sweep, outcome = start(path)
    assert [record.state for record in outcome.records] == ["finished"] * 3
    for record in outcome.records:
        config = sweep.space.config(record.parameters)
        assert config.training.learning_rate.last in (0.1, 0.3)
        assert 0.1 <= config.training.clip <= 1
        assert config.rollouts.per_sequence in (2, 4, 6)
        assert config.training.epochs in (1, 2, 3)


def test_stop_conditions(load: LoadSweep) -> None:
    space = "space: {training.clip: {uniform: [1, 2]}}\n"
    limits = run.StopConditions(load(f"{space}stop: {{iterations: 20, validation_below: 3}}"))
    assert not limits("a", {"iteration": 19, "validation": 3.0})
    assert limits("a", {"iteration": 20, "validation": 4.0})
    assert not limits.stop_all()
    assert not limits("b", {"iteration": 1, "validation": 2.9})
    assert limits.stop_all()


def record(name: str, state: str, value: float | None = None, fault: str = "") -> Record:
    return Record(name, {RATE: 0.1}, 4, value, state, 1.0, fault)


def test_outcome_without_a_finite_value(load: LoadSweep, capsys: Captured) -> None:
    failed = record("trial-001", "failed", fault="this hill is closed; expected another")
    diverged = record("trial-002", "diverged", math.inf)
    with pytest.raises(typer.Exit) as left:
        tune.print_outcome(load(ASHA), Outcome((failed, diverged), False), Path(), as_json=True)
    assert left.value.exit_code == 1
    shown, printed = capsys.readouterr()
    assert [trial["value"] for trial in json.loads(shown)["trials"]] == [None, None]
    assert "trial-001: failed: this hill is closed" in printed


def test_small_terminal_shows_running_and_best_trials(load: LoadSweep) -> None:
    sweep, file = load(ASHA), StringIO()
    records = [record(f"trial-{n:03d}", "stopped", float(n)) for n in range(9, 0, -1)]
    records += [record("trial-010", "running"), record("trial-011", "waiting")]
    display = TrialDisplay(sweep, Console(file=file, width=80, force_terminal=True, height=8))
    with display.live:
        display.update(records)
        display.print("[all] stopping")
    shown = file.getvalue()
    assert "[all] stopping" in shown
    assert "[dim]" not in shown  # the table below it is as it was
    assert re.findall(r"trial-(\d+)", shown)[-3:] == ["002", "001", "010"]
    assert "9 of 6 trials over" in shown
    assert trial_table(sweep, records).row_count == 11


def test_check_runs_nothing(sweep_file: SweepFile, cli: Cli) -> None:
    path = sweep_file(ASHA)
    shown = cli(f"tune {path} --check --output {path.parent / 'out'}").out
    assert "example-hill is sound: 6 trials of up to 8" in shown
    assert cli.json(f"tune {path} --check")["searched"] == [RATE]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "expected FILE, or --resume"),
        ("none.yaml", "none.yaml: No such file"),
        ("hill.yaml --trials 0", "--trials is 0"),
        ("hill.yaml --output .", "exists already"),
        ("--resume .", "is not a sweep"),
        ("--resume damaged", "sweep.json is damaged"),
        ("hill.yaml --resume .", "goes on as it was started"),
        ("hill.yaml --report .", "--report only reads a sweep"),
        ("--report .", "--report '.' is not a sweep"),
        ("bad.yaml", "bad.yaml:2: space: "),
        ("greedy.yaml --output a/b", "a trial takes 1 GPUs and there are 0"),
        ("hill.yaml --output hill.yaml/out", "cannot write to --output 'hill.yaml/out'"),
    ],
)
def test_bad_input(arguments: str, words: str, sweep_file: SweepFile, here: Path, cli: Cli) -> None:
    path = sweep_file(ASHA)
    Path("bad.yaml").write_text("{system: example, purpose: x,\nspace: 3}")
    Path("greedy.yaml").write_text(path.read_text().replace("{val", "{resources.gpus: 1, val"))
    Path("damaged").mkdir()
    Path("damaged/sweep.json").write_text("{}")
    before = sorted(here.rglob("*"))
    assert words in cli.error(f"tune {arguments}")
    assert sorted(here.rglob("*")) == before


def test_tiny_sweep_of_decima(root: Path, tmp_path: Path, monkeypatch: Patch, cli: Cli) -> None:
    """A shipped sweep, with real training and checkpoints."""
    monkeypatch.chdir(root)
    out = tmp_path / "tiny"
    found = cli.json(f"tune tune_configs/decima/tiny.yaml --output {out}")
    trials, best = found["trials"], found["best"]
    assert [trial["fault"] for trial in trials] == [""] * 4
    assert best["value"] == min(trial["value"] for trial in trials) > 0
    config = build_settings(DecimaTraining, read_config(out / "best.yaml"))
    assert config.environment.workload == "toy"
    assert config.training.epochs == best["parameters"]["training.epochs"]
    assert config.training.learning_rate.last == best["parameters"][RATE]
    saved = list((out / "tune" / best["name"]).glob("checkpoint_*/trainer/rllib_checkpoint.json"))
    assert saved, "the best trial left no checkpoint"

    task = "--set workload=toy --set jobs=3 --set executors=4"
    judged = cli.json(
        f"evaluate decima --sweep {out} --seeds 2 --workers 1 {task} --output {out}/e"
    )
    assert {name for group in judged["groups"] for name in group["trials"]} == {
        trial["name"] for trial in trials
    }
    assert all(group["jct"]["mean"] > 0 for group in judged["groups"])
    for trial in trials:  # the policy is that of the last iteration
        last = sorted((out / "tune" / trial["name"]).glob("checkpoint_*"))[-1] / "policy"
        assert find_policy(str(last)).manifest.trained["iterations"] == trial["iterations"]


@pytest.mark.long
def test_trial_with_a_learner_of_its_own(root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """The learner's process takes a place that the trial reserved."""
    monkeypatch.chdir(root)
    sweep = load_sweep(Path("tune_configs/decima/tiny.yaml"), ["resources.learners=1"], trials=1)
    folder = SweepFolder.create(tmp_path / "out", sweep, {})
    (record,) = run.run_sweep(sweep, folder, silent(sweep)).records
    assert (record.state, record.iterations) == ("finished", 4)


def test_grid_runs_every_combination_to_the_end(sweep_file: SweepFile) -> None:
    path = sweep_file(f"""{QUICK}
variants: {{slow: {{{RATE}: 0.1}}, fast: {{{RATE}: 0.3, training.epochs: 2}}}}
space: {{seed: {{choice: [7, 8]}}}}
searcher: grid
stop: {{iterations: 4}}
""")
    _, outcome = start(path)
    found = {(r.parameters["variant"], r.parameters["seed"]): r for r in outcome.records}
    assert set(found) == {(variant, seed) for variant in ("slow", "fast") for seed in (7, 8)}
    for (variant, _), record in found.items():
        assert (record.state, record.iterations) == ("finished", 4)
        rate = 0.1 if variant == "slow" else 0.3
        assert record.value == pytest.approx(10 * (1 - 2 * rate) ** 4)
    table = pd.read_csv(path.parent / "out" / "trials.csv")
    assert sorted(table["variant"]) == ["fast", "fast", "slow", "slow"]
