"""The benchmark of bootstrapping: recorded rules, the lifecycle that leads, and its figures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.pod_scaling.rollout import run_baseline
from loadmaster.platform.bench.bootstrapping import BootstrapEffort, measure
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.systems.aware import bootstrapping
from loadmaster.platform.systems.aware.bootstrapping import (
    VIOLATION_COST,
    Bootstrapped,
    Bootstrapper,
    Case,
    learn_bootstrapped,
    learn_from_nothing,
    record_agent,
    record_rule,
)
from loadmaster.platform.systems.aware.bootstrapping_bench import (
    BOUNDS_TABLE,
    NOTHING,
    TABLE,
    WITH,
    Bound,
    Part,
    bound_figures,
    lifecycle_figures,
    make_case,
    part_figures,
)
from loadmaster.serving.monitoring.lifecycle import Estimate, LifecycleState
from tests.platform.cli.one_line import Cli

STEPS = 12
TINY = BootstrapEffort(
    applications=1, bounds=1, episodes=12, part=6, shipped=6, logged=4, updates=20, tests=2,
    steps=STEPS,
)  # fmt: skip
OFFLINE, ONLINE = LifecycleState.OFFLINE, LifecycleState.ONLINE


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case(0, STEPS)


def named(figures: Iterator[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_recorded_rule_is_the_rule_and_its_plans_are_actions(case: Case) -> None:
    found = record_rule(case, 7)
    plain = run_baseline(case.rule, case.settings, case.setup, 7)
    assert np.array_equal(found.result.rewards, plain.rewards)
    assert found.episode.observations.shape == (STEPS + 1, 14)
    # The plan of a step is in the next observation, from 0 to 1.
    assert np.allclose(found.episode.actions, 2 * found.episode.observations[1:, :3] - 1, atol=1e-5)
    violated = plain.p99_s > plain.slo_s
    assert np.allclose(found.episode.rewards, plain.rewards - VIOLATION_COST * violated)


def test_agent_acts_by_plans(case: Case) -> None:
    def act(observations: bootstrapping.Floats, contexts: object) -> bootstrapping.Floats:
        return np.array([[1.0, 1.0, -1.0]], np.float32)

    found = record_agent(act, case, 3, None)
    assert (found.result.cores[-1], found.result.mib[-1]) == pytest.approx((2.048, 3072))
    noise = np.full((STEPS, 3), 2.0, np.float32)
    assert record_agent(act, case, 3, noise).episode.actions.max() == 1


def test_lifecycle_leads(case: Case) -> None:
    lead = Bootstrapper(case, np.random.default_rng(0))
    lead.change_state()
    assert lead.state is OFFLINE
    for seed in range(10):
        assert lead.run_episode(seed).policy == case.rule.name
    assert lead.change_state() is None, "there is no estimate"
    mean = float(np.mean(lead.rules))
    lead.estimate = Estimate(mean, mean - 0.01, "test", 10)
    assert lead.change_state() is None
    lead.estimate = Estimate(mean + 1, mean + 0.01, "test", 10)
    assert lead.change_state() is not None
    assert lead.state is ONLINE
    assert lead.run_episode(10).policy == "agent"
    lead.rewards = [mean - 1 + 0.01 * place for place in range(10)]
    assert lead.change_state() is not None
    assert (lead.state, lead.rewards, lead.estimate) == (OFFLINE, [], None)


def test_actions_stay_within_the_log(case: Case) -> None:
    lead = Bootstrapper(case, np.random.default_rng(0))
    lead.change_state()
    for seed in range(4):
        lead.run_episode(seed)
    estimate = lead.judge()
    assert estimate.lower < estimate.mean
    log = lead.agent.log
    found = lead.agent.actions(10 * log.observations, None)
    assert (found >= log.actions.min(0)).all()
    assert (found <= log.actions.max(0)).all()


def test_seed_decides(case: Case) -> None:
    one, again, other = (learn_from_nothing(case, range(12), seed) for seed in (1, 1, 2))
    assert [each.reward for each in one] == [each.reward for each in again]
    assert [each.reward for each in one] != [each.reward for each in other]
    led = learn_bootstrapped(case, range(3), 1)
    assert led.states == [OFFLINE] * 3


def part(agent: str, first: int, violations: float, cpu: float = 30.0) -> Part:
    return Part(
        *(0, agent, first, first + 99, "hpa", 1.5, 1.4, cpu, 40.0, 50.0, 50.0),
        *(violations, 4.0, 100.0),
    )


def test_figures_by_hand() -> None:
    rows = [part(NOTHING, 1, 40), part(NOTHING, 101, 20), part(WITH, 1, 4), part(WITH, 101, 5, 44)]
    found = named(part_figures(rows))
    prefix = "aware/bootstrapping"
    assert found[f"{prefix}/{NOTHING}/1-100/violations"].value == 10
    assert found[f"{prefix}/{NOTHING}/1-100/cpu_use"].value == pytest.approx(-25)
    assert found[f"{prefix}/{WITH}/101-200/cpu_use"].value == pytest.approx(10)
    assert found[f"{prefix}/{WITH}/101-200/memory_use"].value == 0
    assert found[f"{prefix}/worst_hundred"].value == 1.25
    assert found[f"{prefix}/violations_nothing_over_bootstrapped"].value == pytest.approx(60 / 9)
    states = [OFFLINE] * 2 + [ONLINE] * 2 + [OFFLINE]
    led = [Bootstrapped([], states, []), Bootstrapped([], [OFFLINE] * 5, [])]
    values = {name.split("/")[-1]: f.value for name, f in named(lifecycle_figures(led)).items()}
    assert values == {"offline_episodes": 3.5, "never_online": 1, "returns_to_offline": 0.5}


def test_bounds_by_hand() -> None:
    def bound(lower: float, truth: float) -> Bound:
        return Bound(0, 1.0, 1.2, lower, truth, 0.01, truth, 1.0, 1.1, 2.0)

    found = named(bound_figures([bound(0.9, 1.1), bound(1.1, 1.2), bound(1.05, 0.8)]))
    values = {name.split("/")[-1]: figure.value for name, figure in found.items()}
    assert values["lower_bound_above_truth"] == 1
    assert values["passed"] == 2
    assert values["passed_below_rule"] == 1
    assert values["truth_less_bound"] == pytest.approx((0.2 + 0.1 - 0.25) / 3)


def test_all_of_it_is_measured(tmp_path: Path) -> None:
    steps: list[str] = []
    found = named(measure(steps.append, "aware", TINY, tmp_path))
    for agent in (NOTHING, WITH):
        for span in ("1-6", "7-12"):
            figure = found[f"aware/bootstrapping/{agent}/{span}/violations"]
            assert figure.unit == "times the rule's"
            assert figure.value >= 0
    assert found[f"aware/bootstrapping/{WITH}/1-6/violations"].value == 1, "the rule acts"
    assert found[f"aware/bootstrapping/{WITH}/7-12/acted"].value == 0
    assert found["aware/bootstrapping/aware/1-6/reward"].value > 1
    assert found["aware/bootstrapping/bound/lower_bound_above_truth"].value in (0, 1)
    table = pd.read_csv(tmp_path / TABLE)
    assert table.agent.value_counts().to_dict() == {NOTHING: 2, WITH: 2, "aware": 1}
    assert len(pd.read_csv(tmp_path / BOUNDS_TABLE)) == 1
    assert any("from nothing" in step for step in steps)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bootstrapping das", "unknown system 'das'"),
        ("bootstrapping aware --applications 0", "--applications is 0"),
        ("bootstrapping aware --applications 201", "--applications is 201; expected 1 to 200"),
        ("bootstrapping aware --bounds 0", "--bounds is 0"),
        ("bootstrapping aware --seeds 2", "takes no --seeds"),
        ("adaptation aware --bounds 2", "takes no --bounds"),
        ("bootstrapping aware --output /dev/null/x", "cannot write to --output"),
    ],
)
def test_bad_input_is_one_line(line: str, words: str, cli: Cli) -> None:
    assert words in cli.error(f"bench {line}")
