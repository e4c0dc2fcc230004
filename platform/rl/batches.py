"""From recorded rollouts to what a learner takes, and to what a user is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns

from loadmaster.platform.rl.advantages import Rollout, differential_rewards
from loadmaster.platform.rl.rollout import Recording, joined


def normalised(groups: Sequence[Sequence[NDArray[np.float64]]], alike: bool) -> NDArray[np.float32]:
    """All groups' advantages end to end, with mean 0 and spread 1.

    `alike` gives every group the same spread first: a sequence with ten times the jobs waiting has
    ten times the advantages, and would be most of what an iteration learns from.
    """
    ends = [np.concatenate(group) for group in groups]
    if alike:
        ends = [end / (end.std() + 1e-8) for end in ends]
    whole = np.concatenate(ends)
    return np.asarray((whole - whole.mean()) / (whole.std() + 1e-8), np.float32)


def learning_batches(
    recordings: Sequence[Recording], advantages: NDArray[np.float32], learners: int
) -> list[dict[str, Any]]:
    """The recorded decisions as columns, in as many parts as there are learners."""
    return batches_with(recordings, {Columns.ADVANTAGES: advantages}, learners)


def batches_with(
    recordings: Sequence[Recording], more: Mapping[str, NDArray[np.float32]], learners: int
) -> list[dict[str, Any]]:
    """The same with columns of one's own, whose rows follow the recordings."""
    starts = np.cumsum([0, *(len(recording.kept) for recording in recordings)])
    batches = []
    for own in np.array_split(np.arange(len(recordings)), learners):
        part = [recordings[place] for place in own]
        columns = joined([
            {
                Columns.OBS: recording.observations,
                Columns.ACTIONS: recording.actions,
                Columns.ACTION_LOGP: recording.log_probability.astype(np.float32),
                **{name: rows[starts[place] : starts[place + 1]] for name, rows in more.items()},
            }
            for place, recording in zip(own, part, strict=True)
        ])  # fmt: skip
        batches.append(columns)
    return batches


def figures_of(recordings: Sequence[Recording]) -> dict[str, float]:
    """An iteration in numbers: returns with their spread, and the environment's own figures."""
    returns = [float(recording.rollout.reward.sum()) for recording in recordings]
    found = {
        "decisions": float(sum(recording.decisions for recording in recordings)),
        "learnt_from": float(sum(len(recording.kept) for recording in recordings)),
        "rollouts": float(len(recordings)),
        "return_mean": float(np.mean(returns)),
        "return_spread": float(np.std(returns)),
    }
    for name in recordings[0].figures:
        found[name] = float(np.nanmean([recording.figures[name] for recording in recordings]))
    return found


def less(rollout: Rollout, rate: float) -> Rollout:
    """The same rollout with differential rewards."""
    return replace(rollout, reward=differential_rewards(rollout, rate))
