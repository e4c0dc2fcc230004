"""A recorded episode of pod scaling, and AWARE's decisions in it, for the replay page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.metrics import EPISODE_METRICS
from loadmaster.envs.pod_scaling.settings import STEP_S, PodScalingSettings
from loadmaster.envs.pod_scaling.state import Floats, Ints
from loadmaster.models.aware.choice import Remembered
from loadmaster.models.aware.explain import MARGIN, explain
from loadmaster.models.aware.policy import AwarePolicy
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.policy import Option
from loadmaster.platform.replay.adapters import Unit, none_for_nan, unit_of
from loadmaster.platform.systems.aware.known_applications import KnownApplication
from loadmaster.platform.systems.policies import spread_notable

TOLERATED = "a change of a limit within the tolerance is left out"
MAX_STEPS = 2000  # decisions of a page: about 1 MB


class Margin(NamedTuple):
    """A margin that the actor set."""

    name: str
    action: float  # -1 to 1; 0: the rule's
    value: str  # as text; empty if it is not known
    rule: str


class Step(NamedTuple):
    """A decision, of an episode or of a service's log."""

    step: int  # control step that follows it
    changed: bool  # of the plan
    reason: str
    margins: tuple[Margin, ...] = ()  # farthest from the rule's first
    expected: float | None = None  # reward of the step
    decided: str = ""  # by what, in a log: "policy aware 0123456789ab, SERVING"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode(EpisodeResult):
    """A result with what was used of the limits, and with the decisions where they are known.

    A value that a log does not have is NaN.
    """

    used_cores: Floats  # (steps,), as the next one
    used_mib: Floats
    figures: Mapping[str, float] = field(default_factory=dict)  # by metric
    trace: tuple[Step, ...] | None = None
    known: tuple[KnownApplication, ...] = ()
    sources: Ints | None = None  # (steps,) of a log: numbers of `SOURCES`
    states: Ints | None = None  # of a log: numbers of `STATES`

    @property
    def load(self) -> Floats:
        """Requests a second."""
        return self.arrived / STEP_S

    @property
    def end_s(self) -> float:
        return float(STEP_S * len(self.p99_s))


# Names of the numbers in `RecordedEpisode`; 0: not known.
SOURCES = ("", "policy", "rule")
STATES = ("", "OFFLINE", "ONLINE", "SERVING")


def recorded(result: EpisodeResult, policy: str, **further: Any) -> RecordedEpisode:
    """The result of a simulated episode for a page."""
    return RecordedEpisode(
        **{**vars(result), "policy": policy},
        used_cores=result.cpu_use * result.cores,
        used_mib=result.memory_use * result.mib,
        figures=episode_figures(result),
        **further,
    )


def episode_figures(result: EpisodeResult) -> dict[str, float]:
    return {metric.name: metric.of(result) for metric in EPISODE_METRICS}


def unit(episodes: Sequence[RecordedEpisode]) -> Unit:
    return unit_of(max(each.end_s for each in episodes))


def trace_episode(
    policy: AwarePolicy,
    settings: PodScalingSettings,
    seed: int,
    workload: Setup,
    known: Remembered,
) -> tuple[EpisodeResult, tuple[Step, ...]]:
    """Run the episode of `seed` and record every decision; `known` is updated."""
    runner, steps = EpisodeRunner(settings, workload, seed), []
    state = runner.episode.state
    for _, decision in policy.steps(runner, known):
        before, step = state.plan.copy(), runner.step
        carry_out(workload.constants, state, decision.plan)
        reason = explain(decision, before, policy.settings.rule)
        steps.append(
            Step(
                step=step,
                changed=bool((state.plan != before).any()),
                reason=reason.summary,
                margins=tuple(map(_margin, reason.choices[MARGIN])),
                expected=decision.expected,
                notes=() if (state.plan == decision.plan).all() else (TOLERATED,),
            )
        )
    return runner.result(policy.name), tuple(steps)


def _margin(option: Option) -> Margin:
    details = option.details
    return Margin(option.name, option.score, str(details["value"]), str(details["rule"]))


def thinned(trace: Sequence[Step], most: int = MAX_STEPS) -> tuple[Step, ...]:
    """Up to `most` steps: those that change the plan first, others between."""
    kept = spread_notable([step.changed for step in trace], most)
    return tuple(trace[number] for number in sorted(kept))


def trace_data(episode: RecordedEpisode) -> dict[str, Any] | None:
    """The decisions for a page; read by `script/pod_scaling/decision_panel.js`."""
    if episode.trace is None:
        return None
    changes = sum(step.changed for step in episode.trace)
    return {
        "count": len(episode.trace),
        "changes": changes,
        "steps": [_step_data(step, episode) for step in thinned(episode.trace)],
    }


def _step_data(step: Step, episode: RecordedEpisode) -> dict[str, Any]:
    earned = float(episode.rewards[step.step])
    plan, _, why = step.reason.partition("; ")
    return {
        "time_s": STEP_S * step.step,
        "changed": step.changed,
        "plan": plan,
        "why": why,
        "expected": None if step.expected is None else round(step.expected, 4),
        "earned": none_for_nan(round(earned, 4)),
        "decided": step.decided,
        "notes": list(step.notes),
        "margins": [margin._asdict() for margin in step.margins],
    }


def known_data(known: Sequence[KnownApplication]) -> list[dict[str, Any]]:
    """The nearest known applications for a page."""
    return [
        {
            "name": each.application.name,
            "similarity": round(each.similarity, 6),
            "cpu_ms": round(1000 * each.application.cpu_s, 3),
            "io_ms": round(1000 * each.application.io_s, 3),
            "memory_mib": round(each.application.memory_mib, 1),
            "slo_ms": round(1000 * each.application.slo_s, 3),
        }
        for each in known
    ]
