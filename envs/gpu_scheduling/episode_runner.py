"""Run an episode decision by decision."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, SPEED_SOURCES, Baseline
from loadmaster.envs.gpu_scheduling.calibration import tuned_baseline
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import (
    GUIDE,
    DecisionState,
    advance_to_decision,
    new_decision_state,
)
from loadmaster.envs.gpu_scheduling.episode import (
    Episode,
    EpisodeResult,
    build_episode,
    episode_result,
    load_rule,
)
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.observation import blank_observation, observe
from loadmaster.envs.gpu_scheduling.rewards import published_terms
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import (
    DECIDE,
    GROW_TRACE,
    SimState,
    new_state,
    with_more_trace,
)


def set_guide(
    settings: GpuSchedulingSettings,
    workload: Workload,
    episode: Episode,
    state: SimState,
    decision: DecisionState,
) -> None:
    """Let the actions correct the rule `settings.guide`, with its tuned parameters.

    They are those of the same ordering by `settings.guide_speeds`, if that is a rule of its own.
    """
    if settings.guide is not None:
        speeds = SPEED_SOURCES[settings.guide_speeds]
        own = (
            name
            for name, one in BASELINES.items()
            if one.tuned_as == settings.guide and one.speeds == speeds
        )
        baseline = tuned_baseline(next(own, settings.guide), settings, workload)
        baseline = replace(baseline, speeds=speeds)
        load_guide(settings, state, episode.cluster, episode.jobs, decision, baseline)


def load_guide(
    settings: GpuSchedulingSettings,
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision: DecisionState,
    baseline: Baseline,
) -> None:
    """Let the actions correct this rule, in a new state."""
    decision.counts[GUIDE] = baseline.ordering.rule
    decision.replan_s[0] = load_rule(settings, state, cluster, jobs, baseline)


class EpisodeRunner:
    """Tables of an episode in progress; the caller makes the decisions."""

    def __init__(
        self, settings: GpuSchedulingSettings, seed: int, workload: Workload, record: bool = False
    ) -> None:
        self.seed = seed
        self.episode = build_episode(settings, seed, workload)
        self.state = new_state(settings, *self.episode, record=record)
        self.decision_state = new_decision_state(settings, *self.episode[:2])
        set_guide(settings, workload, self.episode, self.state, self.decision_state)
        self.view = blank_observation(settings.max_queue, self.episode.cluster, settings.history)
        self.terms = published_terms(settings, self.episode.cluster)

    def grow_trace(self) -> None:
        self.state = with_more_trace(self.state)

    def advance_to_decision(self) -> bool:
        """Advance to the next decision and observe; return False at the end of the episode."""
        cluster, jobs, _ = self.episode
        while (
            status := advance_to_decision(self.state, cluster, jobs, self.decision_state)
        ) == GROW_TRACE:
            self.grow_trace()
        observe(self.state, cluster, jobs, self.decision_state, self.view)
        return status == DECIDE

    def decide(self, priority: NDArray[np.float32], affinity: NDArray[np.float32]) -> bool:
        """Apply priorities (Q,) and affinities (Q, M); return whether they were legal."""
        cluster, jobs, _ = self.episode
        return apply_action(
            self.state, cluster, jobs, self.decision_state, self.terms,
            np.ascontiguousarray(priority), np.ascontiguousarray(affinity),
        )  # fmt: skip

    def result(self, policy: str = "das") -> EpisodeResult:
        """The outcome so far."""
        return episode_result(self.state, *self.episode[:2], policy, self.seed)
