"""`loadmaster evaluate stream_scaling`: rules compared by a reward, in absolute differences."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loadmaster.envs.stream_scaling.episode import build_setup
from loadmaster.envs.stream_scaling.rollout import run_episode
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.settings import SureSettings
from loadmaster.platform.systems.policies import TimedPolicy
from loadmaster.platform.systems.sure.evaluation import LearnedSure
from tests.platform.cli.one_line import Cli

HALF_DAY = "evaluate stream_scaling --set minutes=720 --against static,flink --seeds 2"

pytestmark = pytest.mark.usefixtures("no_charts")


def test_rules_are_ranked_by_reward_the_highest_first(cli: Cli) -> None:
    found: Any = cli.json(HALF_DAY)
    rewards = {name: own["reward"]["mean"] for name, own in found["policies"].items()}
    assert list(rewards) == sorted(rewards, key=lambda name: -rewards[name])
    assert found["best_baseline"] == next(iter(rewards))
    assert found["metrics"]["reward"] == {"unit": "", "better": "higher", "relative": False}
    assert found["conditions"].startswith("small-1 (10 tasks), 12 hours")
    (other,) = found["differences"].values()
    assert other["mean"] < 0
    settings = StreamScalingSettings(minutes=720)
    expected = [run_episode("static", settings, seed).reward for seed in (0, 1)]
    episodes = pd.read_csv(Path("results") / "stream_scaling-small-1-clarknet-like-minutes-720"
                           / "episodes.csv").query("policy == 'static'")  # fmt: skip
    assert episodes["reward"].tolist() == pytest.approx(expected)


def test_rule_and_its_foresight_run_on_request(cli: Cli) -> None:
    found: Any = cli.json(f"{HALF_DAY} --policy sure-rule --policy sure-rule-foresight")
    assert set(found["policies"]) == {"static", "flink", "sure-rule", "sure-rule-foresight"}
    assert found["best_baseline"] in ("static", "flink")
    assert found["oracles"] == ["sure-rule-foresight"]
    assert found["share_of_gap_closed"]["sure-rule"]["oracle"] == "sure-rule-foresight"
    rewards = {name: own["reward"]["mean"] for name, own in found["policies"].items()}
    assert rewards["sure-rule"] != rewards["sure-rule-foresight"]


def test_report_has_differences_without_percentages(cli: Cli) -> None:
    shown = cli(HALF_DAY).out
    table = shown.partition("\n\n")[2].partition("\n\n")[0]
    assert "%" not in table.replace("[95%]", "")
    assert "behind [" in shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--set job=smal-1", "small-1"),
        ("--workload clarknetlike", "clarknet-like"),
        ("--set decide_every_min=0", "decide_every_min"),
        ("--set minutes=4 --set decide_every_min=5", "more than the 4 minutes"),
        ("--against hpaa", "hpa"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, given: str, expected: str) -> None:
    assert expected in cli.error(f"evaluate stream_scaling {given} --seeds 1")


def test_decisions_are_timed_without_the_environment() -> None:
    settings = StreamScalingSettings(minutes=60)
    policy = LearnedSure(SureNetwork(SureSettings(width=10)), settings)
    assert isinstance(policy, TimedPolicy)
    seconds = policy.decision_s(settings, 0, build_setup(settings), 50)  # an episode has 12
    assert 0 < seconds < 0.1
