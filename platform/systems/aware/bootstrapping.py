"""An agent of plans that learns on one application: from nothing, or from the rules' transitions.

Its observations are the environment's and its actions are plans (CPU limit, memory limit and
replicas), as in the paper; it has neither AWARE's rule nor its model. From nothing it learns by
DDPG, from random actions on, with the published settings. With a bootstrapper the tuned rule acts
while IQL learns from its transitions; the lifecycle decides on when the agent acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.baselines import Baseline
from loadmaster.envs.pod_scaling.baselines.horizontal import Parameters
from loadmaster.envs.pod_scaling.baselines.memory import RuleState, new_rule_state
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.observation import STATE_COLUMNS, Observation, observe
from loadmaster.envs.pod_scaling.rollout import run_control_step
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.state import (
    HORIZON,
    NOW,
    PLAN_COLUMNS,
    SimConstants,
    SimState,
)
from loadmaster.platform.rl.fitted_q import FittedQSettings, evaluate_fitted_q
from loadmaster.platform.rl.offline import OfflineLearner
from loadmaster.platform.rl.offline_settings import OfflineLayers, OfflineSettings
from loadmaster.platform.rl.transitions import (
    Description,
    Episode,
    PolicyActions,
    Quantity,
    Transitions,
)
from loadmaster.serving.monitoring.lifecycle import (
    Estimate,
    LifecycleSettings,
    LifecycleState,
    next_state,
)
from loadmaster.serving.monitoring.reward_stats import ConvergedReward
from loadmaster.serving.system import Profile

Floats = NDArray[np.float32]
PLAN = ("cpu limit", "memory limit", "replicas")
DESCRIPTION = Description("aware", tuple(map(Quantity, STATE_COLUMNS)), tuple(map(Quantity, PLAN)))
VIOLATION_COST = 0.5  # reward of a step above the SLO: without it, violations are traded for use
RANDOM_EPISODES = 10  # of the agent from nothing
NOISE = 0.2  # of its actions, by step
UPDATES_PER_STEP = {"ddpg": 1.0, "iql": 0.5}
PUBLISHED = OfflineSettings(  # Qiu et al. 2023, table 2
    algorithm="ddpg",
    actor_learning_rate=3e-4,
    critic_learning_rate=3e-3,
    soft_update=3e-3,
    gamma=0.99,
    network=OfflineLayers(critics=1),
)
BOOTSTRAPPED = OfflineSettings(algorithm="iql", gamma=0.99, network=OfflineLayers(critics=1))
# Of the bootstrapped agent's actions, in standard deviations of the rule's: what the rule never
# changes is not explored. Memory limits a few percent below the rule's end in pods that are killed.
ONLINE_NOISE = 0.2
FIRST_ESTIMATE, ESTIMATE_EVERY = 40, 20  # episodes of the rule
LIFECYCLE = LifecycleSettings(window=10, z_threshold=2.0, plateau=20)  # in episodes
FITTED_Q = FittedQSettings(features=64, ensemble=16)


class Case(NamedTuple):
    """An application to learn on, and the tuned rule that acts there."""

    settings: PodScalingSettings
    setup: Setup
    rule: Baseline


class Recorded(NamedTuple):
    """An episode, and its transitions."""

    result: EpisodeResult
    episode: Episode


def record_rule(case: Case, seed: int) -> Recorded:
    """The episode of `seed` under the rule; actions are the plans at the ends of control steps."""
    settings, setup, rule = case
    runner = EpisodeRunner(settings, setup, seed)
    state = runner.episode.state
    observations, actions = _tables(settings)
    _run(
        *(rule.rule, rule.values, setup.constants, state, new_rule_state(state)),
        *(observations, actions),
    )
    return _recorded(runner, rule.name, observations, actions)


def record_agent(act: PolicyActions, case: Case, seed: int, noise: Floats | None) -> Recorded:
    """The episode of `seed` under an agent; `noise` (steps, action) is added to its actions."""
    runner = EpisodeRunner(case.settings, case.setup, seed)
    observations, actions = _tables(case.settings)
    for place in range(case.settings.steps):
        observations[place] = runner.view.state
        action = act(observations[place : place + 1], None)[0]
        actions[place] = action if noise is None else np.clip(action + noise[place], -1, 1)
        runner.decide(actions[place])
    observations[-1] = runner.view.state
    return _recorded(runner, "agent", observations, actions)


def _tables(settings: PodScalingSettings) -> tuple[Floats, Floats]:
    """Observations (steps + 1, ..) and actions (steps, ..) to write to."""
    observations = np.zeros((settings.steps + 1, len(STATE_COLUMNS)), np.float32)
    return observations, np.zeros((settings.steps, PLAN_COLUMNS), np.float32)


def _recorded(
    runner: EpisodeRunner, policy: str, observations: Floats, actions: Floats
) -> Recorded:
    """With the cost of violations in the rewards to learn from."""
    result = runner.result(policy)
    rewards = result.rewards - VIOLATION_COST * (result.p99_s > result.slo_s)
    return Recorded(
        result, Episode(observations, actions, rewards, result.application, runner.seed)
    )


@compiled
def _run(
    rule: int,
    parameters: Parameters,
    constants: SimConstants,
    state: SimState,
    memory: RuleState,
    observations: Floats,
    actions: Floats,
) -> None:
    """Run a rule to the end of the episode; write observations and plans of control steps."""
    place, low, high = 0, constants.low, constants.high
    observe(constants, state, Observation(observations[0]))
    while state.clock[NOW] < state.clock[HORIZON]:
        run_control_step(rule, parameters, constants, state, memory)
        for column in range(PLAN_COLUMNS):
            span = np.log(high[column] / low[column])
            share = np.log(state.plan[column] / low[column]) / span if span > 0 else 0.0
            actions[place, column] = 2 * share - 1
        place += 1
        observe(constants, state, Observation(observations[place]))


def objective(recorded: Recorded) -> float:
    """Mean of a step, with the cost of violations."""
    return float(recorded.episode.rewards.mean())


@dataclass
class PlanAgent:
    """Networks, and the log that they learn from."""

    settings: OfflineSettings
    episodes: list[Episode] = field(default_factory=list)
    _learner: OfflineLearner | None = None
    _bounds: tuple[Floats, Floats] | None = None  # of actions
    spread: Floats = field(default_factory=lambda: np.zeros(PLAN_COLUMNS, np.float32))

    @property
    def log(self) -> Transitions:
        return Transitions.of_episodes(self.episodes, DESCRIPTION)

    def learn(self, updates: int | None = None) -> None:
        """Take updates from the log, by default those that are due for one episode."""
        log = self.log
        if self._learner is None:
            self._learner = OfflineLearner(log, self.settings)
        share = UPDATES_PER_STEP[self.settings.algorithm]
        self._learner.learn(log, updates or int(share * len(self.episodes[-1].rewards)))

    def restrict(self) -> None:
        """Keep actions within those that are logged so far; `spread` is their deviation."""
        logged = self.log.actions
        self._bounds, self.spread = (logged.min(0), logged.max(0)), logged.std(0)

    def actions(self, observations: Floats, contexts: Floats | None) -> Floats:
        """The greedy actions."""
        assert self._learner is not None, "it has learnt nothing"
        found = self._learner.actions(observations, contexts)
        return found if self._bounds is None else found.clip(*self._bounds)


def learn_from_nothing(case: Case, seeds: Sequence[int], seed: int) -> list[EpisodeResult]:
    """Learn online by DDPG in the episodes of `seeds`, the first ones with random plans."""
    rng, agent, results = np.random.default_rng(seed), PlanAgent(PUBLISHED), []
    shape = case.settings.steps, PLAN_COLUMNS
    for number, each in enumerate(seeds):
        if number < RANDOM_EPISODES:
            plans = rng.uniform(-1, 1, shape).astype(np.float32)
            found = record_agent(_zeros, case, each, plans)
        else:
            noise = NOISE * rng.standard_normal(shape, np.float32)
            found = record_agent(agent.actions, case, each, noise)
        agent.episodes.append(found.episode)
        if number + 1 >= RANDOM_EPISODES:
            agent.learn()
        results.append(found.result)
    return results


def _zeros(observations: Floats, contexts: Floats | None) -> Floats:
    return np.zeros((len(observations), PLAN_COLUMNS), np.float32)


class Bootstrapped(NamedTuple):
    """Episodes with a bootstrapper, and the state of the lifecycle in each."""

    results: list[EpisodeResult]
    states: list[LifecycleState]
    why: list[str]  # of the changes of state


@dataclass
class Bootstrapper:
    """Runs the lifecycle of an agent on one application, an episode at a time."""

    case: Case
    rng: np.random.Generator
    agent: PlanAgent = field(default_factory=lambda: PlanAgent(BOOTSTRAPPED))
    state: LifecycleState = LifecycleState.INITIALIZED
    rules: list[float] = field(default_factory=list)  # objectives of the rule's episodes
    rewards: list[float] = field(default_factory=list)  # of the agent's, since it acts
    estimate: Estimate | None = None
    converged: ConvergedReward | None = None
    offline: int = 0  # episodes in OFFLINE, since it is there

    def run_episode(self, seed: int) -> EpisodeResult:
        """Run an episode by rule or agent, learn from it, and judge."""
        offline = self.state is LifecycleState.OFFLINE
        found = record_rule(self.case, seed) if offline else self._act(seed)
        (self.rules if offline else self.rewards).append(objective(found))
        self.agent.episodes.append(found.episode)
        if self.state is not LifecycleState.SERVING:
            self.agent.learn()
        elif self.converged is not None:
            self.converged.add(objective(found), LIFECYCLE.window)
        if offline:
            self.offline += 1
            since = self.offline - FIRST_ESTIMATE
            if since >= 0 and since % ESTIMATE_EVERY == 0:
                self.estimate = self.judge()
        return found.result

    def judge(self) -> Estimate:
        """Fitted Q evaluation of the agent, from the log."""
        self.agent.restrict()
        log = self.agent.log
        found = evaluate_fitted_q(log, self.agent.actions, FITTED_Q)
        return Estimate(found.mean, found.lower, "fitted Q evaluation", len(self.agent.episodes))

    def change_state(self) -> str | None:
        """Change the state if the lifecycle does; returns why."""
        # The bar of a noisy window alone would be passed by chance.
        required = float(np.mean(self.rules)) if self.rules else None
        found = next_state(
            self.state,
            self.rewards,
            self.rules,
            LIFECYCLE,
            profile=Profile(reward=required),
            estimate=self.estimate,
            converged=None if self.converged is None else self.converged.value,
        )
        if found.to is None:
            return None
        if found.to is LifecycleState.OFFLINE:
            self.rewards, self.estimate, self.offline = [], None, 0
        elif found.to is LifecycleState.SERVING:
            self.converged = ConvergedReward.measure(self.rewards[-LIFECYCLE.window :])
        self.state = found.to
        return found.why

    def _act(self, seed: int) -> Recorded:
        """An episode of the agent; with noise, unless it serves."""
        noise = None
        if self.state is LifecycleState.ONLINE:
            shape = self.case.settings.steps, PLAN_COLUMNS
            drawn = self.rng.standard_normal(shape, np.float32)
            noise = ONLINE_NOISE * self.agent.spread * drawn
        return record_agent(self.agent.actions, self.case, seed, noise)


def learn_bootstrapped(case: Case, seeds: Sequence[int], seed: int) -> Bootstrapped:
    """Run the episodes of `seeds` as the lifecycle decides."""
    lead, found = Bootstrapper(case, np.random.default_rng(seed)), Bootstrapped([], [], [])
    lead.change_state()
    for number, each in enumerate(seeds, 1):
        found.states.append(lead.state)
        found.results.append(lead.run_episode(each))
        if (why := lead.change_state()) is not None:
            found.why.append(f"episode {number}: {lead.state}: {why}")
    return found
