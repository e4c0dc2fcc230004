"""Shifts of an application's payload, load or code: how soon AWARE's fall is noticed, and over.

The shipped policy runs steady episodes and then episodes in which a shift holds. The detector of
the service (`serving/monitoring/reward_falls.py`) gets the reward of each episode, with the hour
that its load has by the seed. Afterwards AWARE follows by estimates and embedding alone, TL by
fine-tuning of its weights; both are judged before every episode, in episodes without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from loadmaster.envs.errors import InputError
from loadmaster.envs.loads import Floats, Load
from loadmaster.envs.pod_scaling.applications import GENERATED, TRAINED
from loadmaster.envs.pod_scaling.episode import Setup, build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.settings import AwareSettings
from loadmaster.platform.bench.measurements import Figure, write_tables
from loadmaster.platform.bench.shifts import ShiftEffort
from loadmaster.platform.systems.aware.adaptation_bench import (
    AWARE,
    TL,
    TOLERANCE,
    first_reaching,
    rival,
)
from loadmaster.platform.systems.aware.fine_tuning import (
    EXPLORED_SEED,
    JUDGED_SEED,
    FineTuner,
    FineTuning,
    judge,
)
from loadmaster.serving.monitoring.reward_falls import FallDetector, FallSettings

FILES = TABLE, STEADY_TABLE = "shifts.csv", "steady.csv"
UNSEEN = GENERATED - TRAINED  # applications of `test`
NOTICED_GOAL, FALSE_ALARM_GOAL = 5.0, 1.0  # episodes; in 1,000 episodes
LARGE_FALL = 10.0  # % of the reward
FALL_EPISODES = 5  # after the shift, whose mean is compared
STEADY_SEED, SHIFTED_SEED = FIRST_SEED + 3_000_000, FIRST_SEED + 4_000_000
PAYLOAD = 1.5


class ShiftKind(NamedTuple):
    """What an application has before and after."""

    name: str
    load: str  # before
    changes: dict[str, object]


def shift_kinds(number: int) -> tuple[ShiftKind, ...]:
    """The published shifts of application `number` of the test set."""
    other = f"test:{(number + UNSEEN // 2) % UNSEEN}"
    return (
        ShiftKind("payload", "high", {"payload": PAYLOAD}),
        ShiftKind("load-low", "high", {"load": "low"}),
        ShiftKind("load-high", "low", {"load": "high"}),
        ShiftKind("application", "high", {"application": other}),
    )


@dataclass
class ClockedLoad:
    """A load that keeps the minute of the week at which its last episode began."""

    load: Load
    minute: int = 0

    @property
    def name(self) -> str:
        return self.load.name

    @property
    def description(self) -> str:
        return self.load.description

    def draw(self, minutes: int, rng: np.random.Generator) -> tuple[Floats, int]:
        counts, self.minute = self.load.draw(minutes, rng)
        return counts, self.minute


class Condition(NamedTuple):
    """Settings of episodes, with the hours of their loads."""

    settings: PodScalingSettings
    setup: Setup
    clock: ClockedLoad

    @classmethod
    def of(cls, settings: PodScalingSettings) -> Condition:
        setup = build_setup(settings)
        clock = ClockedLoad(setup.load)
        return cls(settings, setup._replace(load=clock), clock)

    def run(self, found: Adaptation, seed: int) -> tuple[float, float]:
        """Reward of an episode that the policy adapts in, and the time of its begin."""
        reward = found.run_episode(self.settings, self.setup, seed).reward
        return reward, 60.0 * self.clock.minute


@dataclass
class Monitored:
    """A policy on one application, and the detector of its falls."""

    found: Adaptation
    detector: FallDetector
    rewards: list[float]
    alarms: int = 0  # falls that were reported

    @classmethod
    def new(cls, policy: AwarePolicy) -> Monitored:
        return cls(Adaptation.new(policy), FallDetector(), [])

    def copy(self) -> Monitored:
        found = replace(self.found, known=self.found.copy(), best=list(self.found.best))
        return Monitored(found, deepcopy(self.detector), list(self.rewards), self.alarms)

    def run_episode(self, condition: Condition, seed: int) -> bool:
        """Run an episode, and pass its reward to the detector; whether that reports a fall."""
        reward, time = condition.run(self.found, seed)
        self.rewards.append(reward)
        drift = self.detector.add(time, reward, 1, FallSettings())
        fell = drift is not None and drift.fell
        self.alarms += fell
        return fell


@dataclass(frozen=True)
class ShiftRow:
    """An application under one shift."""

    application: int  # of the test set
    shift: str
    steady_reward: float
    shifted_reward: float  # mean of the first episodes
    fall: float  # % of the steady reward
    noticed_after: float  # episodes; infinite: not in those that were run
    converged_reward: float  # under the shift, of the better of the two
    aware_episodes: int  # until within TOLERANCE of it, 1: before the first
    tl_episodes: int
    aware_deficit: float  # % of converged, before the first episode
    tl_deficit: float


@dataclass(frozen=True)
class SteadyRow:
    """Steady episodes of an application."""

    application: int
    load: str
    episodes: int
    reward: float
    deviation: float  # of an episode's reward
    alarms: int


@dataclass(frozen=True)
class ShiftResult:
    rows: Sequence[ShiftRow]
    steady: Sequence[SteadyRow]

    def figures(self) -> Iterator[Figure]:
        """By shift, and over all of them."""
        table, prefix = pd.DataFrame(self.rows), "aware/shifts"
        for name, rows in table.groupby("shift", sort=False):
            yield Figure(f"{prefix}/{name}/fall", rows.fall.mean(), "% of reward")
            yield from _noticed(f"{prefix}/{name}", rows)
            for policy in (AWARE, TL):
                episodes, deficit = (
                    rows[f"{policy}_episodes"].mean(),
                    rows[f"{policy}_deficit"].mean(),
                )
                yield _less(f"{prefix}/{name}/{policy}/episodes", episodes, "episodes")
                yield _less(f"{prefix}/{name}/{policy}/first_deficit", deficit, "% of converged")
        yield from _noticed(prefix, table)
        ratio = table.tl_episodes.mean() / table.aware_episodes.mean()
        yield Figure(f"{prefix}/episodes_tl_over_aware", ratio, "times", 2.0, "the goal")
        steady = pd.DataFrame(self.steady)
        alarms = 1000 * steady.alarms.sum() / steady.episodes.sum()
        name, goal = f"{prefix}/false_alarms", FALSE_ALARM_GOAL
        yield Figure(name, alarms, "in 1,000 episodes", goal, "the goal", False)
        yield Figure(f"{prefix}/steady_episodes", float(steady.episodes.sum()), "episodes")

    def write(self, folder: Path) -> None:
        write_tables(folder, {TABLE: self.rows, STEADY_TABLE: self.steady})


def _less(name: str, value: float, unit: str) -> Figure:
    return Figure(name, float(value), unit, higher_is_better=False)


def _noticed(prefix: str, rows: pd.DataFrame) -> Iterator[Figure]:
    """Of falls that are large: how many there are, and the median until one is noticed."""
    large = rows[rows.fall >= LARGE_FALL]
    share = 100 * len(large) / len(rows)
    yield Figure(f"{prefix}/large_falls", share, "% of shifts")
    if len(large):
        median, goal = float(large.noticed_after.median()), NOTICED_GOAL
        yield Figure(f"{prefix}/noticed_after", median, "episodes", goal, "the goal", False)


def measure(
    report_step: Callable[[str], None], effort: ShiftEffort, folder: Path | None
) -> Iterator[Figure]:
    if not 1 <= effort.applications <= UNSEEN:
        raise InputError(f"--applications is {effort.applications}; expected 1 to {UNSEEN}")
    aware, origin = rival(AWARE, None, AwareSettings())
    report_step(f"{AWARE}: {origin}")
    tl, origin = rival(TL, None, aware.settings)
    report_step(f"{TL}: {origin}")
    rows: list[ShiftRow] = []
    steady: list[SteadyRow] = []
    for number in range(effort.applications):
        calm: dict[str, Monitored] = {}
        for load in ("high", "low"):
            report_step(f"test:{number}: steady, load {load}")
            calm[load] = run_steady(aware, number, load, effort)
            steady.append(_steady_row(calm[load].copy(), number, load, effort))
        for kind in shift_kinds(number):
            report_step(f"test:{number}: {kind.name}")
            rows.append(measure_shift(calm[kind.load], tl, number, kind, effort))
    result = ShiftResult(rows, steady)
    if folder is not None:
        result.write(folder)
        report_step(f"written: {', '.join(str(folder / name) for name in FILES)}")
    yield from result.figures()


def run_steady(policy: AwarePolicy, number: int, load: str, effort: ShiftEffort) -> Monitored:
    """The policy on an application without a shift, from its first episode on."""
    condition, found = Condition.of(_settings(number, load, effort)), Monitored.new(policy)
    for seed in range(STEADY_SEED, STEADY_SEED + effort.before):
        found.run_episode(condition, seed)
    return found


def _settings(number: int, load: str, effort: ShiftEffort) -> PodScalingSettings:
    settings = PodScalingSettings(application=f"test:{number}", steps=effort.steps)
    return settings.model_copy(update={"load": load})


def _steady_row(found: Monitored, number: int, load: str, effort: ShiftEffort) -> SteadyRow:
    """Go on without a shift, and count alarms."""
    condition = Condition.of(_settings(number, load, effort))
    count = max(effort.before, -(-effort.steady // (2 * effort.applications)))
    for seed in range(STEADY_SEED + effort.before, STEADY_SEED + count):
        found.run_episode(condition, seed)
    rewards = found.rewards
    deviation = float(np.std(rewards))
    return SteadyRow(number, load, len(rewards), float(np.mean(rewards)), deviation, found.alarms)


def measure_shift(
    before: Monitored, tl: AwarePolicy, number: int, kind: ShiftKind, effort: ShiftEffort
) -> ShiftRow:
    """A shift of an application after steady episodes."""
    calm = _settings(number, kind.load, effort)
    shifted = Condition.of(calm.model_copy(update=kind.changes))
    noticing, noticed = before.copy(), float("inf")
    for place in range(effort.shifted):
        if noticing.run_episode(shifted, SHIFTED_SEED + place):
            noticed = min(noticed, place + 1.0)
    steady = float(np.mean(before.rewards))
    after = float(np.mean(noticing.rewards[len(before.rewards) :][:FALL_EPISODES]))
    # TL gets to know the application before the shift too: its rule has estimates.
    known = Adaptation.new(tl)
    setup = build_setup(calm)
    for seed in range(STEADY_SEED, STEADY_SEED + effort.known):
        known.run_episode(calm, setup, seed)
    curves = {
        AWARE: recover(before.copy().found, shifted, effort, fine_tuned=False),
        TL: recover(known, shifted, effort, fine_tuned=True),
    }
    last = max(1, (effort.recovery + 1) // 3)
    best = max(float(curve[-last:].mean()) for curve in curves.values())
    counts = {policy: first_reaching(c, (1 - TOLERANCE) * best) for policy, c in curves.items()}
    deficits = {policy: 100 * (1 - float(c[0]) / best) for policy, c in curves.items()}
    return ShiftRow(
        *(number, kind.name, steady, after, 100 * (1 - after / steady), noticed, best),
        *(counts[AWARE], counts[TL], deficits[AWARE], deficits[TL]),
    )


def recover(found: Adaptation, shifted: Condition, effort: ShiftEffort, fine_tuned: bool) -> Floats:
    """(recovery + 1,) rewards judged before each episode under the shift and after the last."""
    settings, setup = shifted.settings, shifted.setup
    tuner = FineTuner(found.policy, FineTuning()) if fine_tuned else None
    judged_on = range(JUDGED_SEED, JUDGED_SEED + effort.judged)

    def judged() -> float:
        policy = tuner.policy if tuner else found.policy
        results = judge(policy, settings, setup, found.known, judged_on)
        return float(np.mean([result.reward for result in results]))

    rewards = [judged()]
    for seed in range(EXPLORED_SEED, EXPLORED_SEED + effort.recovery):
        if tuner is None:
            found.run_episode(settings, setup, seed)
        else:
            result, trajectory = tuner.explore(settings, setup, seed, found.known)
            found.add(result.reward, trajectory)
            tuner.learn(trajectory, found.known.embedding)
        rewards.append(judged())
    return np.array(rewards)
