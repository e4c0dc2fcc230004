"""Replay of stream scaling: load, latency, lag and instances over time, and SURE's decisions."""

from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.stream_scaling.baselines import BASELINES
from loadmaster.envs.stream_scaling.describe import describe_episode
from loadmaster.envs.stream_scaling.episode import Setup, build_setup
from loadmaster.envs.stream_scaling.metrics import episode_metrics
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.platform.replay.adapters import (
    Chart,
    DecisionButton,
    Packed,
    ReplayAdapter,
    count,
    none_for_nan,
    pack,
    policy_names,
)
from loadmaster.platform.systems.policies import LearnedPolicy
from loadmaster.platform.systems.sure import decision_trace, evaluation
from loadmaster.platform.systems.sure.decision_trace import MINUTE_S, RecordedEpisode, unit


def pack_runs(parallelism: NDArray[np.int64]) -> Packed:
    """Run lengths of (minutes, N), by task; decoded by `script/stream_scaling/data.js`."""
    by_task = parallelism.T
    first = np.ones(by_task.shape, np.bool_)
    first[:, 1:] = by_task[:, 1:] != by_task[:, :-1]
    at = np.flatnonzero(first)
    return {
        "runs": pack(first.sum(axis=1)),  # (N,)
        "length": pack(np.diff(at, append=by_task.size)),  # minutes
        "instances": pack(by_task.ravel()[at]),
    }


def run(
    policy: str,
    learned: LearnedPolicy | None,
    settings: StreamScalingSettings,
    seed: int,
    setup: Setup,
    recorded: bool,
) -> RecordedEpisode:
    """Run a rule, an oracle or a learned policy, whose decisions are traced if it is SURE."""
    trace = None
    if isinstance(learned, evaluation.LearnedSure) and recorded:
        result, trace = decision_trace.trace_episode(learned, settings, seed, setup)
    elif learned is not None:
        result = learned.run(settings, seed, setup, record=recorded)
    else:
        result = evaluation.run(policy, settings, setup, seed, record=recorded)
    return RecordedEpisode(
        **{**vars(result), "policy": policy},
        job=setup.job,
        first=np.minimum(settings.initial, setup.tables.cap),
        figures={metric.name: metric.of(result) for metric in episode_metrics(settings)},
        trace=trace,
    )


def title(settings: StreamScalingSettings, seed: int, setup: Setup) -> str:
    described = describe_episode(settings, setup.job)
    return f"stream_scaling · {settings.workload} · {described} · seed {seed}"


def picture(episodes: Sequence[RecordedEpisode], title: str, file: IO[bytes], kind: str) -> None:
    from loadmaster.platform.systems.sure.picture import draw_picture

    draw_picture(episodes, title, file, kind)


def rows(episode: RecordedEpisode) -> int:
    """Minutes, and runs of equal parallelism."""
    assert episode.parallelism is not None
    changes = int((np.diff(episode.parallelism, axis=0) != 0).sum())
    return len(episode.parallelism) + changes


class StreamReplay(ReplayAdapter):
    """A streaming job that runs all the time: series over time, and instances of every task."""

    def summary(self, results: Sequence[RecordedEpisode], as_html: bool = False) -> str:
        space = "&nbsp;" if as_html else " "
        parts = [
            f"{result.figures['reward']:.3f} under {name} (latency "
            f"{result.figures['latency']:,.1f}{space}s, {result.instances.mean():,.0f} instances)"
            for name, result in zip(policy_names(results, as_html), results, strict=True)
        ]
        return f"Reward {', '.join(parts)}"

    def note(self, results: Sequence[RecordedEpisode]) -> str:
        over = [
            f"{count(int(result.figures['minutes_over_target']), 'minute')} under {result.policy}"
            for result in results
        ]
        target_s = MINUTE_S * results[0].target_min
        return f"Latency above the target of {target_s:g} s: {', '.join(over)}."

    def page_data(
        self, results: Sequence[RecordedEpisode], item_names: Sequence[str]
    ) -> dict[str, Any]:
        first = results[0]
        place = {name: number for number, name in enumerate(first.job.names)}
        return {
            "target_s": MINUTE_S * first.target_min,
            "load": _packed(first.load),
            "tasks": {
                "name": list(item_names),
                "level": first.job.levels.tolist(),
                "parents": [[place[name] for name in task.parents] for task in first.job.tasks],
            },
            "policies": [_policy_data(result) for result in results],
        }


def _policy_data(result: RecordedEpisode) -> dict[str, Any]:
    assert result.parallelism is not None
    return {
        "name": result.policy,
        "end_s": result.end_s,
        "figures": {name: none_for_nan(value) for name, value in result.figures.items()},
        "latency_ms": _packed(result.latency_min * MINUTE_S * 1000),
        "lag": _packed(result.lag),
        "utilisation": _packed(result.utilisation * 1000),
        "parallelism": pack_runs(result.parallelism),
        "restarts": pack(result.restart_minutes),
        "case": None if result.trace is None else decision_trace.trace_data(result.trace),
    }


def _packed(values: NDArray[np.float64]) -> str:
    return pack(np.rint(values).astype(np.int64))


REPLAY = StreamReplay(
    environment="stream_scaling",
    default_policies=("flink", "hpa"),
    item="task",
    plots="instances of every task",
    charts=(
        Chart("load", "Load, records a minute", above=True),
        Chart("latency", "Latency", above=True),
        Chart("lag", "Lag, records waiting at the sources", above=True),
        Chart("instances", "Instances in total", above=True),
    ),
    difference="latency",
    rows_are="minutes and changes of instances",
    fewer="replay fewer minutes (--set minutes=...) or one policy",
    decisions=DecisionButton("act", "next act »", "The next decision that changes instances"),
    picture_needs_learned=False,
    load=build_setup,
    run=run,
    opponents=lambda settings: tuple(BASELINES),
    cost=lambda settings, episode: -episode.reward,
    title=title,
    item_names=lambda setup, episode: setup.job.names,
    rows=rows,
    figures=lambda episode: episode.figures,
    unit=unit,
    picture=picture,
    most_rows=400_000,  # changes are painted one by one
)
