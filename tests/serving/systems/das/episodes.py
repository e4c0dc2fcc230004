"""Simulated episodes beside the states that an operator would send."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from loadmaster.envs.gpu_scheduling import state as columns
from loadmaster.envs.gpu_scheduling.baselines import BASELINES, DRF
from loadmaster.envs.gpu_scheduling.calibration import gpus_of
from loadmaster.envs.gpu_scheduling.decision_state import (
    GUIDE,
    PHASE,
    PHASES,
    RECONSIDERING,
    SHOWN,
    DecisionState,
    new_decision_state,
)
from loadmaster.envs.gpu_scheduling.episode import build_episode
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.placement import no_preferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import replan, run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models import bundle as bundles
from loadmaster.models.das.compiled import decide, is_supported, weights_of, workspace_for
from loadmaster.models.das.network import DasNetwork, batch_of_one
from loadmaster.models.das.rule_tilt import tilt_rule
from loadmaster.models.das.settings import training_settings
from loadmaster.serving.systems.das.examples import machine_name, state_of
from loadmaster.serving.systems.das.records import Ask, Finished, Rank
from loadmaster.serving.systems.das.rules import tuned_values
from loadmaster.serving.systems.das.schema import DasDecision, DasState
from loadmaster.serving.systems.das.snapshot import ranks_of

PRETRAINED = Path(bundles.__file__).parent / "pretrained"
Places = dict[str, dict[str, int]]  # of running jobs: instances on each machine


class Seen(NamedTuple):
    """A phase, or an event: the state to send, and placements before and after."""

    asked: DasState
    before: Places
    after: Places
    ranks: dict[str, Rank]  # afterwards
    kind: str
    now: float = 0.0


def places_of(state: SimState, jobs: Jobs) -> Places:
    found: Places = {}
    for number, (first, used) in enumerate(state.jobs[:-1, : columns.ROWS_USED + 1].tolist()):
        if used > 0:
            rows = state.rows[first : first + used, columns.MACHINE : columns.COUNT + 1].tolist()
            found[str(jobs.job_id[number])] = {machine_name(where): count for where, count in rows}
    return found


class Episode:
    """An episode under a bundle's network, as in rollouts."""

    def __init__(self, folder: Path, seed: int, **changes: object) -> None:
        bundle = bundles.load_bundle(folder)
        network = cast("DasNetwork", bundle.build())
        self.settings = training_settings(bundle).model_copy(update=changes)
        self.runner = EpisodeRunner(self.settings, seed, load_workload(self.settings))
        machines = len(self.runner.episode.cluster.rack)
        tilt_rule(network, self.runner.state.rule)
        self._network, self._is_compiled = network, is_supported(network.settings, machines)
        self._weights = weights_of(network)
        self._work = workspace_for(
            network.settings, self.settings.max_queue, machines, self.settings.history
        )

    def record(self, ask: Ask) -> DasState:
        cluster, jobs, _ = self.runner.episode
        return state_of(
            self.settings, cluster, jobs, self.runner.state, self.runner.decision_state, ask
        )

    def phase(self) -> Ask:
        """The phase of the next decision."""
        return cast("Ask", PHASES[int(self.runner.decision_state.counts[PHASE])])

    def next_state(self) -> DasState:
        """Advance to the next decision; its state."""
        assert self.runner.advance_to_decision()
        return self.record(self.phase())

    def act(self) -> None:
        if not self._is_compiled:
            seen = batch_of_one(self.runner.view, int(self.runner.decision_state.counts[SHOWN]))
            priority, affinity = self._network.mean_actions(seen)
            self.runner.decide(priority[0].numpy(), affinity[0].numpy())
            return
        decide(self.runner.view, self._weights, self._work, False, np.int64(0))
        self.runner.decide(self._work.priority, self._work.affinity)

    def skip(self, decisions: int) -> Episode:
        """Advance by so many decisions."""
        for _ in range(decisions):
            assert self.runner.advance_to_decision()
            self.act()
        return self

    def moments(self, ask: Ask | None = None) -> Iterator[Seen]:
        state, jobs = self.runner.state, self.runner.episode.jobs
        while self.runner.advance_to_decision():
            kind, now = self.phase(), float(state.times[columns.NOW])
            asked, before = self.record(ask or kind), places_of(state, jobs)
            self.act()
            decision_state = self.runner.decision_state
            ranks = ranks_by_id(state, jobs, decision_state, int(decision_state.counts[GUIDE]))
            yield Seen(asked, before, places_of(state, jobs), ranks, kind, now)

    def events(self) -> Iterator[Seen]:
        """All phases at one time are one event; with a guide, only those at which it replans."""
        guided = self.settings.guide is not None
        for _, group in groupby(self.moments("event"), attrgetter("now")):
            phases = list(group)
            kinds = ", ".join(phase.kind for phase in phases)
            if not guided or kinds == PHASES[RECONSIDERING]:
                yield phases[0]._replace(after=phases[-1].after, ranks=phases[-1].ranks, kind=kinds)


def ranks_by_id(
    state: SimState, jobs: Jobs, decision_state: DecisionState, ordering: int
) -> dict[str, Rank]:
    ranks = ranks_of(state, decision_state, ordering)
    return {str(jobs.job_id[job]): Rank.model_validate(rank) for job, rank in ranks.items()}


def finished_of(state: SimState) -> dict[str, Any]:
    """Finished jobs of each user, and of all together."""
    *users, everyone = [
        Finished(jobs=int(done), mean_log_minutes=log_run)
        for done, log_run in state.user_history.tolist()
    ]
    by_name = {f"user-{user}": one for user, one in enumerate(users) if one.jobs > 0}
    return {"users": by_name, "all_users": everyone}


def under_rule(name: str, settings: GpuSchedulingSettings, seed: int) -> Iterator[Seen]:
    """The scheduling passes of a baseline."""
    baseline, (cluster, jobs, seed) = BASELINES[name], build_episode(settings, seed)
    ordering = baseline.ordering
    state = columns.new_state(settings, cluster, jobs, seed, by_user=ordering.rule == DRF)
    if ordering.at_intervals:
        state.times[columns.NEXT_REPLAN] = 0.0
    state.rule[:] = tuned_values(name, gpus_of(cluster))
    by = ordering.rule, baseline.placement, no_preferences(jobs)
    rules_have_none = new_decision_state(settings, cluster, jobs)
    while advance(state, cluster, jobs, ordering.rule) == columns.DECIDE:
        if state.clock[columns.QUEUED] == 0:
            continue
        now = state.times[columns.NOW]
        replans = ordering.replans and now >= state.times[columns.NEXT_REPLAN]
        kind: Ask = "event" if replans else "placing"
        asked = state_of(settings, cluster, jobs, state, None, kind)
        ranks = ranks_by_id(state, jobs, rules_have_none, ordering.rule)
        asked = asked.model_copy(update={"ranks": ranks, **finished_of(state)})
        before = places_of(state, jobs)
        if replans:
            replan(state, cluster, jobs, *by)
            state.times[columns.NEXT_REPLAN] = now + settings.replan_s
        else:
            run_scheduling_pass(state, cluster, jobs, *by)
        ranks = ranks_by_id(state, jobs, rules_have_none, ordering.rule)
        yield Seen(asked, before, places_of(state, jobs), ranks, kind)


def carried_out(before: Places, decision: DasDecision) -> Places:
    """Placements after the decision."""
    after = {job: where for job, where in before.items() if job not in decision.stop}
    for start in decision.start:
        assert start.job not in after
        after[start.job] = {one.machine: one.instances for one in start.placements}
        assert after[start.job] != before.get(start.job)
    return after


def outcome(before: Places, decision: DasDecision) -> tuple[Places, dict[str, Rank]]:
    """Placements and ranks after the decision."""
    return carried_out(before, decision), decision.ranks
