"""The replay of stream scaling: its data, the decisions of SURE, and the command."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.stream_scaling.episode import Setup, build_episode, build_setup
from loadmaster.envs.stream_scaling.jobs import Task, build_job
from loadmaster.envs.stream_scaling.settings import (
    WARM_UP_MIN,
    WEEK_MIN,
    Fault,
    StreamScalingSettings,
)
from loadmaster.models.sure.explain import drawn
from loadmaster.models.sure.graph import NONE
from loadmaster.platform.replay.adapters import Unit
from loadmaster.platform.replay.page import build_page
from loadmaster.platform.systems.sure import replay
from loadmaster.platform.systems.sure.decision_trace import DecisionTrace, thinned
from loadmaster.platform.systems.sure.picture import select_step
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli
from tests.platform.systems.decima.test_replay import data_in, numbers_in
from tests.platform.systems.sure.recordings import (
    ENVIRONMENT,
    SEED,
    SETTINGS,
    recorded,
    setup,
    untrained_policy,
)


def traced() -> DecisionTrace:
    trace = recorded().trace
    assert trace is not None
    return trace


def parallelism_in(packed: Any) -> np.ndarray:
    """Unpack (minutes, N)."""
    lengths, instances = numbers_in(packed["length"]), numbers_in(packed["instances"])
    rows, at = [], 0
    for runs in numbers_in(packed["runs"]):
        rows.append(np.repeat(instances[at : at + runs], lengths[at : at + runs]))
        at += runs
    return np.array(rows).T


def test_packed_runs_are_lossless() -> None:
    rng = np.random.default_rng(3)
    table = np.repeat(rng.integers(1, 11, (40, 6)), rng.integers(1, 300, 40), axis=0)
    table[:, 2] = 4  # a task that never changes
    np.testing.assert_array_equal(parallelism_in(replay.pack_runs(table)), table)


def test_load_by_minute_is_that_of_the_episode() -> None:
    load = build_episode(SETTINGS, setup(), SEED).state.load
    np.testing.assert_allclose(recorded("flink").load, load[:, WARM_UP_MIN:].sum(axis=0))
    np.testing.assert_array_equal(recorded("flink").load, recorded().load)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"restart_s": 0.0, "state_mb": 0.0},
        {"semantics": "paper", "decide_every_min": 60},
        {"faults": (Fault(kind="lost-instance", at_min=70),)},
    ],
)
def test_restart_minutes_are_all_restarts(changed: dict[str, Any]) -> None:
    settings = StreamScalingSettings(minutes=600, **changed)
    episode = replay.run("threshold", None, settings, SEED, build_setup(settings), True)
    assert len(episode.restart_minutes) == episode.restarts > 0


def test_oracle_is_recorded() -> None:
    settings = StreamScalingSettings(minutes=60)
    job = build_job("single", [Task("only", 1.0)])
    single: Setup = build_setup(settings, job)
    episode = replay.run("optimal", None, settings, SEED, single, True)
    assert episode.parallelism is not None
    np.testing.assert_array_equal(episode.parallelism.sum(axis=1), episode.instances)


def test_page_has_the_series_and_the_plans() -> None:
    episodes = [recorded(), recorded("flink")]
    names = setup().job.names
    data = data_in(build_page(episodes, names, "two", "stream_scaling"))
    assert data["unit"] == {"seconds": 3600, "name": "h", "steps": [1, 2, 3, 6, 12, 24, 48]}
    assert data["tasks"]["name"] == list(names)
    assert data["tasks"]["parents"][0] == []
    assert numbers_in(data["load"]) == np.rint(episodes[0].load).tolist()
    for policy, episode in zip(data["policies"], episodes, strict=True):
        assert policy["name"] == episode.policy
        np.testing.assert_allclose(
            numbers_in(policy["latency_ms"]), 60_000 * episode.latency_min, atol=0.51
        )
        np.testing.assert_array_equal(parallelism_in(policy["parallelism"]), episode.parallelism)
        assert numbers_in(policy["restarts"]) == episode.restart_minutes.tolist()
        assert policy["figures"]["reward"] == episode.reward
    assert data["policies"][1]["case"] is None
    assert len(data["policies"][0]["case"]["steps"]) == len(traced().steps)


def test_summary_and_note() -> None:
    first = recorded("flink")
    words = replay.REPLAY.summary([first, recorded("hpa")])
    assert words.startswith(f"Reward {first.reward:.3f} under flink (latency ")
    assert "under hpa (latency " in words
    nasty = dataclasses.replace(first, policy="<b>")
    assert "&lt;b&gt;" in replay.REPLAY.summary([nasty], as_html=True)
    over = int((first.latency_min > first.target_min).sum())
    assert f"{over:,} minute" in replay.REPLAY.note([first])


@pytest.mark.slow
def test_week_of_the_largest_job_is_a_small_page() -> None:
    settings = StreamScalingSettings(job="large-2", minutes=WEEK_MIN)
    large = build_setup(settings)
    episodes = [replay.run(name, None, settings, 0, large, True) for name in ("flink", "hpa")]
    assert len(build_page(episodes, large.job.names, "week", "stream_scaling")) < 500_000
    assert replay.unit(episodes).name == "h"
    short = dataclasses.replace(episodes[0], latency_min=np.zeros(60))
    assert replay.unit([short]) == Unit(60, "min")


def test_trace_is_that_of_the_plain_episode() -> None:
    episode, steps = recorded(), traced().steps
    plain = untrained_policy().run(SETTINGS, SEED, setup(), record=True)
    assert episode.parallelism is not None
    np.testing.assert_array_equal(episode.parallelism, plain.parallelism)
    assert [step.minute for step in steps] == list(range(0, 180, SETTINGS.decide_every_min))
    for step in steps:
        np.testing.assert_array_equal(episode.parallelism[step.minute], step.after)
        assert step.act or not step.restarted
        assert step.act == (step.probability > 0.5)
    restarts = [step.minute for step in steps if step.restarted]
    assert restarts
    assert restarts == episode.restart_minutes.tolist()


def test_reads_are_those_of_the_explanation() -> None:
    policy, names = untrained_policy(), setup().job.names
    runner = policy.start_episode(SETTINGS, SEED, setup())
    (_, decision), step = next(policy.steps(runner)), traced().steps[0]
    assert step.read is not None
    for task in range(len(names)):
        expected = drawn(decision, task, names)
        ages = step.read.snapshot[task]
        assert [entry["minutes_ago"] for entry in expected] == ages[ages != NONE].tolist()
        for slot, entry in enumerate(expected):
            tasks = [names[other] for other in step.read.neighbour[task, slot] if other != NONE]
            assert entry["neighbours"] == tasks
            assert entry["weight"] == pytest.approx(step.read.weight[task, slot], abs=1e-6)


def test_thinned_steps_keep_restarts_first() -> None:
    trace = traced()
    assert thinned(trace) == trace.steps
    total = sum(step.numbers for step in trace.steps)
    few = thinned(trace, total // 4)
    assert len(few) == len(trace.steps) // 4
    restarting = [step for step in trace.steps if step.restarted]
    assert [step for step in few if step.restarted] == restarting[: len(few)]
    assert few[-1].minute > 90
    assert thinned(trace, 1) == ()


def test_picture_selects_the_largest_change_after_the_first_decision() -> None:
    steps = traced().steps
    chosen = select_step(steps)
    assert chosen is not None
    assert chosen.minute > 0
    change = max(int(np.abs(step.after - step.before).sum()) for step in steps[1:])
    assert int(np.abs(chosen.after - chosen.before).sum()) == change
    assert select_step(steps[:1]) is steps[0]
    assert select_step([dataclasses.replace(steps[0], read=None)]) is None


def test_command_replays_rules_and_draws_them(here: Path, cli: Cli) -> None:
    record = cli.json(f"replay stream_scaling --set minutes=180 --seed {SEED} --picture week.svg")
    assert list(record["policies"]) == ["flink", "hpa"]
    flink = record["policies"]["flink"]
    default = StreamScalingSettings(minutes=180)
    expected = replay.run("flink", None, default, SEED, build_setup(default), True)
    assert flink == pytest.approx(dict(expected.figures))
    assert (here / "week.svg").read_bytes().startswith(b"<?xml")
    text = (here / "replay.html").read_text()
    assert "stream_scaling · clarknet-like · small-1 (10 tasks), 3 hours · seed 2" in text


def test_bundle_is_compared_with_the_best_rule(here: Path, cli: Cli) -> None:
    make_bundle(here / "sure-mine", system="sure", environment=ENVIRONMENT)
    record = cli.json("replay ./sure-mine -o page.html --picture case.png")
    ours, best = record["policies"]
    rewards = {
        name: replay.run(name, None, SETTINGS, 0, setup(), False).reward
        for name in replay.REPLAY.opponents(SETTINGS)
    }
    assert (ours, best) == ("sure-mine", max(rewards, key=rewards.__getitem__))
    assert (here / "case.png").read_bytes().startswith(b"\x89PNG")
    first, second = data_in((here / "page.html").read_text())["policies"]
    assert first["case"]["history"] == ENVIRONMENT["history"]
    assert second["case"] is None


def test_system_without_pretrained_policy_is_refused_in_one_line(here: Path, cli: Cli) -> None:
    assert "no pretrained sure policy" in cli.error("replay sure")
    assert list(here.iterdir()) == []
