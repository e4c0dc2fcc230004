"""Rollouts of SURE: episodes of one job step together, and every step is one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.metrics import restarts_per_day
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.vector_env import StreamScalingVectorEnv
from loadmaster.models.keyed_random import splitmix64
from loadmaster.models.sure.batches import EpisodeRecorder
from loadmaster.models.sure.graph import DecisionBatch, pack
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import recommend
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutSpec

MINUTE_S = 60.0
TOGETHER = 16  # episodes in a forward pass


@dataclass
class _Episodes:
    """Results of episodes that ran together: E of them, T decisions each."""

    rewards: NDArray[np.float64]  # (T, E)
    outlooks: NDArray[np.float64]  # (T, E, P)
    recorders: Sequence[EpisodeRecorder]
    figures: Sequence[Mapping[str, float]]


class SureEngine:
    """A `RolloutEngine`; a seed decides the job of an episode, its load and its noise."""

    def __init__(self, environment: StreamScalingSettings, jobs: Sequence[str]) -> None:
        self.settings, self.jobs = environment, tuple(jobs)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        found: dict[int, Recording] = {}
        for job, places in self._groups([own.sequence for own in assignments]):
            chosen = [assignments[place] for place in places]
            keys = torch.tensor([own.action_seed for own in chosen])
            ran = self._run(module.network, job, [own.sequence for own in chosen], keys)
            for number, (place, own) in enumerate(zip(places, chosen, strict=True)):
                found[place] = self._recording(ran, number, own)
        return [found[place] for place in range(len(assignments))]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        found: dict[int, EpisodeScore] = {}
        for job, places in self._groups(seeds):
            ran = self._run(module.network, job, [seeds[place] for place in places], None)
            for number, place in enumerate(places):
                reward = float(ran.rewards[:, number].mean())
                found[place] = EpisodeScore(reward, len(ran.rewards), loss=-reward)
        return [found[place] for place in range(len(seeds))]

    def _groups(self, seeds: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Places of the episodes of each job, at most TOGETHER in a group."""
        by_job: dict[str, list[int]] = {}
        for place, seed in enumerate(seeds):
            by_job.setdefault(self.jobs[seed % len(self.jobs)], []).append(place)
        return [
            (job, places[first : first + TOGETHER])
            for job, places in by_job.items()
            for first in range(0, len(places), TOGETHER)
        ]

    @torch.no_grad()
    def _run(
        self, network: SureNetwork, job: str, seeds: Sequence[int], keys: torch.Tensor | None
    ) -> _Episodes:
        """Sample by `keys` and record, or act greedily if there are none."""
        values = self.settings.model_dump() | {"job": job}
        envs = StreamScalingVectorEnv(len(seeds), copy=False, **values)
        every = self.settings.decide_every_min
        observations, _ = envs.reset(seed=list(seeds))
        recorders = [EpisodeRecorder(_row(observations, i), every) for i in range(len(seeds))]
        rewards: list[NDArray[np.float64]] = []
        outlooks: list[NDArray[np.float64]] = []
        over = np.zeros(len(seeds), np.bool_)
        while not over.all():
            batch, tasks = self._batch(network, observations), len(observations["tasks"][0])
            own = torch.zeros(len(seeds), dtype=torch.int64)
            own = own if keys is None else splitmix64(keys, len(rewards))
            action = network.act(batch, own, greedy=keys is None)
            if keys is not None:
                outlooks.append(_outlook(observations))
                for number, recorder in enumerate(recorders):
                    rows = slice(number * tasks, (number + 1) * tasks)
                    recorder.add(action, rows, number, batch, int(own[number]))
            sign = torch.where(action.gate, 1.0, -1.0).unsqueeze(1)
            change = action.change.view(len(seeds), tasks).clamp(-1, 1)
            actions = torch.cat([sign, change], dim=1).numpy()
            observations, reward, _, over, _ = envs.step(actions)
            rewards.append(reward.copy())
            if keys is not None:
                for number, recorder in enumerate(recorders):
                    recorder.follow(_row(observations, number))
        figures = [
            {"restarts": restarts_per_day(envs.result(number))} for number in range(len(seeds))
        ]
        return _Episodes(np.array(rewards), np.array(outlooks), recorders, figures)

    def _batch(self, network: SureNetwork, observations: Mapping[str, Any]) -> DecisionBatch:
        prior = recommend(observations, network.settings.prior, self.settings)
        rows = [_row(observations, number) for number in range(len(prior.gate))]
        return pack(rows, network.settings.hops, list(prior.change), prior.gate.tolist())

    def _recording(self, ran: _Episodes, number: int, spec: RolloutSpec) -> Recording:
        count = len(ran.rewards)
        rng = np.random.default_rng(spec.action_seed)
        kept = np.flatnonzero(rng.random(count) < spec.keep)
        observations, actions, log_probability = ran.recorders[number].columns(kept)
        step_s = self.settings.decide_every_min * MINUTE_S
        return Recording(
            observations=observations,
            actions=actions,
            log_probability=log_probability,
            kept=kept,
            rollout=Rollout(
                time_s=step_s * np.arange(count, dtype=np.float64),
                reward=ran.rewards[:, number],
                end_s=count * step_s,
                outlook=ran.outlooks[:, number],
            ),
            figures=ran.figures[number],
        )


def _row(observations: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {name: table[number] for name, table in observations.items()}


def _outlook(observations: Mapping[str, Any]) -> NDArray[np.float64]:
    """(E, P) what predicts the rewards to come: backlog, busy time, instances, time of day."""
    newest, restart = observations["snapshots"][:, -1], observations["restart"]
    columns = [newest.mean(axis=1), newest.max(axis=1), restart, observations["times"][:, -1]]
    return np.concatenate(columns, axis=1).astype(np.float64)
