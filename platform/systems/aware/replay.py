"""Replay of pod scaling: load, p99, replicas and use of the limits, and AWARE's decisions."""

from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from loadmaster.envs.pod_scaling.baselines import BASELINES
from loadmaster.envs.pod_scaling.describe import describe_episode
from loadmaster.envs.pod_scaling.episode import Setup, build_setup
from loadmaster.envs.pod_scaling.settings import STEP_S, PodScalingSettings
from loadmaster.envs.pod_scaling.state import Floats, Ints
from loadmaster.platform.replay.adapters import (
    Chart,
    DecisionButton,
    ReplayAdapter,
    count,
    none_for_nan,
    pack,
    policy_names,
)
from loadmaster.platform.systems.aware import decision_trace, evaluation
from loadmaster.platform.systems.aware.decision_trace import (
    SOURCES,
    STATES,
    RecordedEpisode,
    known_data,
    recorded,
    trace_data,
    unit,
)
from loadmaster.platform.systems.aware.known_applications import known_applications
from loadmaster.platform.systems.aware.logged import recorded_log
from loadmaster.platform.systems.aware.rollout import application_of
from loadmaster.platform.systems.policies import LearnedPolicy


def run(
    policy: str,
    learned: LearnedPolicy | None,
    settings: PodScalingSettings,
    seed: int,
    setup: Setup,
    record: bool,
) -> RecordedEpisode:
    """Run a rule, the bound or a learned policy, whose decisions are traced if it is AWARE."""
    if isinstance(learned, evaluation.LearnedAware) and record:
        known_app = learned.known_of(settings, seed, setup)
        known = known_applications(learned, settings, setup, known_app.embedding)
        result, trace = decision_trace.trace_episode(learned, settings, seed, setup, known_app)
        return recorded(result, policy, trace=trace, known=known)
    if learned is not None:
        return recorded(learned.run(settings, seed, setup, record=record), policy)
    return recorded(evaluation.run(policy, settings, setup, seed), policy)


def title(settings: PodScalingSettings, seed: int, setup: Setup) -> str:
    applications = setup.applications
    described = describe_episode(settings, len(applications))
    name = applications[application_of(len(applications), seed)].name
    drawn = "" if settings.application == name else f" · {name}"
    return f"pod_scaling · {settings.workload} · {described} · seed {seed}{drawn}"


def picture(episodes: Sequence[RecordedEpisode], title: str, file: IO[bytes], kind: str) -> None:
    from loadmaster.platform.systems.aware.picture import draw_picture

    draw_picture(episodes, title, file, kind)


class PodReplay(ReplayAdapter):
    """An application in pods: series over time, and what each control step used."""

    def summary(self, results: Sequence[RecordedEpisode], as_html: bool = False) -> str:
        names = policy_names(results, as_html)
        if results[0].sources is not None:
            return f"{names[0]}: {_logged_summary(results[0])}"
        parts = [
            f"{each.figures['reward']:.3f} under {name} ({each.figures['violations']:.0f}% of the "
            "steps above the SLO)"
            for name, each in zip(names, results, strict=True)
        ]
        return f"Reward {', '.join(parts)}"

    def note(self, results: Sequence[RecordedEpisode]) -> str:
        parts = [
            f"{count(int(np.nansum(each.restarts)), 'restart')} and "
            f"{count(int(np.nansum(each.ooms)), 'OOM kill')} under {each.policy}"
            for each in results
        ]
        parts = [f"{', '.join(parts)}."]
        if (lifecycle := _lifecycle(results[0])) is not None:
            parts.append(f"Lifecycle: {lifecycle}.")
        return " ".join(parts)

    def page_data(
        self, results: Sequence[RecordedEpisode], item_names: Sequence[str]
    ) -> dict[str, Any]:
        first = results[0]
        return {
            "step_s": STEP_S,
            "names": {"source": list(SOURCES), "state": list(STATES)},
            "load": _packed(first.load, 1000),
            "slo": _packed(first.slo_s, 1000),
            "policies": [_policy_data(result) for result in results],
        }


def _logged_summary(episode: RecordedEpisode) -> str:
    assert episode.sources is not None
    by = [int((episode.sources == number).sum()) for number in (1, 2)]
    parts = [f"{by[0]:,} by the policy, {by[1]:,} by the rule"]
    if not np.isnan(reward := episode.figures["reward"]):
        above = f"{episode.figures['violations']:.0f}% of the steps above the SLO"
        parts += [f"reward {reward:.3f}", above]
    return f"{count(sum(by), 'decision')}, {'; '.join(parts)}"


def _lifecycle(episode: RecordedEpisode) -> str | None:
    """The states of a log in words; None where it has none."""
    if episode.states is None or not episode.states.any():
        return None
    numbers = episode.states[episode.states > 0]
    at = np.flatnonzero(episode.states > 0)
    first = np.flatnonzero(np.diff(numbers, prepend=0))
    used = unit([episode])
    return ", then ".join(
        f"{STATES[numbers[place]]} from {STEP_S * at[place] / used.seconds:,.0f} {used.name}"
        for place in first
    )


def _policy_data(result: RecordedEpisode) -> dict[str, Any]:
    data = {
        "name": result.policy,
        "end_s": result.end_s,
        "application": result.application,
        "figures": {name: none_for_nan(value) for name, value in result.figures.items()},
        "p99": _packed(result.p99_s, 1000),
        "replicas": _packed(result.replicas, 100),
        "cpu": _packed(result.cores, 1000),
        "cpu_used": _packed(result.used_cores, 1000),
        "memory": _packed(result.mib),
        "memory_used": _packed(result.used_mib),
        "restarts": _packed(result.restarts),
        "ooms": _packed(result.ooms),
        "case": trace_data(result),
        "known": known_data(result.known),
    }
    if result.sources is not None and result.states is not None:
        data |= {"source": pack(result.sources), "state": pack(result.states)}
    return data


def _packed(values: Floats, scale: float = 1.0) -> dict[str, Any]:
    """Whole numbers of 1 / scale plus 1; 0: not known. `script/pod_scaling/data.js` reads it."""
    numbers: Ints = np.where(np.isnan(values), 0, np.rint(np.nan_to_num(values) * scale) + 1)
    return {"scale": scale, "values": pack(numbers.astype(np.int64))}


REPLAY = PodReplay(
    environment="pod_scaling",
    default_policies=("mpa", "hpa"),
    item="step",
    plots="p99 and use of every control step",
    charts=(
        Chart("load", "Load, requests a second", above=True),
        Chart("p99", "p99", above=True),
        Chart("replicas", "Replicas", above=True),
        Chart("cpu", "CPU, cores: limit (line) and use (area)", above=True),
        Chart("memory", "Memory, GiB: limit (line) and use (area)", above=True),
    ),
    difference="p99",
    rows_are="control steps",
    fewer="replay fewer steps (--set steps=...; of a log --since) or one policy",
    decisions=DecisionButton("change", "next change »", "The next decision that changes the plan"),
    picture_needs_learned=False,
    load=build_setup,
    run=run,
    opponents=lambda settings: tuple(BASELINES),
    cost=lambda settings, episode: -episode.reward,
    title=title,
    item_names=lambda setup, episode: tuple(map(str, range(len(episode.p99_s)))),
    rows=lambda episode: len(episode.p99_s),
    figures=lambda episode: episode.figures,
    unit=unit,
    picture=picture,
    logged=recorded_log,
    most_rows=50_000,  # each has a row of the table
)
