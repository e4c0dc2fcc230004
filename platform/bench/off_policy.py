"""Replay and updates of off-policy training beside RLlib's replay buffer and its SAC."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

from loadmaster.models.layers import one_thread
from loadmaster.platform.bench import pendulum
from loadmaster.platform.bench.measurements import Figure, in_fresh_process
from loadmaster.platform.ray.session import ray_session
from loadmaster.platform.rl.replay import Layout, Replay
from loadmaster.platform.training.trainer import Trainer, quiet_rllib

STATE, ACTION, STEPS = 11, 3, 100  # AWARE's state and actions, steps of an episode
MINIBATCH = 64
BUFFER, SAC = "RLlib's EpisodeReplayBuffer", "RLlib's SAC"
GOAL_MB = 150.0
# Arguments of `EpisodeReplayBuffer.sample`, by the suffix of the figure.
SAMPLING: dict[str, dict[str, Any]] = {
    "/episodes": {"num_items": MINIBATCH, "n_step": 1, "sample_episodes": True},
    "/sequences": {"batch_size_B": MINIBATCH, "batch_length_T": 2},
}


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    transitions: int = 100_000  # in the replays that are drawn from
    draws: int = 100  # of RLlib's buffer in a turn
    stored: int = 1_000_000  # transitions whose memory is measured
    stored_by_peer: int = 100_000  # scaled to as many
    sac_steps: int = 100  # in a turn
    iterations: int = 2  # of two episodes, in a turn
    turns: int = 3


def measure(report_step: Callable[[str], None], effort: Effort | None = None) -> Iterator[Figure]:
    effort = effort or Effort()
    with one_thread():
        yield from draw_speed(effort, report_step)
    yield from memory(effort, report_step)
    yield from step_speed(effort, report_step)


def random_episode(rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Observations (STEPS + 1, STATE) and actions (STEPS, ACTION)."""
    found = rng.standard_normal((STEPS + 1, STATE)), rng.uniform(-1, 1, (STEPS, ACTION))
    return found[0].astype(np.float32), found[1].astype(np.float32)


def filled_replay(folder: Path, transitions: int) -> Replay:
    rng, episodes = np.random.default_rng(0), transitions // STEPS
    replay = Replay.create(folder, Layout(STATE, ACTION), episodes * (STEPS + 1))
    for _ in range(episodes):
        observations, actions = random_episode(rng)
        replay.append(observations[:-1], actions, observations[1:, 0], observations[-1])
    return replay


def filled_buffer(transitions: int) -> EpisodeReplayBuffer:
    rng, buffer = np.random.default_rng(0), EpisodeReplayBuffer(capacity=transitions)
    spaces = (gymnasium.spaces.Box(-np.inf, np.inf, (size,)) for size in (STATE, ACTION))
    state, action = spaces
    for _ in range(transitions // STEPS):
        observations, actions = random_episode(rng)
        episode = SingleAgentEpisode(
            observations=list(observations),
            actions=list(actions),
            rewards=observations[1:, 0].tolist(),
            observation_space=state,
            action_space=action,
            truncated=True,
            len_lookback_buffer=0,
        )
        buffer.add(episode.to_numpy())
    return buffer


def per_s(ways: dict[str, Callable[[], int]], turns: int) -> dict[str, float]:
    """What each way did per second of this process's CPU time; the ways are interleaved."""
    done, spent = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            done[name] += way()
            spent[name] += time.process_time() - began
    return {name: done[name] / spent[name] for name in ways}


def draw_speed(effort: Effort, report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Minibatches per second, one call for each.

    RLlib's SAC and DQN draw episodes of one step, which connectors turn into arrays. The buffer
    also returns arrays of sequences; those of two steps hold a transition and its next observation.
    """
    report_step(f"replay: draws of {MINIBATCH} from {effort.transitions:,} transitions")
    buffer = filled_buffer(effort.transitions)
    with TemporaryDirectory(prefix="lm-bench-") as folder:
        replay = filled_replay(Path(folder) / "replay", effort.transitions)

        def draw(count: int) -> int:
            for seed in range(count):
                replay.draw((MINIBATCH,), seed)
            return count

        def sample(**how: Any) -> int:
            for _ in range(effort.draws):
                buffer.sample(**how)
            return effort.draws

        draw(10)
        ways = {"": lambda: draw(100 * effort.draws)}
        ways |= {name: partial(sample, **how) for name, how in SAMPLING.items()}
        found = per_s(ways, effort.turns)
    for name in SAMPLING:
        figure = f"off-policy/replay/draws_of_64_per_s{name}"
        yield Figure(figure, found[""], "minibatches/s", found[name], BUFFER)


_RESIDENT = """
import psutil
import tempfile
from pathlib import Path
from loadmaster.platform.bench.off_policy import {fill}
def resident():
    return psutil.Process().memory_info().rss
with tempfile.TemporaryDirectory() as folder:
    few = {fill}({first}100)
    before = resident()
    kept = {fill}({first}{count})
    print(resident() - before)
"""


def memory(effort: Effort, report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Resident memory, in processes of their own; RLlib's is scaled from fewer transitions."""
    report_step(f"replay: memory of {effort.stored:,} transitions")
    first = "Path(folder) / 'replay', "
    program = _RESIDENT.format(fill=filled_replay.__name__, first=first, count=effort.stored)
    stored = in_fresh_process(program) / 1e6
    program = _RESIDENT.format(fill=filled_buffer.__name__, first="", count=effort.stored_by_peer)
    peer = in_fresh_process(program) / 1e6 * effort.stored / effort.stored_by_peer
    yield Figure("off-policy/replay/resident_mb", stored, "MB", peer, BUFFER, False)
    yield Figure("off-policy/replay/resident_mb_goal", stored, "MB", GOAL_MB, "the goal", False)


def step_speed(effort: Effort, report_step: Callable[[str], None]) -> Iterator[Figure]:
    """Steps of Pendulum, each with an update of 64 transitions, per second of CPU time."""
    report_step(f"Pendulum: steps with their updates, and those of {SAC} (a minute)")
    config = pendulum.PendulumTraining()
    learning = config.training.model_copy(update={"warm_up": pendulum.EPISODE})
    config = config.model_copy(update={"training": learning})
    layers = config.network.actor
    with ray_session(cpus=1), quiet_rllib():
        trainer = Trainer(pendulum.RECIPE, config)
        stock = pendulum.sac(layers, learning, warm_up=effort.sac_steps).build_algo()
        ways: dict[str, Callable[[], int]] = {
            "": lambda: _steps(trainer, effort.iterations),
            SAC: lambda: _sac_steps(stock),
        }
        try:
            with one_thread():  # the trainer has changed it
                for way in ways.values():  # until both have started to learn
                    way()
                found = per_s(ways, effort.turns)
        finally:
            trainer.stop()
            stock.stop()
    yield Figure("off-policy/pendulum/steps_per_s", found[""], "steps/s", found[SAC], SAC)


def _steps(trainer: Trainer, iterations: int) -> int:
    return int(sum(trainer.step()["decisions"] for _ in range(iterations)))


def _sac_steps(algorithm: Any) -> int:
    before = algorithm.metrics.peek(_LIFETIME, default=0)
    algorithm.train()
    return int(algorithm.metrics.peek(_LIFETIME) - before)


_LIFETIME: Sequence[str] = ("env_runners", NUM_ENV_STEPS_SAMPLED_LIFETIME)
