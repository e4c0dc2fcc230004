"""The replay of pod scaling: its data, the decisions of AWARE, known applications, the command."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.applications import TRAIN, generated_split
from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.network import build_network
from loadmaster.models.aware.settings import MARGINS
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.aware import evaluation, replay
from loadmaster.platform.systems.aware.decision_trace import TOLERATED, Step, thinned
from loadmaster.platform.systems.aware.evaluation import LearnedAware
from loadmaster.platform.systems.aware.known_applications import (
    COMPARED,
    cosine_similarity,
    draw_applications,
    known_applications,
)
from loadmaster.platform.systems.aware.rollout import application_of
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli
from tests.platform.systems.aware.recordings import (
    ENVIRONMENT,
    NETWORK,
    SEED,
    SETTINGS,
    recorded,
    setup,
    untrained_policy,
)
from tests.platform.systems.decima.test_replay import data_in, numbers_in


def series_in(packed: Any) -> np.ndarray:
    numbers = np.array(numbers_in(packed["values"]), float)
    return np.where(numbers == 0, np.nan, numbers - 1) / packed["scale"]


def traced() -> tuple[Step, ...]:
    trace = recorded().trace
    assert trace is not None
    return trace


def page_of(*policies: str) -> Any:
    episodes = [recorded(name) for name in policies]
    names = replay.REPLAY.item_names(setup(), episodes[0])
    return data_in(build_page(episodes, names, "two", "pod_scaling"))


def test_page_has_the_series_of_the_episodes() -> None:
    data = page_of("aware", "vpa")
    assert data["unit"] == {"seconds": 60, "name": "min"}
    first = recorded()
    np.testing.assert_allclose(series_in(data["load"]), first.arrived / 60, atol=0.00051)
    np.testing.assert_allclose(series_in(data["slo"]), first.slo_s, atol=0.00051)
    for policy, name in zip(data["policies"], ("aware", "vpa"), strict=True):
        episode = recorded(name)
        assert (policy["name"], policy["end_s"]) == (name, 60 * SETTINGS.steps)
        for key, expected, error in (
            ("p99", episode.p99_s, 0.00051),
            ("replicas", episode.replicas, 0.0051),
            ("cpu", episode.cores, 0.00051),
            ("cpu_used", episode.cores * episode.cpu_use, 0.00051),
            ("memory", episode.mib, 0.51),
            ("memory_used", episode.mib * episode.memory_use, 0.51),
            ("restarts", episode.restarts, 0),
            ("ooms", episode.ooms, 0),
        ):
            np.testing.assert_allclose(series_in(policy[key]), expected, atol=error, err_msg=key)
        assert policy["figures"]["reward"] == episode.reward
        assert "source" not in policy
    assert data["policies"][1]["case"] is None
    assert data["policies"][1]["known"] == []


def test_values_that_are_not_known_survive_packing() -> None:
    values = np.array([np.nan, 0.0, 1.234, np.nan])
    np.testing.assert_allclose(series_in(replay._packed(values, 1000)), values)


def test_trace_is_that_of_the_plain_episode() -> None:
    policy = untrained_policy()
    plain = policy.run(SETTINGS, SEED, setup())
    np.testing.assert_array_equal(recorded().rewards, plain.rewards)
    assert [step.step for step in traced()] == list(range(SETTINGS.steps))
    assert 0 < sum(step.changed for step in traced()) < SETTINGS.steps
    for step, made in zip(
        traced(), policy.explain(SETTINGS, SEED, setup(), SETTINGS.steps), strict=True
    ):
        assert step.reason == made.explanation.summary
        assert step.changed or step.reason.startswith("held ") or step.notes == (TOLERATED,)
        assert {margin.name for margin in step.margins} == set(MARGINS)
        assert step.expected == pytest.approx(made.record["expected_reward"], abs=1e-6)
        for margin in step.margins:
            assert float(margin.value) == pytest.approx(
                made.record["margins"][margin.name], rel=1e-3
            )


def test_decisions_of_the_page_are_those_of_the_trace() -> None:
    case = page_of("aware")["policies"][0]["case"]
    assert case["count"] == len(traced()) == len(case["steps"])
    assert case["changes"] == sum(step.changed for step in traced())
    for shown, step in zip(case["steps"], traced(), strict=True):
        assert f"{shown['plan']}; {shown['why']}" == step.reason
        assert shown["time_s"] == 60 * step.step
        assert shown["earned"] == pytest.approx(recorded().rewards[step.step], abs=1e-4)


def test_thinned_steps_keep_changes_first() -> None:
    steps = traced()
    assert thinned(steps) == steps
    changes = [step for step in steps if step.changed]
    few = thinned(steps, len(changes) + 3)
    assert [step for step in few if step.changed] == changes
    assert len(few) == len(changes) + 3
    assert all(step.changed for step in thinned(steps, len(changes) // 2))


def test_known_applications_are_trained_ones_and_the_nearest_first() -> None:
    known = recorded().known
    assert len({each.application.name for each in known}) == len(known) == COMPARED
    trained = {"+".join(segments) for segments in generated_split(TRAIN)}
    assert {each.application.name for each in known} <= trained
    similarities = [each.similarity for each in known]
    assert similarities == sorted(similarities, reverse=True)
    drawn = {each.name for each in draw_applications(untrained_policy())}
    assert drawn == {each.application.name for each in known}, "drawn by a fixed seed"
    assert page_of("aware")["policies"][0]["known"][0]["name"] == known[0].application.name


def test_an_application_is_nearest_to_itself() -> None:
    policy, own = untrained_policy(), application_of(len(setup().applications), SEED)
    embedding = policy.known_of(SETTINGS, SEED, setup()).embedding
    chosen = [setup().applications[place] for place in (own, (own + 1) % 200, (own + 2) % 200)]
    known = known_applications(
        policy, SETTINGS, setup(), embedding, chosen, adaptation_episodes=policy.adaptation_episodes
    )
    assert known[0].application == chosen[0]
    assert known[0].similarity == pytest.approx(1, abs=1e-5)
    assert known[1].similarity < 1 - 1e-6


def test_cosine_similarity() -> None:
    one, other = np.array([3.0, 4.0], np.float32), np.array([4.0, -3.0], np.float32)
    assert cosine_similarity(one, 2 * one) == pytest.approx(1)
    assert cosine_similarity(one, other) == pytest.approx(0, abs=1e-7)
    assert cosine_similarity(one, -one) == pytest.approx(-1)
    assert cosine_similarity(one, 0 * one) == 0


def test_policy_without_an_encoder_has_no_known_applications() -> None:
    policy = LearnedAware(build_network({"encoder": {"kind": "none"}}), PodScalingSettings())
    assert known_applications(policy, SETTINGS, setup(), np.zeros(0, np.float32)) == ()


def test_summary_and_note() -> None:
    first, second = recorded("mpa"), recorded("vpa")
    words = replay.REPLAY.summary([first, second])
    assert words.startswith(f"Reward {first.reward:.3f} under mpa (")
    assert f"{second.reward:.3f} under vpa (" in words
    nasty = dataclasses.replace(first, policy="<b>")
    assert "&lt;b&gt;" in replay.REPLAY.summary([nasty], as_html=True)
    note = replay.REPLAY.note([second])
    assert note.startswith(f"{int(second.restarts.sum())} restart")
    assert "Lifecycle" not in note


def test_title_names_the_application_that_the_seed_draws() -> None:
    assert replay.title(SETTINGS, SEED, setup()).endswith(f"seed 2 · {recorded('mpa').application}")
    alone = PodScalingSettings(application="sleep")
    assert replay.title(alone, SEED, build_setup(alone)).endswith("seed 2")


def test_bound_and_the_rule_of_aware_are_replayed(here: Path, cli: Cli) -> None:
    record = cli.json(
        f"replay pod_scaling --policy clairvoyant --policy aware-rule --seed {SEED} "
        "--set application=test --set steps=40 --picture two.svg"
    )
    assert record["picture"] == "two.svg"
    figures = record["policies"]
    for name, found in figures.items():
        assert found["reward"] == evaluation.run(name, SETTINGS, setup(), SEED).reward
    assert figures["clairvoyant"]["reward"] > figures["aware-rule"]["reward"]
    assert (here / "two.svg").read_bytes().startswith(b"<?xml")
    assert (
        "200 applications (test), 40 control steps · seed 2" in (here / "replay.html").read_text()
    )


@pytest.mark.slow
def test_bundle_is_compared_with_the_best_rule(here: Path, cli: Cli) -> None:
    make_bundle(here / "mine", system="aware", environment=ENVIRONMENT, **NETWORK)
    record = cli.json("replay ./mine -o page.html --picture case.png")
    ours, best = record["policies"]
    rewards = {
        name: replay.run(name, None, SETTINGS, 0, setup(), False).reward
        for name in replay.REPLAY.opponents(SETTINGS)
    }
    assert (ours, best) == ("mine", max(rewards, key=rewards.__getitem__))
    assert (here / "case.png").read_bytes().startswith(b"\x89PNG")
    first, second = data_in((here / "page.html").read_text())["policies"]
    assert len(first["case"]["steps"]) == SETTINGS.steps
    assert len(first["known"]) == COMPARED
    assert second["case"] is None


def test_page_of_too_many_steps_is_refused() -> None:
    long = SETTINGS.model_copy(update={"steps": 60_000})
    episode = replay.run("static", None, long, SEED, build_setup(long), True)
    with pytest.raises(InputError, match="60,000 control steps"):
        build_page([episode], (), "long", "pod_scaling")
