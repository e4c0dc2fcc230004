"""An agent that learns from nothing beside one with a bootstrapper, and beside the shipped policy.

After Qiu et al. 2023, section 6.5: 400 episodes on an application, in hundreds, relative to the
tuned rule on the same seeds. A second part compares the lower bound by which OFFLINE ends with the
reward that the evaluated agent earns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.applications import GENERATED, TRAINED
from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.episode import EpisodeResult, build_setup
from loadmaster.envs.pod_scaling.metrics import violated_steps
from loadmaster.envs.pod_scaling.rollout import run_baseline
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation
from loadmaster.models.aware.settings import AwareSettings
from loadmaster.platform.bench.bootstrapping import BootstrapEffort
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.systems.aware.adaptation_bench import AWARE, rival, uses_of
from loadmaster.platform.systems.aware.bootstrapping import (
    BOOTSTRAPPED,
    VIOLATION_COST,
    Bootstrapped,
    Bootstrapper,
    Case,
    PlanAgent,
    learn_bootstrapped,
    learn_from_nothing,
    objective,
    record_agent,
    record_rule,
)
from loadmaster.serving.monitoring.lifecycle import LifecycleState

FILES = TABLE, BOUNDS_TABLE = "bootstrapping.csv", "bounds.csv"
NOTHING, WITH = "nothing", "bootstrapped"  # agents, beside AWARE
RULES = ("hpa", "mpa")  # the better one of them acts
UNSEEN = GENERATED - TRAINED  # applications of `test`
CHOSEN_SEED = FIRST_SEED + 5_000_000  # of episodes that the rule is chosen in
LEARNT_SEED, TEST_SEED = FIRST_SEED + 6_000_000, FIRST_SEED + 7_000_000
CHOSEN = 20  # episodes
MOST_VIOLATIONS, FEWER_VIOLATIONS = 1.1, 10.0  # goals: times those of the rule, of without
THE_GOAL, THE_RULE = "the goal", "the rule"


@dataclass(frozen=True)
class Part:
    """An agent's episodes of a hundred, on one application, beside the rule's."""

    application: int  # of the test set
    agent: str
    first: int  # episode, counted from 1
    last: int
    rule: str
    reward: float
    rule_reward: float
    cpu_use: float  # %
    rule_cpu_use: float
    memory_use: float
    rule_memory_use: float
    violations: float  # % of steps
    rule_violations: float
    acted: float  # % of the episodes in which the agent acted


@dataclass(frozen=True)
class Bound:
    """A lower bound from the rule's log, and the mean of what the agent earned."""

    application: int
    rule_objective: float  # reward less the cost of violations, as the next three
    estimate: float
    lower: float
    truth: float
    standard_error: float  # of the truth
    reward: float
    violations: float  # % of steps
    rule_reward: float
    rule_violations: float

    @property
    def above(self) -> bool:
        return self.lower > self.truth


def make_case(number: int, steps: int) -> Case:
    """Application `number` of the test set, with the tuned rule that earns most there."""
    settings = PodScalingSettings(application=f"test:{number}", steps=steps)
    setup = build_setup(settings)
    name, seeds = setup.applications[0].name, range(CHOSEN_SEED, CHOSEN_SEED + CHOSEN)
    rules = [tuned_baseline(rule, settings, name) for rule in RULES]

    def worth(case: Case) -> float:
        return float(np.mean([objective(record_rule(case, seed)) for seed in seeds]))

    return max((Case(settings, setup, rule) for rule in rules), key=worth)


def measure(
    report_step: Callable[[str], None], effort: BootstrapEffort, folder: Path | None
) -> Iterator[Figure]:
    for name in ("applications", "bounds"):
        if not 1 <= (count := getattr(effort, name)) <= UNSEEN:
            raise InputError(f"--{name} is {count}; expected 1 to {UNSEEN}")
    parts: list[Part] = []
    learnt: list[Bootstrapped] = []
    for number in range(effort.applications):
        parts += _measure_application(number, effort, report_step, learnt)
    bounds = []
    for number in range(effort.bounds):
        report_step(f"test:{number}: lower bound and truth")
        bounds.append(measure_bound(make_case(number, effort.steps), number, effort))
    if folder is not None:
        write_tables(folder, {TABLE: parts, BOUNDS_TABLE: bounds})
        report_step(f"written: {', '.join(str(folder / name) for name in FILES)}")
    yield from part_figures(parts)
    yield from lifecycle_figures(learnt)
    yield from bound_figures(bounds)


def _measure_application(
    number: int,
    effort: BootstrapEffort,
    report_step: Callable[[str], None],
    learnt: list[Bootstrapped],
) -> Iterator[Part]:
    case = make_case(number, effort.steps)
    seeds = range(LEARNT_SEED, LEARNT_SEED + effort.episodes)
    rules = [run_baseline(case.rule, case.settings, case.setup, seed) for seed in seeds]
    report_step(f"test:{number}: from nothing")
    found = learn_from_nothing(case, seeds, number)
    yield from parts_of(number, NOTHING, case, found, rules, effort.part)
    report_step(f"test:{number}: with a bootstrapper")
    led = learn_bootstrapped(case, seeds, number)
    learnt.append(led)
    for why in led.why:
        report_step(f"test:{number}: {why}")
    yield from parts_of(number, WITH, case, led.results, rules, effort.part, led.states)
    report_step(f"test:{number}: the shipped policy")
    known = Adaptation.new(rival(AWARE, None, AwareSettings())[0])
    own = [known.run_episode(case.settings, case.setup, seed) for seed in seeds[: effort.shipped]]
    yield from parts_of(number, AWARE, case, own, rules, effort.part)


def parts_of(
    number: int,
    agent: str,
    case: Case,
    results: Sequence[EpisodeResult],
    rules: Sequence[EpisodeResult],
    size: int,
    states: list[LifecycleState] | None = None,
) -> Iterator[Part]:
    """Means of each `size` episodes; without states the agent acted in all of them."""
    for first in range(0, len(results), size):
        own, ruled = results[first : first + size], rules[first : first + size]
        offline = (states or [])[first : first + size].count(LifecycleState.OFFLINE)
        (reward, *uses, violations), (rule_reward, *rule_uses, rule_violations) = (
            np.mean([(r.reward, *uses_of(r), violated_steps(r)) for r in some], 0).tolist()
            for some in (own, ruled[: len(own)])
        )
        yield Part(
            *(number, agent, first + 1, first + len(own), case.rule.name, reward, rule_reward),
            *(uses[0], rule_uses[0], uses[1], rule_uses[1], violations, rule_violations),
            acted=100 * (1 - offline / len(own)),
        )


def part_figures(parts: Sequence[Part]) -> Iterator[Figure]:
    """Means over applications, by agent and hundred; violations are a ratio of their sums."""
    table = pd.DataFrame(parts)
    times: dict[str, list[float]] = {}
    for (agent, first, last), rows in table.groupby(["agent", "first", "last"], sort=False):
        prefix = f"aware/bootstrapping/{agent}/{first}-{last}"
        for use in ("cpu_use", "memory_use"):
            change = 100 * (rows[use] / rows[f"rule_{use}"] - 1).mean()
            yield Figure(f"{prefix}/{use}", float(change), "% of the rule's")
        ratio = _ratio(rows.violations.sum(), rows.rule_violations.sum())
        times.setdefault(str(agent), []).append(ratio)
        goal = MOST_VIOLATIONS if agent == WITH else None
        name, unit = f"{prefix}/violations", "times the rule's"
        yield Figure(name, ratio, unit, goal, THE_GOAL if goal else "", False)
        reward, ruled = float(rows.reward.mean()), float(rows.rule_reward.mean())
        yield Figure(f"{prefix}/reward", reward, "a step", ruled, THE_RULE)
        yield Figure(f"{prefix}/acted", float(rows.acted.mean()), "% of episodes")
    yield Figure(
        "aware/bootstrapping/worst_hundred",
        max(times[WITH]),
        "times the rule's violations",
        MOST_VIOLATIONS,
        THE_GOAL,
        higher_is_better=False,
    )
    sums = {agent: rows.violations.sum() for agent, rows in table.groupby("agent")}
    fewer = _ratio(sums[NOTHING], sums[WITH])
    name = "aware/bootstrapping/violations_nothing_over_bootstrapped"
    yield Figure(name, fewer, "times", FEWER_VIOLATIONS, THE_GOAL)


def _ratio(one: float, other: float) -> float:
    """One over the other; infinite if only the other is 0, and 1 if both are."""
    if other:
        return float(one / other)
    return float("inf") if one else 1.0


def lifecycle_figures(learnt: Sequence[Bootstrapped]) -> Iterator[Figure]:
    """How long the rule acted first, and how often it acted again."""
    acting = [[state is not LifecycleState.OFFLINE for state in each.states] for each in learnt]
    first = [own.index(True) if any(own) else len(own) for own in acting]
    returns = [int((np.diff(np.array(own, int)) < 0).sum()) for own in acting]
    never = [not any(own) for own in acting]
    prefix = "aware/bootstrapping/lifecycle"
    for name, value, unit in (
        ("offline_episodes", float(np.median(first)), "episodes"),
        ("never_online", float(np.sum(never)), f"of {len(learnt)} applications"),
        ("returns_to_offline", float(np.mean(returns)), "an application"),
    ):
        yield Figure(f"{prefix}/{name}", value, unit, higher_is_better=False)


def measure_bound(case: Case, number: int, effort: BootstrapEffort) -> Bound:
    """Learn from the rule's log alone, bound the agent's reward, and measure it."""
    logged = [record_rule(case, seed) for seed in range(LEARNT_SEED, LEARNT_SEED + effort.logged)]
    agent = PlanAgent(BOOTSTRAPPED, [each.episode for each in logged])
    agent.learn(effort.updates)
    lead = Bootstrapper(case, np.random.default_rng(number), agent)
    estimate = lead.judge()
    seeds = range(TEST_SEED, TEST_SEED + effort.tests)
    earned = [record_agent(agent.actions, case, seed, None) for seed in seeds]
    truth = np.array([objective(each) for each in earned])

    def means(results: Sequence[EpisodeResult]) -> tuple[float, float]:
        rewards, violations = zip(*((r.reward, violated_steps(r)) for r in results), strict=True)
        return float(np.mean(rewards)), float(np.mean(violations))

    reward, violations = means([each.result for each in earned])
    rule_reward, rule_violations = means([each.result for each in logged])
    return Bound(
        application=number,
        rule_objective=rule_reward - VIOLATION_COST * rule_violations / 100,
        estimate=estimate.mean,
        lower=estimate.lower,
        truth=float(truth.mean()),
        standard_error=float(truth.std(ddof=1) / np.sqrt(len(truth))),
        reward=reward,
        violations=violations,
        rule_reward=rule_reward,
        rule_violations=rule_violations,
    )


def bound_figures(bounds: Sequence[Bound]) -> Iterator[Figure]:
    """How often a bound is wrong, and what it allows."""
    count, prefix = len(bounds), "aware/bootstrapping/bound"
    above = float(sum(bound.above for bound in bounds))
    applications = f"of {count} applications"
    name, goal = f"{prefix}/lower_bound_above_truth", 3 / 50 * count
    yield Figure(name, above, applications, goal, THE_GOAL, higher_is_better=False)
    passed = [bound for bound in bounds if bound.lower >= bound.rule_objective]
    yield Figure(f"{prefix}/passed", float(len(passed)), applications)
    worse = float(sum(bound.truth < bound.rule_objective for bound in passed))
    of_passed = f"of {len(passed)} that pass"
    yield Figure(f"{prefix}/passed_below_rule", worse, of_passed, higher_is_better=False)
    room = float(np.mean([bound.truth - bound.lower for bound in bounds]))
    yield Figure(f"{prefix}/truth_less_bound", room, "a step")
