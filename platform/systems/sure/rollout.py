"""Rollouts of SURE: episodes of one job step together, and every step is one compiled call."""

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
from loadmaster.models.sure.compiled_tables import Decisions, empty_decisions
from loadmaster.models.sure.deciders import decider_for
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import KeptRates, recommend
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import EpisodeScore, Recording, RolloutSpec

MINUTE_S = 60.0
TOGETHER = 16  # episodes in a forward pass


@dataclass
class _Episodes:
    """Results of episodes that ran together: E of them, T decisions each."""

    rewards: NDArray[np.float64]  # (T, E)
    outlooks: NDArray[np.float64]  # (T, E, P)
    recorder: EpisodeRecorder | None  # of sampled episodes
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

    def _run(
        self, network: SureNetwork, job: str, seeds: Sequence[int], keys: torch.Tensor | None
    ) -> _Episodes:
        """Sample by `keys` and record, or act greedily if there are none."""
        values = self.settings.model_dump() | {"job": job}
        envs = StreamScalingVectorEnv(len(seeds), copy=False, **values)
        every, minutes = self.settings.decide_every_min, self.settings.minutes
        observations, _ = envs.reset(seed=list(seeds))
        tasks, window = observations["tasks"].shape[1], observations["times"].shape[1]
        steps = -(-minutes // every)
        decider, rates = decider_for(network, observations), KeptRates(observations)
        recorded = steps if keys is not None else 1
        made = empty_decisions(network.settings, tasks, recorded, len(seeds))
        recorder = EpisodeRecorder(observations, every, made) if keys is not None else None
        rewards = np.zeros((steps, len(seeds)))
        outlooks: list[NDArray[np.float64]] = []
        actions = np.zeros((len(seeds), 1 + tasks), np.float32)
        own = np.zeros(len(seeds), np.int64)
        if keys is not None:
            drawn = splitmix64(keys, torch.arange(steps)[:, None]).numpy()
        for step in range(steps):
            prior = recommend(observations, network.settings.prior, self.settings, rates=rates)
            out = Decisions._make(table[step % recorded] for table in made)
            if keys is not None:
                own = drawn[step]
            decider.decide(observations, prior, own, keys is None, out)
            if recorder is not None:
                outlooks.append(_outlook(observations))
                recorder.add(step, observations["restart"], prior, own)
            actions[:, 0] = np.where(out.gate, 1.0, -1.0)
            np.clip(out.change, -1, 1, out=actions[:, 1:])
            observations, rewards[step], _, over, _ = envs.step(actions)
            decider.follow(observations, min(every, window))
            rates.follow(observations, min(every, window))
            if recorder is not None:
                recorder.follow(step, observations)
        assert over.all()
        figures = [
            {"restarts": restarts_per_day(envs.result(number))} for number in range(len(seeds))
        ]
        return _Episodes(rewards, np.array(outlooks), recorder, figures)

    def _recording(self, ran: _Episodes, number: int, spec: RolloutSpec) -> Recording:
        count = len(ran.rewards)
        assert ran.recorder is not None
        kept = ran.recorder.chosen(number, spec.keep, np.random.default_rng(spec.action_seed))
        observations, actions, log_probability = ran.recorder.columns(number, kept, spec.keep)
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


def _outlook(observations: Mapping[str, Any]) -> NDArray[np.float64]:
    """(E, P) what predicts the rewards to come: backlog, busy time, instances, time of day."""
    newest, restart = observations["snapshots"][:, -1], observations["restart"]
    columns = [newest.mean(axis=1), newest.max(axis=1), restart, observations["times"][:, -1]]
    return np.concatenate(columns, axis=1).astype(np.float64)
