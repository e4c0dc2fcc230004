"""AWARE's rollouts: vector environments whose actions are margins of the rule's plans, or plans."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled
from loadmaster.envs.pod_scaling.episode import Episode, EpisodeResult, Setup, build_episode
from loadmaster.envs.pod_scaling.metrics import violated_steps
from loadmaster.envs.pod_scaling.settings import STEP_INTERVALS, PodScalingSettings
from loadmaster.envs.pod_scaling.state import (
    HORIZON,
    NOW,
    P99_S,
    SLO,
    SUM_STEPS,
    Floats,
    SimConstants,
    SimState,
)
from loadmaster.envs.pod_scaling.vector_env import PodScalingVectorEnv, state_of
from loadmaster.envs.vector_env import Mask
from loadmaster.models.aware.estimates import ESTIMATE_COLUMNS, new_estimates
from loadmaster.models.aware.features import (
    FEATURES,
    MOST_FEATURE,
    REWARD_CENTRE,
    REWARD_UNIT,
    input_mask,
    margins_of,
    write_features,
)
from loadmaster.models.aware.pod_model import ESTIMATED_COLUMNS
from loadmaster.models.aware.rule import (
    Scratch,
    carry_out,
    carry_out_action,
    observe_step,
    plan_step,
    scratch,
)
from loadmaster.models.aware.settings import MARGINS, AwareSettings


class Condition(NamedTuple):
    """A load that episodes may have."""

    settings: PodScalingSettings
    setup: Setup


def condition_of(conditions: Sequence[Condition], seed: int) -> Condition:
    return conditions[seed % len(conditions)]


OBSERVATIONS = spaces.Box(-MOST_FEATURE, MOST_FEATURE, (FEATURES,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (len(MARGINS),), np.float32)


@compiled
def _step_batch(
    constants: SimConstants,
    states: SimState,
    deciding: Mask,
    actions: NDArray[np.float32],
    rule: tuple[bool, float, Floats, Floats],
    estimates: Floats,
    apps: Floats,
    tables: Scratch,
    features: NDArray[np.float32],
    over: Mask,
) -> None:
    """Plan and advance where `deciding`, then estimate and write the features of every episode."""
    follows, gain, base, reach = rule
    for i in range(len(deciding)):
        state = state_of(states, i)
        if deciding[i] and not follows:
            carry_out_action(constants, state, actions[i], tables.plan)
        elif deciding[i]:
            margins = margins_of(base, reach, actions[i])
            plan_step(constants, state, margins, estimates[i], apps[i], tables)
            carry_out(constants, state, tables.plan)
        over[i] = state.clock[NOW] >= state.clock[HORIZON]
        observe_step(constants, state, gain, estimates[i], apps[i], tables)
        write_features(constants, state, estimates[i], apps[i], features[i])


class MarginEnvs(PodScalingVectorEnv):
    """`PodScalingVectorEnv` with features as observations, and margins or plans as actions.

    An episode has one of the conditions, by its seed; they differ in their loads alone. Rewards are
    relative to REWARD_CENTRE, in REWARD_UNITs; a step whose p99 is above the SLO costs
    `violation_cost` more.
    """

    def __init__(
        self,
        num_envs: int,
        network: AwareSettings,
        conditions: Sequence[Condition],
        violation_cost: float = 0.0,
    ) -> None:
        super().__init__(num_envs, **conditions[0].settings.model_dump())
        self._conditions, self._violation_cost = conditions, violation_cost
        self._violated = np.zeros(num_envs)
        self._reward_unit = REWARD_UNIT
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        rule = network.rule
        margins, reach = np.array(rule.margins), np.array(network.reach.margins)
        self._rule = network.follows_rule, rule.gain, margins, reach
        self._estimates = np.zeros((num_envs, ESTIMATE_COLUMNS))
        self._apps = np.zeros((num_envs, ESTIMATED_COLUMNS))
        self._features = np.zeros((num_envs, FEATURES), np.float32)
        self._mask, self._tables = input_mask(network.inputs), scratch()

    def _episode(self, seed: int) -> Episode:
        own = condition_of(self._conditions, seed)
        return build_episode(own.settings, own.setup, seed)

    def _start(self, index: int, seed: int) -> None:
        super()._start(index, seed)
        self._estimates[index] = new_estimates()
        self._violated[index] = 0.0

    def _run(self, actions: NDArray[Any], deciding: Mask) -> tuple[Mask, Mask]:
        over = np.zeros(self.num_envs, np.bool_)
        _step_batch(
            self.setup.constants, self._states, deciding, np.asarray(actions, np.float32),
            self._rule, self._estimates, self._apps, self._tables, self._features, over,
        )  # fmt: skip
        self._over = over
        step = self._states.clock[:, NOW] // STEP_INTERVALS - 1
        last = self._states.outcome[np.arange(self.num_envs), step]
        self._violated += deciding & (last[:, P99_S] > last[:, SLO])
        return np.zeros_like(over), over

    def _reward_so_far(self) -> NDArray[np.float64]:
        centre = REWARD_CENTRE * self._states.sums[:, SUM_STEPS]
        return super()._reward_so_far() - centre - self._violation_cost * self._violated

    def _observation(self) -> Any:
        return self._features * self._mask


def outcome(violation_cost: float, envs: Any, index: int) -> dict[str, float]:
    """Metrics of an episode: objective, mean reward, violated steps, kills for memory."""
    result = envs.result(index)
    return {
        "objective": objective(result, violation_cost),
        "reward": result.reward,
        "violated_steps": float(violated_steps(result)),
        "ooms": float(result.ooms.sum()),
    }


def objective(result: EpisodeResult, violation_cost: float) -> float:
    """Mean reward of a step, less the cost of violations."""
    return result.reward - violation_cost * violated_steps(result) / 100


def application_of(count: int, seed: int) -> int:
    """Which of `count` applications the episode of `seed` has: its first random number."""
    return int(np.random.default_rng(seed).integers(count))
