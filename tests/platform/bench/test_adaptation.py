"""The benchmark of adaptation: its counts, its rivals, and what a log alone gains."""

from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.settings import AwareSettings, RuleSettings
from loadmaster.platform.bench.adaptation import AdaptationEffort, effort_of
from loadmaster.platform.systems.aware.adaptation_bench import (
    AWARE,
    TL,
    TL_PLUS,
    Curve,
    adapt,
    figures_of,
    gain_by_log,
    rival,
)
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli


def curve(*rewards: float, cpu_s: float = 1.0) -> Curve:
    count = len(rewards) - 1
    return Curve(
        np.array(rewards),
        np.tile([50.0, 40.0], (len(rewards), 1)),
        np.array(rewards[:-1]),
        np.tile([44.0, 41.0], (count, 1)),
        np.full(count, 2.0),
        np.full(count, cpu_s),
    )


def test_figures_by_hand() -> None:
    curves = {
        AWARE: [curve(1.0, 1.0, 1.0, 1.0), curve(0.9, 1.0, 1.0, 1.0)],
        TL: [curve(0.5, 0.9, 0.97, 0.97), curve(0.5, 0.6, 0.7, 0.8)],
        TL_PLUS: [curve(0.5, 0.97, 0.99, 0.99), curve(0.5, 0.6, 0.97, 0.97)],
    }
    found = {figure.name: figure.value for figure in figures_of(curves)}
    prefix = "aware/adaptation"
    assert found[f"{prefix}/aware/episodes"] == 1.5
    assert found[f"{prefix}/tl/episodes"] == 3.5, "3, and 4 where it is never reached"
    assert found[f"{prefix}/tl+/episodes"] == 2.5
    assert found["aware/episodes_tl_over_aware"] == pytest.approx(3.5 / 1.5)
    assert found["aware/episodes_tl_plus_over_aware"] == pytest.approx(2.5 / 1.5)
    assert found[f"{prefix}/aware/converged_deficit"] == 0
    assert found[f"{prefix}/tl/converged_deficit"] == pytest.approx((3 + 20) / 2)
    assert found[f"{prefix}/aware/cpu_s"] == 0.5
    assert found[f"{prefix}/tl/cpu_s"] == 2.5
    assert found[f"{prefix}/tl/first_reward_deficit"] == pytest.approx(50)
    assert found[f"{prefix}/aware/reward_deficit"] == pytest.approx(100 / 60)
    assert found[f"{prefix}/tl/cpu_use_deficit"] == pytest.approx(6)
    assert found[f"{prefix}/tl/memory_use_deficit"] == pytest.approx(-1)
    assert found[f"{prefix}/tl/violations"] == 2


def test_tolerance_is_relative_to_the_best_policy() -> None:
    below, within = 0.96 * 1.5, 0.965 * 1.5
    curves = {AWARE: [curve(below, within, 1.5, 1.5)], TL: [curve(1.2, 1.2, 1.2, 1.2)]}
    curves[TL_PLUS] = curves[TL]
    found = {figure.name: figure.value for figure in figures_of(curves)}
    assert found["aware/adaptation/aware/episodes"] == 2
    assert found["aware/adaptation/tl/episodes"] == 4, "its own plateau does not count"


def test_curves_are_measured() -> None:
    settings = PodScalingSettings(application="sleep", steps=10)
    policy, origin = rival(TL, None, AwareSettings())
    assert "untrained" in origin
    effort = AdaptationEffort(episodes=2, judged=2)
    found = adapt(policy, settings, build_setup(settings), effort, seed=0)
    assert found.rewards.shape == (3,)
    assert (found.cpu_s > 0).all()
    assert (found.explored_uses > 0).all()
    other = adapt(policy, settings, build_setup(settings), effort, seed=1)
    assert found.rewards[0] == other.rewards[0], "judged on the same seeds"
    assert (found.explored_rewards != other.explored_rewards).all(), "trained on others"


def test_log_alone_beats_the_rules() -> None:
    policy, _ = rival(TL, None, AwareSettings())  # without an embedding: estimates alone
    assert gain_by_log(policy, PodScalingSettings(application="test:3"), judged=3) > 0


def test_rivals_have_the_same_rule() -> None:
    base = AwareSettings(actor=(8,), rule=RuleSettings(latency=2.0))
    for name in (TL, TL_PLUS):
        own = rival(name, None, base)[0].settings
        assert (own.rule, own.actor, own.context) == (base.rule, (8,), 0)


def test_bundle_of_another_rival_is_refused(tmp_path: Path) -> None:
    plain = {"inputs": "published", "encoder": {"kind": "none"}}
    folder = make_bundle(tmp_path / "plain", system="aware", **plain)
    policy, origin = rival(TL, str(folder), AwareSettings())
    assert policy.version in origin
    for name in (AWARE, TL_PLUS):
        with pytest.raises(InputError, match="'published'"):
            rival(name, str(folder), AwareSettings())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("adaptation aware --policy tl", "expected NAME=BUNDLE"),
        ("adaptation aware --policy tl2=x", "unknown rival 'tl2'"),
        ("adaptation das", "unknown system 'das'"),
        ("adaptation --applications 0", "--applications is 0"),
        ("serve --applications 2", "takes no --applications"),
        ("rollouts --policy tl=x", "takes no --policy"),
    ],
)
def test_bad_input_is_one_line(line: str, words: str, cli: Cli) -> None:
    assert words in cli.error(f"bench {line}")


def test_counts_of_the_full_protocol() -> None:
    effort = effort_of(20, 5, 7, ["tl=a=b"])
    assert (effort.applications, effort.seeds, effort.policies) == (20, 5, {"tl": "a=b"})
    assert effort_of(None, None, None, ()) == AdaptationEffort()
