"""Fitted Q evaluation: the value of a policy from transitions logged under another, with bounds.

The value is the mean reward per step over the first `horizon` steps of an episode that starts as
the logged ones do, without a discount: what `Transitions.mean_reward` is for the logged behaviour.

Q_k(s, a), the reward of k more steps, is fitted for k = 1, 2, .., horizon by regression on
r + gamma * Q_{k-1}(s', policy(s')) (Le et al. 2019, algorithm 3, for a finite horizon; Ernst et al.
2005). An episode's value is then what was logged, corrected by the policy's advantage:

    V(s_0) = sum_t [ r_t + Q_{H-t}(s_t, policy(s_t)) - Q_{H-t}(s_t, a_t) ]

which is the performance difference (Kakade and Langford 2002, lemma 6.1) read from the logged
behaviour. It holds for any start and any Q that satisfies the policy's Bellman equation; where the
policy acts as was logged it is the logged reward, whatever Q is. `gamma` below 1 limits how long an
action's effect is followed, not the value.

Two errors make the bounds. Episodes differ: an ensemble is fitted to bootstrap samples of whole
episodes. The policy acts otherwise than was logged: members with random prior functions (Osband et
al. 2018, section 3), of the size of logged returns, differ where the log does not determine Q. Both
are widened by Student's t for the number of episodes. A single episode is halved for the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from scipy.stats import t as student

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.platform.rl.transitions import Floats, PolicyActions, Transitions

Array = NDArray[np.float64]
RIDGES = 10.0 ** np.arange(0, 3.5, 0.5)  # factors of the least one
FARTHEST = 5.0  # standard deviations of an observation's number
CONSTANT = 1e-6  # standard deviation of a number that does not vary
LEAST_WINDOWS = 20  # logged returns whose size is trusted


class FittedQSettings(Settings):
    """What is estimated, and the regression."""

    horizon: PositiveInt = 100  # steps of an episode
    gamma: float = Field(default=0.95, ge=0, le=1)  # by which an action's effect is followed
    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # of each bound
    ensemble: int = Field(default=32, ge=8)  # bootstrap samples, and as many prior functions
    features: PositiveInt = 128  # random Fourier features of a regression
    observation_scale: PositiveFloat = 1.0  # length of the features, in standard deviations
    action_scale: PositiveFloat = 0.5  # the same of actions, which are between -1 and 1
    ridge: PositiveFloat = 1.0  # the least; a larger one is chosen by cross-validation
    prior: PositiveFloat = 2.0  # size of prior functions, relative to that of logged returns
    reward_size: NonNegativeFloat = 0.0  # least standard deviation of rewards, where it is known
    rows: PositiveInt = 5_000  # of a longer log, whole episodes are drawn
    seed: NonNegativeInt = 0


class Estimate(NamedTuple):
    """Mean reward per step, and one-sided bounds at the confidence of the settings."""

    mean: float
    lower: float
    upper: float


def evaluate_fitted_q(
    transitions: Transitions, policy_actions: PolicyActions, settings: FittedQSettings | None = None
) -> Estimate:
    """Estimate a policy's mean reward per step from logged transitions.

    `policy_actions` maps observations (N, observation) and contexts (N, context) or None to actions
    (N, action). Raises InputError for actions out of bounds and for a log beyond the horizon.
    """
    settings = settings or FittedQSettings()
    rng = np.random.default_rng(settings.seed)
    rows = _usable_rows(transitions, settings, rng)
    fit = _Regression(_Log.of(transitions, policy_actions, rows, settings), settings, rng)
    units, members = fit.log.units, settings.ensemble
    whole, none = np.ones((units, 1)), np.zeros((fit.width, 1))
    mean = float(fit.values(whole, none)[0])
    samples = rng.multinomial(units, np.full(units, 1 / units), members).T.astype(np.float64)
    bootstrap = fit.values(samples, np.repeat(none, members, 1))
    priors = fit.values(whole, rng.standard_normal((fit.width, members)))
    # A bootstrap sample of n units varies less than n units do, by (n - 1) / n.
    sampling = np.sqrt(((bootstrap - mean) ** 2).mean() * units / (units - 1))
    unknown = np.sqrt(((priors - mean) ** 2).mean())
    error = float(
        np.hypot(
            student.ppf(settings.confidence, units - 1) * sampling,
            student.ppf(settings.confidence, units) * unknown,
        )
    )
    return Estimate(mean, mean - error, mean + error)


def _usable_rows(
    log: Transitions, settings: FittedQSettings, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows within the horizon, of episodes drawn until there are enough."""
    if len(log.applications) > 1:
        raise InputError(
            f"the log has {len(log.applications):,} applications; expected one, which has a value"
        )
    usable = np.flatnonzero(log.steps < settings.horizon)
    if not len(usable):
        raise InputError(
            f"the log has no step before the horizon of {settings.horizon:,}; expected episodes "
            "from their beginning"
        )
    if len(usable) <= settings.rows:
        return usable
    order = rng.permutation(int(log.episodes[-1]) + 1)
    lengths = np.bincount(log.episodes[usable], minlength=len(order))[order]
    count = max(1, int(np.searchsorted(lengths.cumsum(), settings.rows, side="right")))
    return usable[np.isin(log.episodes[usable], order[:count])]


@dataclass(frozen=True)
class _Log:
    """Transitions of the regression; rewards are differences from their mean."""

    states: Array  # (N, S) standardised observations and contexts
    next_states: Array
    actions: Array  # (N, A) as logged
    policy: Array  # (N, A) by the policy
    next_policy: Array  # (N, A) by the policy at the next states
    rewards: Array  # (N,)
    mean_reward: float
    terminated: NDArray[np.bool_]
    last: NDArray[np.bool_]  # the episode's last transition
    ahead: NDArray[np.int64]  # (N,) steps up to the horizon, with this one
    unit: NDArray[np.int64]  # (N,) number of the row's episode, or of its half
    units: int
    spans: Array  # (units,) steps up to the horizon

    @classmethod
    def of(
        cls,
        log: Transitions,
        policy_actions: PolicyActions,
        rows: NDArray[np.int64],
        settings: FittedQSettings,
    ) -> _Log:
        now, following = log.observations[rows], log.next_observations[rows]
        contexts = None if log.contexts is None else log.contexts[rows]
        added = [] if contexts is None else [contexts]
        states, next_states = (np.concatenate([o, *added], 1) for o in (now, following))
        mean, spread = states.mean(0, np.float64), states.std(0, dtype=np.float64)
        spread[spread < CONSTANT] = np.inf  # no feature
        width = np.sqrt(max(1, np.isfinite(spread).sum())) * settings.observation_scale

        def scaled(table: Floats) -> Array:
            found: Array = np.clip((table - mean) / spread, -FARTHEST, FARTHEST) / width
            return found

        def acted(observations: Floats) -> Array:
            found = np.asarray(policy_actions(observations, contexts), np.float64)
            shape = log.actions[rows].shape
            if found.shape != shape or not (np.abs(found) <= 1 + 1e-5).all():
                raise InputError(
                    f"the policy's actions have the shape {found.shape} or numbers beyond 1; "
                    f"expected {shape}, from -1 to 1"
                )
            return found / settings.action_scale

        _, episode = np.unique(log.episodes[rows], return_inverse=True)
        last = np.diff(episode, append=-1) != 0
        ahead = settings.horizon - log.steps[rows].astype(np.int64)
        first = np.diff(episode, prepend=-1) != 0
        spans = ahead[first].astype(np.float64)
        unit, units = episode, len(spans)
        if units == 1:
            unit, units = (2 * np.arange(len(rows)) >= len(rows)).astype(np.int64), 2
            spans = np.repeat(spans / 2, 2)
        mean_reward = float(log.rewards[rows].mean())
        return cls(
            states=scaled(states),
            next_states=scaled(next_states),
            actions=log.actions[rows].astype(np.float64) / settings.action_scale,
            policy=acted(now),
            next_policy=acted(following),
            rewards=log.rewards[rows] - mean_reward,
            mean_reward=mean_reward,
            terminated=log.terminated[rows],
            last=last,
            ahead=ahead,
            unit=unit,
            units=units,
            spans=spans,
        )


class _Regression:
    """Ridge regressions of Q_1, Q_2, .. on linear and random Fourier features.

    The features are those of a Gaussian kernel (Rahimi and Recht 2007, algorithm 1), so that far
    from logged states and actions a regression determines nothing, and a prior function remains.
    """

    def __init__(self, log: _Log, settings: FittedQSettings, rng: np.random.Generator) -> None:
        self.log, self.settings = log, settings
        inputs = log.states.shape[1] + log.actions.shape[1]
        self._frequencies = rng.standard_normal((inputs, settings.features))
        self._phases = rng.uniform(0, 2 * np.pi, settings.features)
        self._logged = self._features(log.states, log.actions)
        self._policy = self._features(log.states, log.policy)
        self._following = self._features(log.next_states, log.next_policy)
        self._sizes = self._return_sizes()
        self._ridge = settings.ridge
        for _ in range(2):  # its targets depend on it
            _, targets = self._propagate(np.ones((log.units, 1)), np.zeros((self.width, 1)))
            self._ridge = self._cross_validated(targets[:, 0])

    @property
    def width(self) -> int:
        return int(self._logged.shape[1])

    def values(self, shares: Array, priors: Array) -> Array:
        """(M,) mean rewards per step of members, each with its own data and prior function.

        `shares` (units, M or 1) counts each unit in a member's data; `priors` (width, M) are
        weights of standard normal prior functions.
        """
        corrected, _ = self._propagate(shares, priors)
        sums = np.zeros((self.log.units, corrected.shape[1]))
        np.add.at(sums, self.log.unit, corrected)
        found = (shares * sums).sum(0) / (self.log.spans @ shares)
        return np.asarray(self.log.mean_reward + found, np.float64)

    def _features(self, states: Array, actions: Array) -> Array:
        """(N, width): 1, the inputs, and cosines."""
        inputs = np.concatenate([states, actions], 1)
        cosines = np.cos(inputs @ self._frequencies + self._phases)
        linear = np.concatenate([states, actions / np.sqrt(actions.shape[1])], 1)
        scale = np.sqrt(2 / self.settings.features)
        return np.concatenate([np.ones((len(inputs), 1)), linear, scale * cosines], 1)

    def _return_sizes(self) -> Array:
        """(horizon + 1,) root mean squares of logged returns of 1, 2, .. steps, not falling."""
        log, settings = self.log, self.settings
        sizes = np.zeros(settings.horizon + 1)
        found, whole = log.rewards.copy(), np.ones(len(log.rewards), np.bool_)
        for steps in range(1, settings.horizon + 1):
            if whole.sum() < min(LEAST_WINDOWS, len(whole)):
                sizes[steps:] = sizes[steps - 1]
                break
            sizes[steps] = max(sizes[steps - 1], np.sqrt((found[whole] ** 2).mean()))
            whole = np.append(whole[1:], False) & ~log.last
            found[:-1] = log.rewards[:-1] + settings.gamma * found[1:]
        sizes *= settings.prior * max(1.0, settings.reward_size / max(sizes[1], 1e-12))
        return sizes

    def _propagate(self, shares: Array, priors: Array) -> tuple[Array, Array]:
        """(N, M) corrected rewards of the rows, and the targets at half of the horizon."""
        log, gamma = self.log, self.settings.gamma
        weights = shares[log.unit]  # (N, M or 1)
        inverses = np.stack([self._inverse(column) for column in weights.T])
        members = priors.shape[1]
        corrected = np.zeros((len(log.rewards), members))
        following = np.zeros_like(corrected)  # Q_{k-1} at the next states
        lowest, highest = log.rewards.min(), log.rewards.max()
        reach, lost = 0.0, 0.0  # sums of discounts: of k steps, of those after the first
        for steps in range(1, self.settings.horizon + 1):
            lost, reach = gamma * reach, 1 + gamma * reach
            # After its end an episode has no reward: the mean less than expected, in each step.
            after = np.where(log.terminated[:, None], -lost * log.mean_reward, gamma * following)
            targets = log.rewards[:, None] + after
            if 2 * steps <= self.settings.horizon + 1:
                half = targets
            prior = priors * self._sizes[steps]
            fitted = self._logged.T @ (weights * (targets - self._logged @ prior))
            solved = prior + (inverses @ fitted.T[:, :, None])[:, :, 0].T

            def value(features: Array, solved: Array = solved, reach: float = reach) -> Array:
                return np.clip(features @ solved, reach * lowest, reach * highest)

            now = log.ahead == steps
            corrected[now] += log.rewards[now, None] + (
                value(self._policy[now]) - value(self._logged[now])
            )
            following = value(self._following)
            cut = log.last & (log.ahead == steps + 1)  # the log ends before the horizon
            corrected[cut] += np.where(
                log.terminated[cut, None], -steps * log.mean_reward, following[cut]
            )
        return corrected, half

    def _inverse(self, weights: Array) -> Array:
        gram = self._logged.T @ (weights[:, None] * self._logged)
        return np.asarray(np.linalg.inv(gram + self._ridge * np.eye(self.width)), np.float64)

    def _cross_validated(self, targets: Array) -> float:
        """The ridge of least error by generalised cross-validation (Golub et al. 1979, eq. 1.4)."""
        left, sizes, _ = np.linalg.svd(self._logged, full_matrices=False)
        along = left.T @ targets
        rest = float(targets @ targets - along @ along)

        def error(ridge: float) -> float:
            kept = sizes**2 / (sizes**2 + ridge)
            residual = rest + float((((1 - kept) * along) ** 2).sum())
            return residual / max(1 - float(kept.sum()) / len(targets), 1e-9) ** 2

        return float(min(self.settings.ridge * RIDGES, key=error))
