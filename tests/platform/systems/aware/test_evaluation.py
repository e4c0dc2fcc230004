"""`loadmaster evaluate` and `calibrate` of pod scaling: rules, the bound, AWARE."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, adapt_to
from loadmaster.models.aware.rule_policy import RULE, run_rule
from loadmaster.platform.evaluation.adapters import run_episodes
from loadmaster.platform.systems.aware import evaluation
from loadmaster.platform.systems.aware.evaluation import LearnedAware, prepare
from tests.bundles import make_bundle
from tests.models.aware.parts import SMALL, network_of
from tests.platform.cli.one_line import Cli

SHORT = "evaluate pod_scaling --set steps=20 --seeds 3"

pytestmark = pytest.mark.usefixtures("no_charts")


def test_bound_is_above_all_rules_and_no_baseline(cli: Cli) -> None:
    found: Any = cli.json(f"{SHORT} --set application=test --policy clairvoyant --against all")
    rewards = {name: own["reward"]["mean"] for name, own in found["policies"].items()}
    assert len(rewards) == 9
    assert next(iter(rewards)) == "clairvoyant" == found["oracles"][0]
    assert found["best_baseline"] != "clairvoyant"
    assert found["conditions"].startswith("200 applications (test), 20 control steps")
    assert found["metrics"]["violations"]["better"] == "lower"
    assert Path("results/pod_scaling-test-diurnal-like-steps-20/episodes.csv").is_file()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--set application=matMull", "matMul"),
        ("--set slo_weight=0.2", "slo_weight"),
        ("--set min_replicas=40", "min_replicas is 40, more than max_replicas 20"),
        ("--workload diurnal", "diurnal-like"),
        ("--policy hpaa", "hpaa"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, given: str, expected: str) -> None:
    assert expected in cli.error(f"{SHORT} {given}")


def test_calibration_of_one_application_is_used_for_it_alone(cli: Cli, here: Path) -> None:
    cli(
        "calibrate pod_scaling --policy window-peak --seeds 4 --set steps=20 "
        "--set application=test:7 --output mine.json"
    )
    (entry,) = json.loads(Path("mine.json").read_text())
    name = entry["application"]
    assert "+" in name or name.isalpha(), "by its segments"
    own = PodScalingSettings(application="test", calibration=here / "mine.json")
    tuned = tuned_baseline("window-peak", own, name)
    assert dict(tuned.parameters) == entry["parameters"]
    shown = cli(f"{SHORT} --set application=test:7 --set calibration=mine.json --policy hpa").out
    untuned = shown.partition("not tuned for")[2].partition(";")[0]
    assert "hpa" in untuned
    assert "window-peak" not in untuned


def learned() -> LearnedAware:
    return LearnedAware(network_of(size=1.0), PodScalingSettings())


SEEDS = range(6)


def test_each_application_is_met_once_in_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = PodScalingSettings(application="test", steps=10, shift=("payload:1.5@5",))
    whole = prepare(settings)
    few: Any = whole.bank._replace(applications=whole.bank.applications[:3])
    setup: Any = SimpleNamespace(settings=settings, bank=few)
    met = Counter[str]()

    def counted(policy: Any, own: Any, alone: Any, seeds: Any) -> Any:
        (application,) = alone.applications
        met[application.name] += 1
        assert not own.shift
        assert list(seeds) == list(range(FIRST_SEED, FIRST_SEED + 5))
        return adapt_to(policy, own, alone, seeds)

    monkeypatch.setattr(evaluation, "adapt_to", counted)
    found = []
    for workers in (1, 4):
        met.clear()
        policy: Any = SimpleNamespace(policy=learned())
        episodes = run_episodes(setup, {"mine": policy}, ["mine"], list(SEEDS), workers)
        found.append(np.array([result.rewards for result in episodes["mine"]]))
        names = {result.application for result in episodes["mine"]}
        assert met == dict.fromkeys(names, 1)
    np.testing.assert_array_equal(*found)
    backwards = [learned().run(settings, seed, few).rewards for seed in reversed(SEEDS)]
    np.testing.assert_array_equal(backwards[::-1], found[0])


def test_adaptation_episodes_change_what_is_known_at_the_first_step() -> None:
    settings = PodScalingSettings(application="test:3", steps=10)
    setup, policy = build_setup(settings), learned()
    known = policy.known_of(settings, 1, setup)
    assert known.estimates.any()
    assert known.embedding.any()
    policy.adaptation_episodes = 0
    fresh = LearnedAware(network_of(size=1.0), PodScalingSettings())
    fresh.adaptation_episodes = 0
    assert not fresh.known_of(settings, 1, setup).estimates.any()
    assert fresh.preparation != learned().preparation


def test_command_evaluates_and_explains_a_bundle(cli: Cli, here: Path) -> None:
    bundle = make_bundle(here / "mine", system="aware", **SMALL)
    command = f"evaluate aware --policy {bundle} --policy {RULE} --set steps=10 --seeds 2"
    command += " --set application=test:5 --against hpa"
    found: Any = cli.json(f"{command} --explain 2")
    assert set(found["policies"]) == {"mine", RULE, "hpa"}
    settings = PodScalingSettings(application="test:5", steps=10)
    setup = build_setup(settings)
    rewards = [run_rule(settings, setup, seed).reward for seed in range(2)]
    assert found["policies"][RULE]["reward"]["mean"] == pytest.approx(np.mean(rewards))
    assert any(
        "adapted to each application in 5 episodes before" in note for note in found["notes"]
    )
    (explanations,) = found["explanations"].values()
    assert len(explanations) == 2
    assert {"minute", "replicas", "expected_reward", "margins"} <= set(explanations[0])
