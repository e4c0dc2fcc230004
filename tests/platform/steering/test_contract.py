"""What every engine keeps to, with one engine of quantities and one of jobs over simulators.

Of another engine, with a `World` as in `toys.py` (its package may live elsewhere):
`LOADMASTER_WORLD=my_package.world:World pytest tests/platform/steering/test_contract.py`.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from loadmaster.envs.registry import resolve
from loadmaster.platform.steering import registry
from loadmaster.platform.steering.core import (
    Mode,
    Recommendation,
    SilentError,
    Steerer,
    StepResult,
)
from loadmaster.platform.steering.jobs import JobSteerer, Limits
from loadmaster.platform.steering.recommenders import find_recommender
from tests.platform.cli.one_line import Cli
from tests.platform.steering.toys import Gpus, Killed, Pods, World

MORE = os.environ.get("LOADMASTER_WORLD")
WORLDS: list[type[World]] = [Pods, Gpus, *([resolve(MORE)] if MORE else [])]
OF_JOBS = [one for one in WORLDS if resolve(one.reference).by_jobs]
MINUTE = 60.0  # longer than a decision of jobs is used, and than waits after a refusal


class Recorder:
    """The rule of a world, which keeps the outcomes that it is told, and can be silent."""

    name = "recorder"

    def __init__(self, world: World) -> None:
        endpoint = resolve(world.reference).endpoint
        self._rule, self._outcome = find_recommender([world.rule], endpoint), resolve(endpoint)
        self.silent, self.decisions = False, 0
        self.outcomes: list[str | None] = []  # the decision of each

    def recommend(self, application: str, state: Mapping[str, Any]) -> Recommendation:
        if self.silent:
            raise SilentError("recommender", "no answer")
        found = self._rule.recommend(application, state)  # refuses a state that is not valid
        self.decisions += 1
        return replace(found, id=f"d{self.decisions}")

    def feedback(self, application: str, id: str | None, outcome: Mapping[str, Any]) -> None:
        self._outcome.outcome.model_validate(outcome)
        self.outcomes.append(id)


class Adapter:
    """A process that steers a world: an engine object and a steerer."""

    def __init__(self, world: World, mode: Mode = "act", limits: Limits | None = None) -> None:
        self.recommender, self._engine = Recorder(world), world.adapter()
        self._steerer: Any
        if resolve(world.reference).by_jobs:
            self._steerer = JobSteerer(self.recommender, mode, limits)
        else:
            self._steerer = Steerer(self.recommender, mode)

    def step(self, now_s: float) -> StepResult:
        found: StepResult = self._steerer.step(self._engine, now_s)
        return found


@pytest.fixture(params=WORLDS, ids=lambda one: one.__name__)
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.param()
    return found


@pytest.fixture(params=OF_JOBS, ids=lambda one: one.__name__)
def world_of_jobs(request: pytest.FixtureRequest) -> World:
    found: World = request.param()
    return found


def steered_once(world: World) -> World:
    """A world like this one, after one step without faults."""
    other = type(world)()
    assert Adapter(other).step(0.0).result == "acted"
    assert len(other.done) >= 2
    return other


@pytest.mark.parametrize("mode", ["watch", "shadow"])
def test_other_modes_change_nothing_and_only_shadow_reports(world: World, mode: Mode) -> None:
    left_alone, adapter = type(world)(), Adapter(world, mode)
    first = adapter.step(0.0)
    world.go_on()
    left_alone.go_on()
    second = adapter.step(MINUTE)
    assert (world.picture(), world.attempts) == (left_alone.picture(), 0)
    assert [one.result for one in (first, second)] == ["dry-run"] * 2
    if mode == "watch":
        assert (adapter.recommender.outcomes, second.agreement) == ([], None)
    else:
        assert set(adapter.recommender.outcomes) == {None}  # of what the engine did
        assert second.agreement is not None


def test_act_changes_and_reports_outcomes_of_its_decisions(world: World) -> None:
    adapter, before = Adapter(world), world.picture()
    assert adapter.step(0.0).result == "acted"
    assert world.picture() != before
    world.go_on()
    adapter.step(MINUTE)
    assert set(adapter.recommender.outcomes) == {"d1"}


def test_the_same_state_is_acted_on_once(world: World) -> None:
    adapter, expected = Adapter(world), steered_once(world)
    results = [adapter.step(now_s).result for now_s in (0.0, 1.0, MINUTE)]
    assert results == ["acted", "unchanged", "unchanged"]
    assert (world.done, world.picture()) == (expected.done, expected.picture())


@pytest.mark.parametrize("changes", [1, 2])
def test_killed_adapter_goes_on_from_what_is_seen(world: World, changes: int) -> None:
    world.dies_after = changes
    with pytest.raises(Killed):
        Adapter(world).step(0.0)
    assert len(world.done) == changes
    for _ in range(2):
        assert not Adapter(world).step(1.0).degraded
    expected = steered_once(world)
    assert (world.done, world.picture()) == (expected.done, expected.picture())


def test_silent_recommender_leaves_all_as_it_is(world: World) -> None:
    adapter, before = Adapter(world), world.picture()
    adapter.recommender.silent = True
    for now_s in (0.0, 1.0, MINUTE):
        result = adapter.step(now_s)
        assert (result.silent, result.degraded) == ("recommender", True)
    assert (world.picture(), world.attempts) == (before, 0)
    adapter.recommender.silent = False
    assert adapter.step(2 * MINUTE).result == "acted"


def test_silent_engine_is_degraded_and_steered_once_it_answers(world: World) -> None:
    adapter, before = Adapter(world), world.picture()
    world.silent = True
    result = adapter.step(0.0)
    assert (result.result, result.silent, result.degraded) == ("silent", "engine", True)
    assert (world.picture(), world.attempts) == (before, 0)
    world.silent = False
    assert adapter.step(MINUTE).result == "acted"


def test_refused_change_leaves_the_others_and_is_tried_again(world: World) -> None:
    expected, adapter = steered_once(world), Adapter(world)
    world.refused = {expected.done[0][0]}
    result = adapter.step(0.0)
    assert (result.result, result.degraded) == ("refused", True)
    assert any("not allowed" in text for text in result.messages)
    assert world.done == expected.done[1:]
    world.refused = set()
    assert adapter.step(MINUTE).result == "acted"
    assert dict(world.done) == dict(expected.done)


def test_refused_command_is_not_repeated_at_once(world_of_jobs: World) -> None:
    world = world_of_jobs
    world.refused = {steered_once(world).done[0][0]}
    adapter = Adapter(world, limits=Limits(back_off_s=5))
    attempts = []
    for now_s in (0.0, 1.0, 4.0, 6.0, 10.0, 15.0, 17.0):
        before = world.attempts
        adapter.step(now_s)
        attempts.append(world.attempts - before)
    assert attempts[1:] == [0, 0, 1, 0, 0, 1]  # after 5 s, then after 10


def test_limit_of_commands_a_minute_holds(world_of_jobs: World) -> None:
    world = world_of_jobs
    adapter = Adapter(world, limits=Limits(commands_per_minute=2))
    done = []
    for now_s in (0.0, 1.0, MINUTE - 1.0, MINUTE + 2.0):
        adapter.step(now_s)
        done.append(len(world.done))
    expected = steered_once(world)
    assert done == [2, 2, 2, min(4, len(expected.done))]
    assert world.done == expected.done[: done[-1]]


def test_engine_of_an_entry_point_is_listed_and_steered(
    world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolve(world.reference)
    entry = EntryPoint(spec.name, world.reference, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    listed = {one["name"]: one for one in cli.json("steer --list")["engines"]}
    assert listed.keys() == {*registry.BUILT_IN, spec.name}
    assert listed[spec.name]["summary"] == spec.summary
    application = world.adapter().application
    line = f"steer {spec.name} {application} --once --recommender {world.rule}"
    assert cli(line).out.startswith(f"{application} dry-run: ")
    step = cli.json(f"{line} --mode act")
    assert (step["result"], step["degraded"]) == ("acted", False)
    silent = cli.json(f"{line} --recommender service --url http://127.0.0.1:9")
    assert (silent["result"], silent["source"]) == ("dry-run", f"rule {world.rule}")


def test_errors_of_the_command_are_one_line(
    world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolve(world.reference)
    entry = EntryPoint(spec.name, world.reference, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    application = world.adapter().application
    assert "expected" in cli.error(f"steer {spec.name} nothing --once --recommender {world.rule}")
    assert "no_such" in cli.error(f"steer {spec.name} {application} --once --set no_such=1")
    assert "recommender" in cli.error(f"steer {spec.name} {application} --once --recommender no")
    unanswered = f"steer {spec.name} {application} --once --url http://127.0.0.1:9"
    assert "silent" in cli(unanswered, 1).err
