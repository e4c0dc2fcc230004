"""Learned policies: their lookup, and the commands evaluate, replay, export and list."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from loadmaster.envs import registry as systems
from loadmaster.envs.dag_scheduling.baselines import BASELINES
from loadmaster.envs.dag_scheduling.episode import run_episode
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.decision_state import PHASES
from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import load_bundle
from loadmaster.models.decima.settings import distance
from loadmaster.platform.systems.bundle_ref import best_pretrained, find_policy
from loadmaster.platform.systems.policies import spread
from tests.bundles import make_bundle, make_run
from tests.models.das.builders import NETWORK
from tests.platform.cli.one_line import Cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_charts")]

FEW = "--set jobs=4 --set executors=8"
TINY = f"--seeds 2 {FEW}"
TINY_SETTINGS = DagSchedulingSettings(jobs=4, executors=8)


def test_policy_is_found_by_name_bundle_and_run(here: Path, pretrained: Path) -> None:
    mine = make_bundle(here / "bundles" / "mine")
    run, young = make_run(here / "run", "best", "last"), make_run(here / "young", "last")
    namesake = make_bundle(here / "decima-batch", name="in this folder")
    for spec, folder in {
        "decima-fast": pretrained / "decima-fast",
        "bundles/mine": mine,
        str(mine): mine,
        "run": run / "best",
        "run/last": run / "last",
        "young": young / "last",
        "decima-batch": pretrained / "decima-batch",  # a name comes first
        "./decima-batch": namesake,
    }.items():
        assert find_policy(spec).folder.resolve() == folder.resolve(), spec
    assert find_policy("run").system.environment == "dag_scheduling"


def test_unknown_policies_are_refused(pretrained: Path) -> None:
    with pytest.raises(InputError, match="'decima-fat'; did you mean 'decima-fast'"):
        find_policy("decima-fat", ["fair", "fifo"])
    names = "decima-batch, decima-fast, decima-makespan, decima-slow, fair, fifo"
    with pytest.raises(InputError, match=f"one of: {names}, or the folder of a bundle or run"):
        find_policy("xyz", ["fair", "fifo"])


def test_nearest_pretrained_policy_that_is_whole_is_chosen(pretrained: Path) -> None:
    make_bundle(pretrained / "decima-free", environment={"moving_delay_s": 0.0})
    stream, decima = {"arrivals": "poisson"}, systems.find_system("decima")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "batch"),
        ({"executors": 10, "workload": "toy"}, "batch"),
        ({"objective": "makespan"}, "makespan"),
        ({"objective": "makespan", **stream}, "makespan"),  # the objective comes first
        (stream, "slow"),
        ({**stream, "interarrival_s": 40}, "slow"),
        ({**stream, "interarrival_s": 18}, "fast"),
        ({**stream, "load": 1.2}, "fast"),  # a load is a gap, with this workload
        ({**stream, "load": 0.3}, "slow"),
        ({"moving_delay_s": 0}, "free"),
    ]
    for values, name in cases:
        settings = DagSchedulingSettings(**values)
        assert best_pretrained(decima, settings).folder.name == f"decima-{name}", values
    (pretrained / "decima-batch" / "manifest.json").write_text("{")
    assert best_pretrained(decima, DagSchedulingSettings()).folder.name != "decima-batch"


def test_policy_of_a_mixture_is_nearest_but_for_another_objective_or_several_classes() -> None:
    classes = [{"count": 2}, {"count": 2, "memory": 0.5}]
    trained: dict[str, dict[str, Any]] = {
        "general": {"environment": {}, "config": {"mixture": [{"jobs": 3}]}},
        "batch": {"environment": {}},
        "makespan": {"environment": {"objective": "makespan"}},
        "classes": {"environment": {"executor_classes": classes}},
    }
    manifests: Any = {name: SimpleNamespace(trained=each) for name, each in trained.items()}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "general"),
        ({"arrivals": "poisson", "load": 0.3}, "general"),
        ({"objective": "makespan"}, "makespan"),
        ({"executor_classes": classes}, "classes"),
    ]
    for values, expected in cases:
        settings = build_settings(DagSchedulingSettings, values)
        assert min(manifests, key=lambda name: distance(manifests[name], settings)) == expected


def test_evaluate_compares_learned_policies(here: Path, pretrained: Path, cli: Cli) -> None:
    make_run(here / "run-7", "best", "last")
    make_bundle(here / "fair")  # the baseline of that name comes first
    make_bundle(here / "mine", name="fair")
    given = ("decima-batch", "fair", "./fair", str(here / "fair"), "mine", "run-7", "run-7/last")
    policies = " ".join(f"--policy {spec}" for spec in given)
    record = cli.json(f"evaluate decima {policies} {TINY} --output out")
    names = {"decima-batch", "fair", "fair-2", "fair-3", "run-7", "run-7-2"}  # ./fair runs once
    assert set(record["policies"]) == names
    assert record["best_baseline"] == "fair"
    folders = {name: entry["folder"] for name, entry in record["learned"].items()}
    assert folders.keys() == names - {"fair"}
    assert (folders["fair-3"], folders["run-7-2"]) == ("mine", "run-7/last")
    assert record["learned"]["fair-3"]["sha256"] == load_bundle(here / "mine").sha256
    assert any("decima-batch: pretrained, trained on tpch-like" in n for n in record["notes"])
    episodes = pd.read_csv("out/episodes.csv").set_index(["policy", "seed"])["jct"]
    assert set(episodes.index.levels[0]) == names
    policy, workload = find_policy("run-7/last").policy, load_workload(TINY_SETTINGS)
    for seed in range(2):
        result = policy.run(TINY_SETTINGS, seed, workload)
        assert episodes["run-7-2", seed] == pytest.approx(result.mean_jct_s)


def test_commands_take_the_nearest_pretrained_policy_of_a_system(
    here: Path, pretrained: Path, cli: Cli
) -> None:
    stream = f"{TINY} --set arrivals=poisson --set interarrival_s=12"
    shown = cli(f"evaluate decima --against fair,fifo {stream}")
    assert "decima-fast: pretrained, trained on tpch-like, 201 jobs, one every 15 s" in shown.err
    assert re.search(r"^decima-fast +[\d.]+", shown.out, re.MULTILINE)
    record = cli.json(f"evaluate decima {TINY}")
    assert set(record["policies"]) == {"decima-batch", *BASELINES}
    assert record["learned"]["decima-batch"]["folder"] == "decima-batch"  # wherever it is installed
    record = cli.json(f"replay decima --seed 3 {FEW}")
    assert len(record["policies"]) == 2
    result = find_policy("decima-batch").policy.run(TINY_SETTINGS, 3, load_workload(TINY_SETTINGS))
    assert record["policies"]["decima-batch"]["jct"] == result.mean_jct_s
    assert '"name":"decima-batch"' in (here / "replay.html").read_text()


def test_bundle_of_another_system_is_refused(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(here / "mine")
    sorter = systems.System("sorter", "dag_scheduling", "another scheduler")
    monkeypatch.setattr(systems, "SYSTEMS", (*systems.SYSTEMS, sorter))
    words = "of the system 'decima'; expected one of 'sorter'"
    assert words in cli.error(f"evaluate sorter --policy mine {TINY}")
    assert "loadmaster train decima" in cli.error(f"evaluate decima {TINY}")  # none is pretrained


def explained(cli: Cli, arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """What `evaluate --explain` prints, and what it writes."""
    shown = cli(f"evaluate {arguments} --policy mine --output out").out
    record = json.loads(Path("out/summary.json").read_text())
    return shown, record["explanations"]["mine"]


def test_explain_prints_the_options_of_decisions(here: Path, cli: Cli) -> None:
    make_bundle(here / "mine")
    shown, entries = explained(cli, f"decima --against fair {TINY} --first-seed 5 --explain 3")
    assert "Decisions of mine on seed 5" in shown
    for pattern in (
        r"^at [\d,.]+ s: \d+ of 8 executors to place",
        r"^ +> +job \d+ \(.*\), stage \d+ .*%$",
        r"^ +> +\d+ executors? .*%$",
    ):
        assert len(re.findall(pattern, shown, re.M)) == 3
    assert not re.search(r" $", shown, re.M)
    assert [entry["decision"] for entry in entries] == sorted(e["decision"] for e in entries)
    for entry in entries:
        assert entry["schedulable"] > 1
        best = {**entry["stages"][0], **entry["limits"][0]}
        for name in ("job", "template", "stage", "limit"):
            assert entry["chosen"][name] == best[name]
        assert len(json.dumps(entry)) < 2000  # small enough to log
    chain = "--seeds 1 --first-seed 1 --workload toy --set jobs=1"  # of stages: no choice
    shown, entries = explained(cli, f"decima {chain} --against fair --explain 4")
    assert entries == []
    assert "never had more than one stage to choose from" in shown


def test_explain_prints_preemptions(here: Path, cli: Cli) -> None:
    environment = {"jobs": 60, "max_queue": 40, "history": 4, "preempt": True}
    make_bundle(here / "mine", system="das", environment=environment, **NETWORK)
    jobs = "--seeds 1 --first-seed 3 --set jobs=60 --set load=4"
    shown, entries = explained(cli, f"das --against fifo-first-fit {jobs} --explain 12")
    moments = [entry["moment"] for entry in entries]
    assert set(moments) == set(PHASES.values())
    assert shown.count(", after reconsidering; ") == moments.count("placing again")
    reconsidered = [entry for entry in entries if entry["moment"] == "reconsidering"]
    line = r"^at [\d,.]+ s: \d+ jobs reconsidered, \d+ run, \d+ wait; \S+ of 32 GPUs free: "
    option = r"^ +> +job \d+ .* (runs|waits) .*%$"
    for pattern in (line, option):
        assert len(re.findall(pattern, shown, re.M)) == len(reconsidered)
    stopped = [one for entry in reconsidered for one in entry["stopped"][:5]]
    for one in stopped:
        assert f"job {one['job']} is stopped for job {one['for']}" in shown
    assert shown.count("is stopped for") == len(stopped)


def test_replay_of_a_run_uses_its_training_settings(here: Path, cli: Cli) -> None:
    environment = {"workload": "toy", "jobs": 5, "executors": 3}
    settings, page = DagSchedulingSettings.model_validate(environment), here / "replay.html"
    make_run(here / "run", "best", environment=environment)
    record = cli.json("replay run")
    ours, best = record["policies"]
    assert ours == "run"
    assert "toy · 5 jobs at once · 3 executors · seed 0" in page.read_text()
    means = [run_episode(name, settings, 0).mean_jct_s for name in BASELINES]
    assert record["policies"][best]["jct"] == min(means)
    record = cli.json("replay run --policy fifo --set executors=2")
    assert list(record["policies"]) == ["run", "fifo"]
    assert "toy · 5 jobs at once · 2 executors" in page.read_text()
    make_bundle(here / "mine", environment={**environment, "arrivals": "poisson", "load": 0.5})
    cli("replay mine --set interarrival_s=9")  # replaces the load
    assert "6 jobs, one every 9 s" in page.read_text()


def test_export_copies_the_bundle(here: Path, cli: Cli) -> None:
    make_run(here / "run", "best", "last", environment={"executors": 8})
    shown = cli("export run bundles/decima-mine").out
    assert "decima-mine, a policy of decima, trained on tpch-like, 20 jobs at once, 8" in shown
    assert "validation: 91.25" in shown
    assert "Bundle: bundles/decima-mine" in shown
    made, source = load_bundle(here / "bundles" / "decima-mine"), load_bundle(here / "run" / "best")
    assert (made.name, source.name) == ("decima-mine", "run")
    assert (made.sha256, made.trained) == (source.sha256, source.trained)
    record = cli.json("export run last --which last --name late")
    assert record["name"] == "late"
    assert record["sha256"] == load_bundle(here / "run" / "last").sha256 != source.sha256


def test_export_adds_evaluations_of_these_weights(here: Path, cli: Cli) -> None:
    make_run(here / "run", "best", "last")
    record = cli.json(f"evaluate decima --policy run --against fair,fifo --output out {TINY}")
    kept = cli.json("export run mine --evaluation out/summary.json")
    (entry,) = kept["results"]["evaluations"]
    assert entry["mean"] == record["policies"]["run"]["jct"]["mean"]
    assert entry["best_baseline"] == record["best_baseline"]
    assert entry["difference_percent"] == record["differences"]["run"]["percent"]
    assert entry["seeds"] == "0 to 1"
    card = (here / "mine" / "README.md").read_text()
    assert "| tpch-like, 4 jobs at once, 8 executors | jct, s |" in card
    (here / "out" / "odd.json").write_text('{"learned": 3}')
    for file, words in (
        ("summary", "no result of these weights"),
        ("none", "cannot read out/none.json"),
        ("odd", "expected the summary.json of"),
    ):
        assert words in cli.error(f"export run other --which last --evaluation out/{file}.json")
    assert not (here / "other").exists()


def test_list_has_pretrained_policies(pretrained: Path, cli: Cli) -> None:
    (pretrained / "decima-slow" / "weights.safetensors").unlink()  # lists read manifests alone
    listing = cli.json("list")
    names = ["decima-batch", "decima-fast", "decima-makespan", "decima-slow"]
    assert listing["pretrained"] == names
    aware, das, system, sure = listing["systems"]
    assert (aware["id"], aware["environment"]) == ("aware", "pod_scaling")
    assert (sure["id"], sure["environment"], sure["pretrained"]) == ("sure", "stream_scaling", [])
    assert (das["id"], das["environment"], das["pretrained"]) == ("das", "gpu_scheduling", [])
    assert (system["id"], system["environment"]) == ("decima", "dag_scheduling")
    assert [entry["id"] for entry in system["pretrained"]] == names
    assert system["pretrained"][2]["trained_on"].endswith("objective makespan")
    shown = " ".join(cli("list").out.split())
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


def test_list_skips_damaged_bundles(here: Path, cli: Cli) -> None:
    assert "pretrained policies: none" in cli("list").out
    for name, environment in (
        ("slow", {}),
        ("fast", {"workload": "\x1b[31m\ud800", "executors": 3}),
        ("batch", {"x": 1}),
    ):
        make_bundle(here.parent / "pretrained" / name, environment=environment)
    (here.parent / "pretrained" / "slow" / "manifest.json").write_text("?")
    shown = cli("list").out
    assert "\x1b" not in shown
    assert "settings that this installation does not know" in " ".join(shown.split())


def test_spread_takes_even_distances() -> None:
    assert spread(range(100), 4) == {12, 37, 62, 87}
    assert spread([3, 5, 8], 1) == {5}
    assert spread([3, 5, 8], 9) == {3, 5, 8}
    assert spread([], 2) == set()
