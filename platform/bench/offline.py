"""Policies learnt from a log of Pendulum: IQL, BCQ and plain DDPG beside the logged behaviour.

The behaviour is a rule that pumps energy and catches the pendulum badly, with noise and random
torques. A policy is judged by its cost per step, the negated reward, on episodes of other seeds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.bench.pendulum import EPISODE, make_envs
from loadmaster.platform.rl.fitted_q import FittedQSettings, evaluate_fitted_q
from loadmaster.platform.rl.offline import actor_actions, train_offline
from loadmaster.platform.rl.offline_settings import OfflineSettings
from loadmaster.platform.rl.transitions import (
    Description,
    Episode,
    Floats,
    PolicyActions,
    Quantity,
    Transitions,
)

ALGORITHMS = ("iql", "bcq", "ddpg")
DESCRIPTION = Description(
    "pendulum",
    (Quantity("cosine"), Quantity("sine"), Quantity("velocity", "rad/s")),
    (Quantity("torque", "2 Nm"),),
)
NOISE, RANDOM = 0.3, 0.2  # of the behaviour: standard deviation, and share of random actions
SPRING, DAMPING = 2.0, 0.1  # of the behaviour near the top
JUDGED = FittedQSettings(horizon=EPISODE, rows=2_000, features=64, ensemble=16)
BEHAVIOUR, MEASURED = "logged behaviour", "measured"


@dataclass(frozen=True)
class Effort:
    """How much is learnt and measured."""

    episodes: int = 5  # of the log
    updates: int = 5_000
    generator_updates: int = 2_000
    tests: int = 20  # episodes of a policy
    seeds: int = 2  # of logs and trainings


def measure(report_step: Callable[[str], None], effort: Effort | None = None) -> Iterator[Figure]:
    effort = effort or Effort()
    costs: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    bounds: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    seconds, logged = dict.fromkeys(ALGORITHMS, 0.0), []
    for seed in range(effort.seeds):
        log = behaviour_log(effort.episodes, seed)
        logged.append(-log.mean_reward)
        for name in ALGORITHMS:
            report_step(f"Pendulum: {name} from {effort.episodes} logged episodes, seed {seed}")
            began = time.process_time()
            act = actor_actions(train_offline(log, settings_of(name, effort, seed)))
            seconds[name] += time.process_time() - began
            bound = evaluate_fitted_q(log, act, JUDGED)
            bounds[name].append(-bound.lower)
            costs[name].append(-mean_reward(act, effort.tests, seed=1_000 + seed))
    for name in ALGORITHMS:
        prefix, cost = f"offline/pendulum/{name}", float(np.mean(costs[name]))
        peer = float(np.mean(logged))
        yield Figure(f"{prefix}/cost_per_step", cost, "cost", peer, BEHAVIOUR, False)
        bound_mean = float(np.mean(bounds[name]))
        yield Figure(f"{prefix}/cost_bound", bound_mean, "cost", cost, MEASURED, False)
        speed = effort.seeds * effort.updates / seconds[name]
        yield Figure(f"{prefix}/updates_per_s", speed, "updates/s")


def settings_of(algorithm: str, effort: Effort, seed: int) -> OfflineSettings:
    return OfflineSettings.model_validate(
        {
            "algorithm": algorithm,
            "updates": effort.updates,
            "bcq": {"generator_updates": effort.generator_updates},
            "seed": seed,
        }
    )


def behaviour_actions(observations: Floats, contexts: Floats | None) -> Floats:
    """Torques that add or take energy until it suffices, and a weak controller near the top."""
    cosine, sine, velocity = observations.T
    energy = 0.5 * velocity**2 + 15 * (cosine - 1)  # 0 at rest at the top
    caught = -(SPRING * np.arctan2(sine, cosine) + DAMPING * velocity)
    torque = np.where(cosine > 0.9, caught, -np.sign(energy) * np.sign(velocity))
    found: Floats = np.clip(torque, -1, 1)[:, None].astype(np.float32)
    return found


def behaviour_log(episodes: int, seed: int) -> Transitions:
    found = run_policy(behaviour_actions, episodes, seed, NOISE, RANDOM)
    return Transitions.of_episodes(found, DESCRIPTION)


def mean_reward(policy: PolicyActions, episodes: int, seed: int) -> float:
    """Mean reward per step of episodes without noise."""
    return float(np.mean([episode.rewards for episode in run_policy(policy, episodes, seed)]))


def run_policy(
    policy: PolicyActions, episodes: int, seed: int, noise: float = 0.0, random: float = 0.0
) -> list[Episode]:
    """Episodes of a policy with normal noise, and a share of actions drawn uniformly."""
    rng, envs = np.random.default_rng(seed), make_envs(episodes, None)
    observation: Floats
    observation, _ = envs.reset(seed=[10_000 * seed + place for place in range(episodes)])
    observations, actions, rewards = [observation], [], []
    for _ in range(EPISODE):
        action = policy(observation, None) + noise * rng.standard_normal((episodes, 1))
        anything = rng.uniform(-1, 1, (episodes, 1))
        action = np.where(rng.random((episodes, 1)) < random, anything, action)
        actions.append(action.clip(-1, 1).astype(np.float32))
        observation, reward, *_ = envs.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
    envs.close()
    states, acted, rewarded = (np.stack(part, 1) for part in (observations, actions, rewards))
    return [
        Episode(states[place], acted[place], rewarded[place], number=place)
        for place in range(episodes)
    ]
