"""Learned policies in the commands evaluate, replay, export and list."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.envs import registry as systems
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.cli.main import main
from loadmaster.platform.systems import bundle_ref
from loadmaster.platform.systems.bundle_ref import find_policy
from tests.bundles import make_bundle, make_run

pytestmark = pytest.mark.slow

TINY = ["--seeds", "2", "--set", "jobs=4", "--set", "executors=8"]
TINY_SETTINGS = DagSchedulingSettings(jobs=4, executors=8)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def test_evaluate_compares_learned_policies(
    here: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "run-7", "best", "last")
    make_bundle(here / "mine")
    wanted = ["decima-batch", "fair", "mine", "run-7", "run-7/last"]
    arguments = [word for spec in wanted for word in ("--policy", spec)]
    record = json_of(capsys, "evaluate", "decima", *arguments, *TINY, "--output", "out")
    names = {"decima-batch", "fair", "mine", "run-7", "run-7-2"}
    assert set(record["policies"]) == names
    assert record["best_baseline"] == "fair"
    assert set(record["learned"]) == names - {"fair"}
    assert record["learned"]["run-7-2"]["folder"] == "run-7/last"
    assert record["learned"]["mine"]["sha256"] == load_bundle(here / "mine").sha256
    assert any("decima-batch: pretrained, trained on tpch-like" in n for n in record["notes"])
    with (here / "out" / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["policy"] for row in rows} == names
    assert (here / "out" / "jct_distribution.png").stat().st_size > 10_000
    workload = load_workload(TINY_SETTINGS)
    policy = find_policy("run-7/last").policy
    for row in rows:
        if row["policy"] == "run-7-2":
            result = policy.run(TINY_SETTINGS, int(row["seed"]), workload)
            assert float(row["jct"]) == pytest.approx(result.mean_jct_s)


@pytest.mark.usefixtures("no_charts")
def test_evaluate_system_takes_the_nearest_pretrained_policy(
    pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = [*TINY, "--set", "arrivals=poisson", "--set", "interarrival_s=12"]
    assert main(["evaluate", "decima", "--against", "fair,fifo", *stream]) == 0
    shown = capsys.readouterr()
    assert "decima-fast: pretrained, trained on tpch-like, 201 jobs, one every 15 s" in shown.err
    assert re.search(r"^decima-fast +[\d.]+", shown.out, re.MULTILINE)
    record = json_of(capsys, "evaluate", "decima", *TINY)
    assert {"decima-batch", "fair", "graphene", "random"} <= set(record["policies"])
    assert record["learned"]["decima-batch"]["folder"] == "decima-batch"  # wherever it is installed
    baselines = json_of(capsys, "evaluate", "dag_scheduling", *TINY)
    assert set(record["policies"]) - set(baselines["policies"]) == {"decima-batch"}
    assert "learned" not in baselines


def test_evaluate_system_without_pretrained_policy_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = error_of(capsys, "evaluate", "decima", "--against", "all", *TINY)
    assert "no pretrained decima policy ships" in error
    assert "--policy" in error
    assert "loadmaster train decima" in error


@pytest.mark.usefixtures("no_charts")
def test_bundle_given_twice_runs_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_bundle(here / "fair")  # the baseline of that name comes first
    make_bundle(here / "mine", name="fair")
    specs = ["fair", "./fair", str(here / "fair"), "mine"]
    arguments = [word for spec in specs for word in ("--policy", spec)]
    record = json_of(capsys, "evaluate", "dag_scheduling", *arguments, *TINY)
    assert set(record["policies"]) == {"fair", "fair-2", "fair-3"}
    assert record["learned"]["fair-3"]["folder"] == "mine"


def test_bundle_of_another_system_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(here / "mine")
    sorter = systems.System("sorter", "dag_scheduling", "another scheduler")
    monkeypatch.setattr(systems, "SYSTEMS", (*systems.SYSTEMS, sorter))
    wrong_system = error_of(capsys, "evaluate", "sorter", "--policy", "mine", *TINY)
    assert "mine is a policy of the system 'decima'; expected one of 'sorter'" in wrong_system
    sorting = SimpleNamespace(name="decima", environment="sorting", has=lambda part: True)
    monkeypatch.setattr(bundle_ref, "find_system", lambda name: sorting)
    elsewhere = error_of(capsys, "evaluate", "dag_scheduling", "--policy", "mine", *TINY)
    assert "mine decides in 'sorting'; expected a policy for 'dag_scheduling'" in elsewhere
    monkeypatch.setattr(bundle_ref, "find_system", lambda name: systems.find_system("nothing"))
    unknown = error_of(capsys, "evaluate", "dag_scheduling", "--policy", "mine", *TINY)
    assert "mine cannot be used here: unknown system 'nothing'" in unknown


@pytest.mark.usefixtures("no_charts")
def test_explain_prints_the_options_of_decisions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bundle(here / "mine")
    arguments = ["evaluate", "decima", "--policy", "mine", "--against", "fair", *TINY]
    arguments += ["--first-seed", "5", "--explain", "3", "--output", "out"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "Decisions of mine on seed 5" in shown
    assert len(re.findall(r"^at [\d,.]+ s: \d+ of 8 executors to place", shown, re.M)) == 3
    assert len(re.findall(r"^ +> +job \d+ \(.*\), stage \d+ .*%$", shown, re.M)) == 3
    assert len(re.findall(r"^ +> +\d+ executors? .*%$", shown, re.M)) == 3
    assert all(line == line.rstrip() for line in shown.splitlines() if line.startswith(" "))
    record = json_of(capsys, *arguments)
    (explained,) = record["explanations"].values()
    assert list(record["explanations"]) == ["mine"]
    assert [entry["decision"] for entry in explained] == sorted(e["decision"] for e in explained)
    for entry in explained:
        assert entry["schedulable"] > 1
        first = entry["stages"][0]
        assert {k: first[k] for k in ("job", "template", "stage")} == {
            k: entry["chosen"][k] for k in ("job", "template", "stage")
        }
        assert entry["chosen"]["limit"] == entry["limits"][0]["limit"]
        assert len(json.dumps(entry)) < 2000  # small enough to log
    assert json.loads((here / "out" / "summary.json").read_text()) == record


@pytest.mark.usefixtures("no_charts")
def test_explain_prints_preemptions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_bundle(
        here / "mine",
        system="das",
        environment={"preempt": True},
        width=16,
        heads=2,
        layers=1,
        process=False,
    )
    arguments = ["evaluate", "das", "--policy", "mine", "--against", "fifo-first-fit"]
    arguments += ["--seeds", "1", "--set", "jobs=30", "--set", "load=4", "--first-seed", "3"]
    arguments += ["--explain", "6", "--output", "out"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    record = json_of(capsys, *arguments)
    explained = record["explanations"]["mine"]
    kinds = [entry["moment"] for entry in explained]
    assert {"placing", "reconsidering"} <= set(kinds)
    line = r"^at [\d,.]+ s: \d+ jobs reconsidered, \d+ run, \d+ wait; \S+ of 32 GPUs free: "
    assert len(re.findall(line, shown, re.M)) == kinds.count("reconsidering")
    assert len(re.findall(r"^ +> +job \d+ .* (runs|waits) .*%$", shown, re.M)) == kinds.count(
        "reconsidering"
    )
    stopped = [
        f"job {one['job']} is stopped for job {one['for']}"
        for entry in explained
        if entry["moment"] == "reconsidering"
        for one in entry["stopped"][:5]
    ]
    assert all(words in shown for words in stopped)
    assert len(re.findall(r"is stopped for", shown)) == len(stopped)
    assert json.loads((here / "out" / "summary.json").read_text()) == record


def test_explain_without_learned_policy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["evaluate", "dag_scheduling", "--policy", "fair", *TINY]
    assert "expected one by --policy" in error_of(capsys, *line, "--explain", "2")
    assert "--explain is -1; expected 0 or more" in error_of(capsys, *line, "--explain", "-1")


@pytest.mark.usefixtures("no_charts")
def test_explain_without_choices(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job whose stages form a chain leaves no choice."""
    make_bundle(here / "mine")
    chain = ["--seeds", "1", "--workload", "toy", "--set", "jobs=1", "--first-seed"]
    for seed in range(20):
        arguments = ["evaluate", "decima", "--policy", "mine", "--explain", "4", *chain, str(seed)]
        assert main(arguments) == 0
        if "never had more than one stage to choose from" in capsys.readouterr().out:
            return
    pytest.fail("no toy job is a chain")


def test_replay_shows_a_learned_policy(
    here: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--policy", "decima-batch", "--policy", "weighted-fair", "--seed", "3", *TINY[2:]]
    record = json_of(capsys, "replay", "dag_scheduling", *both, "-o", "page.html")
    assert list(record["policies"]) == ["decima-batch", "weighted-fair"]
    result = find_policy("decima-batch").policy.run(TINY_SETTINGS, 3, load_workload(TINY_SETTINGS))
    assert record["policies"]["decima-batch"]["jct"] == result.mean_jct_s
    assert '"name":"decima-batch"' in (here / "page.html").read_text()
    of_system = json_of(capsys, "replay", "decima", *TINY[2:])
    assert next(iter(of_system["policies"])) == "decima-batch"
    assert len(of_system["policies"]) == 2


def test_replay_of_a_run_uses_its_training_settings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "run", "best", environment={"workload": "toy", "jobs": 5, "executors": 3})
    record = json_of(capsys, "replay", "run", "-o", "page.html")
    ours, best = record["policies"]
    assert ours == "run"
    assert "toy · 5 jobs at once · 3 executors · seed 0" in (here / "page.html").read_text()
    settings = DagSchedulingSettings(workload="toy", jobs=5, executors=3)
    from loadmaster.envs.dag_scheduling import episode
    from loadmaster.envs.dag_scheduling.baselines import BASELINES

    means = {name: episode.run_episode(name, settings, 0).mean_jct_s for name in BASELINES}
    assert record["policies"][best]["jct"] == min(means.values())
    record = json_of(
        capsys, "replay", "run", "--policy", "fifo", "--set", "executors=2", "-o", "p.html"
    )
    assert list(record["policies"]) == ["run", "fifo"]
    assert "toy · 5 jobs at once · 2 executors" in (here / "p.html").read_text()


def test_interarrival_time_replaces_the_load(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = {"workload": "toy", "arrivals": "poisson", "jobs": 3, "load": 0.5, "executors": 2}
    make_bundle(here / "mine", environment=stream)
    assert main(["replay", "mine", "--set", "interarrival_s=9", "-o", "page.html"]) == 0
    assert "4 jobs, one every 9 s" in (here / "page.html").read_text()


def test_export_copies_the_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(here / "run", "best", "last", environment={"executors": 8})
    assert main(["export", "run", "bundles/decima-mine"]) == 0
    shown = capsys.readouterr().out
    assert "decima-mine, a policy of decima, trained on tpch-like, 20 jobs at once, 8" in shown
    assert "validation: 91.25" in shown
    assert "Bundle: bundles/decima-mine" in shown
    made, source = load_bundle(here / "bundles" / "decima-mine"), load_bundle(here / "run" / "best")
    assert (made.name, source.name) == ("decima-mine", "run")
    assert made.sha256 == source.sha256
    assert made.trained == source.trained
    record = json_of(capsys, "export", "run", "last", "--which", "last", "--name", "late")
    assert record["name"] == "late"
    assert record["sha256"] == load_bundle(here / "run" / "last").sha256 != source.sha256


@pytest.mark.usefixtures("no_charts")
def test_export_adds_evaluations_of_these_weights(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "run", "best", "last")
    arguments = ["--policy", "run", "--against", "fair,fifo", "--output", "out"]
    record = json_of(capsys, "evaluate", "decima", *arguments, *TINY)
    kept = json_of(capsys, "export", "run", "mine", "--evaluation", "out/summary.json")
    (entry,) = kept["results"]["evaluations"]
    assert entry["mean"] == record["policies"]["run"]["jct"]["mean"]
    assert entry["best_baseline"] == record["best_baseline"]
    assert entry["difference_percent"] == record["differences"]["run"]["percent"]
    assert entry["seeds"] == "0 to 1"
    card = (here / "mine" / "README.md").read_text()
    assert "| tpch-like, 4 jobs at once, 8 executors | jct, s |" in card
    last = ["export", "run", "other", "--which", "last", "--evaluation"]
    assert "no result of these weights" in error_of(capsys, *last, "out/summary.json")
    assert "cannot read out/none.json" in error_of(capsys, *last, "out/none.json")
    (here / "out" / "odd.json").write_text('{"learned": 3}')
    assert "expected the summary.json of" in error_of(capsys, *last, "out/odd.json")
    assert not (here / "other").exists()


def test_list_has_pretrained_policies(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pretrained / "decima-slow" / "weights.safetensors").unlink()  # lists read manifests alone
    listing = json_of(capsys, "list")
    assert set(listing) == {"systems", "environments", "pretrained"}
    names = ["decima-batch", "decima-fast", "decima-makespan", "decima-slow"]
    assert listing["pretrained"] == names
    das, system = listing["systems"]
    assert (das["id"], das["environment"], das["pretrained"]) == ("das", "gpu_scheduling", [])
    assert (system["id"], system["environment"]) == ("decima", "dag_scheduling")
    assert [entry["id"] for entry in system["pretrained"]] == names
    assert system["pretrained"][2]["trained_on"].endswith("objective makespan")
    assert main(["list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "decima-fast decima, trained on tpch-like, 201 jobs, one every 15 s on average" in shown


def test_list_imports_neither_torch_nor_numba(pretrained: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom loadmaster.models import manifest\n"
        f"manifest.pretrained_folder = lambda: Path({str(pretrained)!r})\n"
        "from loadmaster.platform.cli.list import listing\n"
        "assert len(listing()['pretrained']) == 4\n"
        "print({'torch', 'numba', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_list_skips_damaged_bundles(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pretrained / "decima-slow" / "manifest.json").write_text("?")
    file = pretrained / "decima-fast" / "manifest.json"
    record = json.loads(file.read_text())
    record["trained"] = {"environment": {"workload": "\x1b[31m\ud800", "executors": 3}}
    file.write_text(json.dumps(record))
    batch = pretrained / "decima-batch" / "manifest.json"
    batch.write_text(batch.read_text().replace('"environment": {}', '"environment": {"x": 1}'))
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "settings that this installation does not know" in " ".join(shown.split())


def test_list_without_pretrained_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "pretrained policies: none yet" in capsys.readouterr().out
