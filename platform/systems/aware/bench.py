"""Speed of AWARE: rollouts beside RLlib's own runner, decisions beside the rule, training.

Rollouts and decisions are timed by turns, rollouts (platform/bench/measurements.py) both in the
same compiled vector environment. Untrained weights take the same time as trained ones.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.settings import build_settings
from loadmaster.models.aware.choice import nothing_known
from loadmaster.models.aware.estimates import begin_episode, blank_application, new_estimates
from loadmaster.models.aware.network import STEP_WIDTH, AwareNetwork
from loadmaster.models.aware.plan_choice import Margins
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out, observe_step, plan_step, scratch
from loadmaster.models.aware.settings import AwareSettings
from loadmaster.models.ddpg.settings import CONTEXT_ID
from loadmaster.models.layers import one_thread
from loadmaster.platform.bench.measurements import (
    PER_S,
    Figure,
    latency,
    measure_interleaved,
)
from loadmaster.platform.bench.stock_runner import StockRunner
from loadmaster.platform.rl.replay import Minibatches
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.systems.aware.algorithm import MetaLearner
from loadmaster.platform.systems.aware.rollout import ACTIONS, OBSERVATIONS, MarginEnvs
from loadmaster.platform.systems.aware.training import AwareTraining, algorithm, conditions_of

GYM_ID = "loadmaster/AwareMargins-v0"  # of this benchmark alone
OURS, STOCK = "", "stock_runner/"  # in names of figures
RULE_ALONE = "the rule alone"


@dataclass(frozen=True)
class BenchSize:
    """Amount of measurements."""

    training: AwareTraining = field(default_factory=AwareTraining)
    episodes: int = 64  # of a rollout
    # Environments of RLlib's runner, whose best speed counts.
    stock: tuple[int, ...] = (1, 64)
    rounds: int = 2
    decisions: int = 100  # one at a time
    updates: int = 50  # of actor and critics
    steps: int = 3  # of the encoder's training


SIZE = BenchSize()


def measure(log: Callable[[str], None]) -> Iterator[Figure]:
    size = SIZE
    torch.manual_seed(0)
    with one_thread():
        yield from rollout_speeds(size, log)
        log("aware: one decision at a time")
        yield from single_decisions(size)
        log("aware: training steps of actor, critics and encoder")
        yield from training_steps(size)


class RllibAware(TorchRLModule):  # type: ignore[misc]
    """AWARE's network on RLlib's batches of observations, with Gaussian noise of its own."""

    def setup(self) -> None:
        self.network = AwareNetwork(build_settings(AwareSettings, self.model_config["network"]))
        self.noise = self.model_config["noise"]

    @torch.no_grad()
    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        observations = batch[Columns.OBS]
        context = observations.new_zeros(len(observations), self.network.aware.context)
        actions = self.network.act(observations, context)
        noise = self.noise * torch.randn_like(actions)
        return {Columns.ACTIONS: (actions + noise).clamp(-1, 1)}


def rollout_speeds(size: BenchSize, log: Callable[[str], None]) -> Iterator[Figure]:
    """Decisions with noise, recorded, on one core."""
    speeds = measure_interleaved("aware: rollouts", contenders(size), size.rounds, log)
    for name, speed in speeds.items():
        yield Figure(f"aware/rollout/{name}decisions_per_s", speed, PER_S)
    best = max(speed for name, speed in speeds.items() if name.startswith(STOCK))
    yield Figure("aware/rollout/times_stock_runner", speeds[OURS] / best, "times")


def contenders(size: BenchSize) -> dict[str, Callable[[], int]]:
    """Functions by name that roll out and return the number of decisions."""
    config = algorithm(size.training)
    assert config.engine is not None  # `algorithm` sets it
    module, engine = config.get_rl_module_spec().build(), config.engine()
    module.exploration[0] = size.training.training.noise

    def ours(episodes: int) -> int:
        specs = [RolloutSpec(seed, action_seed=seed) for seed in range(episodes)]
        return sum(recording.decisions for recording in engine.roll_out(module, specs))

    ours(1)  # compiles
    ways: dict[str, Callable[[], int]] = {OURS: partial(ours, size.episodes)}
    gymnasium.register(GYM_ID, vector_entry_point=partial(_margin_envs, size.training))
    noise, network = size.training.training.noise, size.training.network.model_dump()
    spec = RLModuleSpec(
        module_class=RllibAware,
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        model_config={"network": network, "noise": noise},
    )
    for envs in size.stock:
        runner = StockRunner(GYM_ID, {}, spec, spec.build(), envs)
        ways[f"{STOCK}envs-{envs}/"] = partial(runner.sample, size.training.environment.steps)
    return ways


def _margin_envs(training: AwareTraining, num_envs: int, **_: Any) -> MarginEnvs:
    conditions = conditions_of(training.environment, training.loads)
    return MarginEnvs(num_envs, training.network, conditions)


def single_decisions(size: BenchSize) -> Iterator[Figure]:
    """Decisions of the policy and of the rule without a network, by turns, each in an episode."""
    pairs = islice(zip(_by_policy(size), _by_rule(size), strict=False), size.decisions)
    spent, alone = zip(*pairs, strict=True)
    yield from latency("aware/decision", spent, float(np.median(alone)), RULE_ALONE)


def _by_policy(size: BenchSize) -> Iterator[float]:
    """Milliseconds of each decision of an untrained policy."""
    training = size.training
    settings, setup = conditions_of(training.environment, training.loads)[0]
    policy = AwarePolicy(AwareNetwork(training.network), settings)
    runner = EpisodeRunner(settings, setup, 1)
    steps = policy.steps(runner, nothing_known(policy.settings.context))
    while True:
        began = time.perf_counter()
        found = next(steps, None)
        if found is None:
            return
        spent = 1000 * (time.perf_counter() - began)
        carry_out(setup.constants, runner.episode.state, found[1].plan)
        yield spent


def _by_rule(size: BenchSize) -> Iterator[float]:
    """Milliseconds of each decision of the rule."""
    training, rule = size.training, size.training.network.rule
    settings, setup = conditions_of(training.environment, training.loads)[0]
    runner = EpisodeRunner(settings, setup, 1)
    estimates, app, tables = new_estimates(), blank_application(), scratch()
    begin_episode(estimates)
    constants, state, margins = setup.constants, runner.episode.state, Margins(*rule.margins)
    while not runner.over:
        began = time.perf_counter()
        observe_step(constants, state, rule.gain, estimates, app, tables)
        plan_step(constants, state, margins, estimates, app, tables)
        spent = 1000 * (time.perf_counter() - began)
        carry_out(constants, state, tables.plan)
        yield spent


def training_steps(size: BenchSize) -> Iterator[Figure]:
    """Updates of actor and critics, updates of the encoder, and an application's embedding."""
    learning, network = size.training.training, size.training.network
    config, rng = algorithm(size.training), np.random.default_rng(0)
    learner: MetaLearner = config.build_learner(spaces={DEFAULT_MODULE_ID: (OBSERVATIONS, ACTIONS)})
    drawn = _minibatches(size, rng)
    spent = _time(lambda: learner.learn([drawn], first=learning.actor_start, seed=0), size.steps)
    name = f"aware/training/update_of_{learning.minibatch}_transitions_ms"
    yield Figure(name, spent / size.updates, "ms", higher_is_better=False)
    if network.encoder.kind == "none":
        return
    steps = size.training.environment.steps
    applications = [
        [rng.standard_normal((steps, STEP_WIDTH)).astype(np.float32)
         for _ in range(learning.meta_trajectories)]
        for _ in range(learning.meta_applications)
    ]  # fmt: skip
    batch: dict[str, Any] = {
        Columns.OBS: drawn.observations[0],
        Columns.ACTIONS: drawn.actions[0],
        Columns.REWARDS: drawn.rewards[0],
        Columns.NEXT_OBS: drawn.next_observations[0],
        Columns.TERMINATEDS: drawn.terminated[0],
        CONTEXT_ID: rng.integers(len(applications), size=learning.minibatch),
    }
    spent = _time(lambda: learner.meta_update(applications, dict(batch)), size.steps)
    name = f"aware/training/meta_update_of_{len(applications)}_applications_ms"
    yield Figure(name, spent, "ms", higher_is_better=False)
    best = [applications[0][:1] * network.encoder.trajectories]
    spent = _time(lambda: learner.embed(best), size.steps)
    yield Figure("aware/training/embedding_ms", spent, "ms", higher_is_better=False)


def _minibatches(size: BenchSize, rng: np.random.Generator) -> Minibatches:
    shape, rows = (size.updates, size.training.training.minibatch), size.training.network.context
    observation, action = OBSERVATIONS.shape, ACTIONS.shape
    return Minibatches(
        observations=rng.standard_normal((*shape, *observation)).astype(np.float32),
        actions=rng.uniform(-1, 1, (*shape, *action)).astype(np.float32),
        rewards=rng.standard_normal(shape).astype(np.float32),
        next_observations=rng.standard_normal((*shape, *observation)).astype(np.float32),
        terminated=np.zeros(shape, np.float32),
        integers={CONTEXT_ID: np.zeros(shape, np.int64)} if rows else {},
    )


def _time(work: Callable[[], Any], rounds: int) -> float:
    """Median wall-clock time in ms, after a first call."""
    work()
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        spent.append(1000 * (time.perf_counter() - began))
    return float(np.median(spent))
