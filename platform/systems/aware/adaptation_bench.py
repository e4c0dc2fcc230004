"""Adaptation of AWARE to unseen applications, beside transfer learning without an embedding.

Rivals (Qiu et al. 2023, section 6.3): TL shares its weights among applications and is fine-tuned on
a new one; TL+ also has a forecast of the load and what the present allocation yields at it in its
state. All of them have the same networks, budget and settings of fine-tuning, and the same rule
unless bundles without one are given. A policy is judged before every episode of its fine-tuning, in
episodes without noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup, build_setup
from loadmaster.envs.pod_scaling.metrics import violated_steps
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.adaptation import FIRST_SEED, Adaptation
from loadmaster.models.aware.network import AwareNetwork
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.settings import AwareSettings
from loadmaster.models.manifest import pretrained_policies
from loadmaster.platform.bench.adaptation import AdaptationEffort
from loadmaster.platform.bench.measurements import Figure
from loadmaster.platform.systems.aware.adaptation import RULES
from loadmaster.platform.systems.aware.evaluation import run
from loadmaster.platform.systems.aware.fine_tuning import (
    EXPLORED_SEED,
    JUDGED_SEED,
    FineTuner,
    judge,
    learning_of,
)
from loadmaster.platform.systems.aware.logs import read_log, write_log
from loadmaster.platform.systems.bundle_ref import find_policy

AWARE, TL, TL_PLUS = "aware", "tl", "tl+"
RIVALS: Mapping[str, Mapping[str, Any]] = {  # settings of the networks
    AWARE: {},
    TL: {"inputs": "published", "encoder": {"kind": "none"}},
    TL_PLUS: {"inputs": "forecast", "encoder": {"kind": "none"}},
}
PRETRAINED = {AWARE: "aware", TL: "aware-tl", TL_PLUS: "aware-tl-plus"}
TOLERANCE = 0.036  # below the converged reward (Qiu et al. 2023, section 6.3)
LOGGED_RULE, GOAL_SHARE = "hpa", 80.0
SEED_STEP = 10_000  # between the episodes of two trainings

Values = NDArray[np.float64]


class Curve(NamedTuple):
    """A fine-tuning on one application; arrays are by episode."""

    rewards: Values  # (episodes + 1,) judged before each episode and after the last
    uses: Values  # (episodes + 1, 2) of CPU and memory, judged
    explored_rewards: Values  # (episodes,) with noise
    explored_uses: Values  # (episodes, 2)
    violations: Values  # (episodes,) % of steps
    cpu_s: Values  # (episodes,) of the episode and the updates, without judging

    @property
    def converged(self) -> float:
        """Mean of the last third."""
        return float(self._last(self.rewards).mean())

    @property
    def converged_uses(self) -> Values:
        found: Values = self._last(self.uses).mean(0)
        return found

    def _last(self, values: Values) -> Values:
        return values[-max(1, len(values) // 3) :]

    def episodes_to(self, reward: float) -> int:
        return first_reaching(self.rewards, reward)


def first_reaching(rewards: Values, reward: float) -> int:
    """The first episode, counted from 1, before which a reward is reached; else one more."""
    reached = np.flatnonzero(rewards >= reward)
    return 1 + int(reached[0] if len(reached) else len(rewards) - 1)


def measure(report_step: Callable[[str], None], effort: AdaptationEffort) -> Iterator[Figure]:
    policies: dict[str, AwarePolicy] = {}
    for name in effort.policies:
        if name not in RIVALS:
            raise unknown_name("rival", name, RIVALS)
    for name in RIVALS:
        base = policies[AWARE].settings if policies else AwareSettings()
        policies[name], origin = rival(name, effort.policies.get(name), base)
        report_step(f"{name}: {origin}")
    yield from _learning_figures(policies, effort, report_step)
    yield from _log_figures(policies[AWARE], effort, report_step)


def rival(name: str, bundle: str | None, base: AwareSettings) -> tuple[AwarePolicy, str]:
    """The policy of a bundle, by default a pretrained one, and where it is from.

    Without any, untrained weights with the sizes and the rule of `base`.
    """
    wanted = build_settings(AwareSettings, {**base.model_dump(), **RIVALS[name]})
    spec = bundle or (PRETRAINED[name] if PRETRAINED[name] in pretrained_policies() else None)
    if spec is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = AwareNetwork(wanted)
        return AwarePolicy(network, PodScalingSettings(), name), "untrained weights: the rule"
    policy = AwarePolicy.from_bundle(find_policy(spec).bundle)
    own = policy.settings
    alike = name == AWARE or own.inputs == wanted.inputs
    if not alike or bool(own.context) != bool(wanted.context):
        raise InputError(
            f"{spec} has inputs {own.inputs!r} and an embedding of {own.context}; expected "
            f"{wanted.inputs!r} and {wanted.context} for {name!r}"
        )
    return policy, f"from {spec}, version {policy.version}"


def _learning_figures(
    policies: Mapping[str, AwarePolicy],
    effort: AdaptationEffort,
    report_step: Callable[[str], None],
) -> Iterator[Figure]:
    curves: dict[str, list[Curve]] = {name: [] for name in policies}
    for number in range(effort.applications):
        settings = PodScalingSettings(application=f"test:{number}")
        setup = build_setup(settings)
        for seed in range(effort.seeds):
            for name, policy in policies.items():
                report_step(f"{settings.application}, training {seed + 1}: {name}")
                curves[name].append(adapt(policy, settings, setup, effort, seed))
    yield from figures_of(curves)


def adapt(
    policy: AwarePolicy,
    settings: PodScalingSettings,
    setup: Setup,
    effort: AdaptationEffort,
    seed: int,
) -> Curve:
    """Fine-tune a policy on the application of `setup`, and judge it before every episode."""
    found, tuner = Adaptation.new(policy), FineTuner(policy, learning_of(policy), seed)
    judged_on = range(JUDGED_SEED, JUDGED_SEED + effort.judged)
    first = EXPLORED_SEED + SEED_STEP * seed
    judged, explored, spent = [], [], []
    for number in range(first, first + effort.episodes):
        judged.append(judge(tuner.policy, settings, setup, found.known, judged_on))
        began = time.process_time()
        result, trajectory = tuner.explore(settings, setup, number, found.known)
        found.add(result.reward, trajectory)
        tuner.learn(trajectory, found.known.embedding)
        spent.append(time.process_time() - began)
        explored.append(result)
    judged.append(judge(tuner.policy, settings, setup, found.known, judged_on))
    return Curve(
        np.array([np.mean([each.reward for each in part]) for part in judged]),
        np.array([np.mean([uses_of(each) for each in part], 0) for part in judged]),
        np.array([each.reward for each in explored]),
        np.array([uses_of(each) for each in explored]),
        np.array([violated_steps(each) for each in explored]),
        np.array(spent),
    )


def uses_of(result: EpisodeResult) -> tuple[float, float]:
    """Mean use of CPU and memory, in percent."""
    return 100 * float(result.cpu_use.mean()), 100 * float(result.memory_use.mean())


def figures_of(curves: Mapping[str, Sequence[Curve]]) -> Iterator[Figure]:
    """Means over applications and seeds; those of AWARE are the peers of its rivals.

    The converged reward and uses of an application are those of the best policy on it.
    """
    best = [
        max(each, key=lambda curve: curve.converged) for each in zip(*curves.values(), strict=True)
    ]
    episodes: dict[str, float] = {}
    for name, own in curves.items():
        pairs = list(zip(own, best, strict=True))
        counts = [c.episodes_to((1 - TOLERANCE) * top.converged) for c, top in pairs]
        spent = [c.cpu_s[: n - 1].sum() for (c, _), n in zip(pairs, counts, strict=True)]
        deficits = np.mean([top.converged_uses - c.explored_uses.mean(0) for c, top in pairs], 0)
        behind = [100 * (1 - c.explored_rewards.mean() / top.converged) for c, top in pairs]
        episodes[name] = float(np.mean(counts))
        for figure, value, unit in (
            ("episodes", episodes[name], "episodes"),
            ("cpu_s", float(np.mean(spent)), "s"),
            ("cpu_s_an_episode", float(np.mean([c.cpu_s.mean() for c in own])), "s"),
            ("first_reward_deficit", _first_deficit(pairs), "% of converged"),
            ("converged_deficit", _converged_deficit(pairs), "% of converged"),
            ("reward_deficit", float(np.mean(behind)), "% of converged"),
            ("cpu_use_deficit", float(deficits[0]), "% points"),
            ("memory_use_deficit", float(deficits[1]), "% points"),
            ("violations", float(np.mean([c.violations.mean() for c in own])), "% of steps"),
        ):
            yield Figure(f"aware/adaptation/{name}/{figure}", value, unit, higher_is_better=False)
    for name, label in ((TL, "tl"), (TL_PLUS, "tl_plus")):
        yield Figure(
            f"aware/episodes_{label}_over_aware", episodes[name] / episodes[AWARE], "times"
        )


def _first_deficit(pairs: Sequence[tuple[Curve, Curve]]) -> float:
    """Of the policy before its first episode on an application."""
    return float(np.mean([100 * (1 - c.rewards[0] / top.converged) for c, top in pairs]))


def _converged_deficit(pairs: Sequence[tuple[Curve, Curve]]) -> float:
    """Of what it converges to itself."""
    return float(np.mean([100 * (1 - c.converged / top.converged) for c, top in pairs]))


def _log_figures(
    policy: AwarePolicy, effort: AdaptationEffort, report_step: Callable[[str], None]
) -> Iterator[Figure]:
    """Rewards of applications that are known from one episode of a rule's log alone."""
    gains = []
    for number in range(effort.logged):
        settings = PodScalingSettings(application=f"test:{number}")
        report_step(f"{settings.application}: known from a log of {LOGGED_RULE}")
        gains.append(gain_by_log(policy, settings, effort.judged))
    share = 100 * float(np.mean(np.array(gains) >= 0))
    yield Figure("aware/log/not_below_rules", share, "% of applications", GOAL_SHARE, "the goal")
    yield Figure("aware/log/reward_over_rules", float(np.mean(gains)), "")


def gain_by_log(policy: AwarePolicy, settings: PodScalingSettings, judged: int) -> float:
    """Mean reward with what a log of one episode says, less that of the best tuned rule."""
    setup = build_setup(settings)
    with TemporaryDirectory(prefix="lm-bench-") as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, settings, setup, LOGGED_RULE, [FIRST_SEED])
        _, episodes = read_log(path, settings)
    found = Adaptation.of_log(policy, episodes, setup.constants)
    seeds = range(JUDGED_SEED, JUDGED_SEED + judged)
    own = np.mean([each.reward for each in judge(policy, settings, setup, found.known, seeds)])
    rules = [np.mean([run(r, settings, setup, s).reward for s in seeds]) for r in RULES]
    return float(own - max(rules))
