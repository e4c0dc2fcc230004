"""A recorded episode, and SURE's decisions in it, for the replay page and picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.stream_scaling.jobs import Job
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.models.sure.graph import NONE
from loadmaster.models.sure.policy import Subgraphs, SurePolicy
from loadmaster.platform.replay.adapters import Unit, pack, unit_of
from loadmaster.platform.systems.policies import spread_notable

MINUTE_S = 60
UNITS = (Unit(3600, "h", (1, 2, 3, 6, 12, 24, 48)), Unit(60, "min"))  # hours divide days
MAX_NUMBERS = 800_000  # in all decisions of a page: about 1.4 MB
NUMBERS_PER_TASK = 3  # beside what it read
CHANGE_LEVELS = 1000  # of a change, between 0 and 1
WEIGHT_LEVELS = 10_000  # of a weight, between 0 and 1


@dataclass(frozen=True)
class Step:
    """A decision about N tasks."""

    minute: int
    act: bool  # the gate; where it holds, changes have no effect
    probability: float  # of acting
    change: NDArray[np.float32]  # (N,) mean
    std: float
    before: NDArray[np.int64]  # (N,) instances
    after: NDArray[np.int64]  # (N,)
    read: Subgraphs | None  # None: the network reads all snapshots

    @property
    def restarted(self) -> bool:
        return bool((self.before != self.after).any())

    @property
    def numbers(self) -> int:
        read = 0 if self.read is None else self.read.numbers
        return NUMBERS_PER_TASK * len(self.change) + read


@dataclass(frozen=True)
class DecisionTrace:
    """All decisions of an episode."""

    steps: tuple[Step, ...]
    history: int  # snapshots that the policy can draw from


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode(EpisodeResult):
    """A result with its job, and with the decisions if SURE made them."""

    job: Job
    first: NDArray[np.int64]  # (N,) instances before the first decision
    figures: Mapping[str, float] = field(default_factory=dict)  # by metric
    trace: DecisionTrace | None = None

    @property
    def end_s(self) -> float:
        return float(MINUTE_S * len(self.latency_min))

    @property
    def restart_minutes(self) -> NDArray[np.int64]:
        """Minutes in which the job is restarted: for another plan, or after a fault."""
        assert self.parallelism is not None
        before = np.vstack([self.first[None], self.parallelism[:-1]])
        down = np.concatenate([[False], self.up < 1])
        stopped = down[1:] & ~down[:-1]
        return np.flatnonzero(stopped | (before != self.parallelism).any(axis=1))


def unit(episodes: Sequence[RecordedEpisode]) -> Unit:
    return unit_of(max(each.end_s for each in episodes), UNITS)


def trace_episode(
    policy: SurePolicy, settings: StreamScalingSettings, seed: int, setup: Setup
) -> tuple[EpisodeResult, DecisionTrace]:
    """Run the episode of `seed` and record every decision."""
    runner = policy.start_episode(settings, seed, setup, record=True)
    steps = []
    for _, decision in policy.steps(runner):
        before, minute = runner.parallelism.copy(), runner.minute
        runner.decide(decision.action)
        steps.append(
            Step(
                minute=minute,
                act=decision.act,
                probability=decision.probability,
                change=decision.change,
                std=decision.std,
                before=before,
                after=runner.parallelism.copy(),
                read=decision.read,
            )
        )
    return runner.result(policy.name), DecisionTrace(tuple(steps), runner.settings.history)


def thinned(trace: DecisionTrace, most: int = MAX_NUMBERS) -> tuple[Step, ...]:
    """As many steps as `most` numbers allow: those that restart the job first, others between."""
    steps, total = trace.steps, sum(step.numbers for step in trace.steps)
    room = len(steps) if total <= most else int(len(steps) * most / total)
    kept = spread_notable([step.restarted for step in steps], room)
    return tuple(steps[number] for number in sorted(kept))


def trace_data(trace: DecisionTrace) -> dict[str, Any]:
    """The trace packed for a page; decoded by `script/stream_scaling/decisions.js`."""
    probability = np.array([step.probability for step in trace.steps])
    return {
        "history": trace.history,
        "minute": pack(np.array([step.minute for step in trace.steps], np.int64)),
        "act": pack(np.array([step.act for step in trace.steps], np.int64)),
        "probability": pack(np.rint(probability * WEIGHT_LEVELS).astype(np.int64)),
        "steps": [_step_data(step) for step in thinned(trace)],
    }


def _step_data(step: Step) -> dict[str, Any]:
    data: dict[str, Any] = {
        "time_s": 60 * step.minute,
        "act": step.act,
        "probability": round(step.probability, 4),
        "std": round(step.std, 4),
        "change": pack(np.rint((step.change + 1) * CHANGE_LEVELS).astype(np.int64)),
        "before": pack(step.before),
        "after": pack(step.after),
    }
    if (read := step.read) is not None:
        data |= {
            "snapshot": pack(read.snapshot.ravel() - NONE),  # + 1; 0: none
            "weight": pack(np.rint(read.weight.ravel() * WEIGHT_LEVELS).astype(np.int64)),
            "neighbour": pack(read.neighbour.ravel() - NONE),
        }
    return data
