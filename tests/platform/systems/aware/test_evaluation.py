"""`loadmaster evaluate` and `calibrate` of pod scaling: rules, the bound, tuned parameters."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
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
