"""Episodes as they are simulated, moment by moment, beside the states an operator would send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import rule_ids as rules
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.episode import build_episode
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.preemption import replan
from loadmaster.envs.gpu_scheduling.rollout import no_preferences
from loadmaster.envs.gpu_scheduling.scheduling_pass import run_scheduling_pass
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.simulator import advance
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models import bundle as bundles
from loadmaster.models.das.compiled import decide, is_supported, weights_of, workspace_for
from loadmaster.models.das.network import DasNetwork, batch_of_one
from loadmaster.models.das.settings import training_settings
from loadmaster.serving.systems.das.recording import machine_name, state_of
from loadmaster.serving.systems.das.schema import Ask, DasDecision, DasState

PRETRAINED = Path(bundles.__file__).parent / "pretrained"
Places = dict[str, dict[str, int]]  # of running jobs: instances on each machine


class Seen(NamedTuple):
    """A moment, or an event: what was known, and what came of it."""

    asked: DasState
    before: Places
    after: Places
    kind: str


def places_of(state: SimState, jobs: Jobs) -> Places:
    running = np.flatnonzero(state.jobs[:-1, at.ROWS_USED] > 0)
    found: Places = {}
    for job in running:
        first, used = state.jobs[job, at.FIRST_ROW], state.jobs[job, at.ROWS_USED]
        rows = state.rows[first : first + used]
        found[str(jobs.job_id[job])] = {
            machine_name(int(row[at.MACHINE])): int(row[at.COUNT]) for row in rows
        }
    return found


class Episode:
    """Of a bundle's network, as rollouts make it."""

    def __init__(self, folder: Path, seed: int, **changes: object) -> None:
        bundle = bundles.load_bundle(folder)
        network = bundle.build()
        assert isinstance(network, DasNetwork)
        self.settings = training_settings(bundle).model_copy(update=changes)
        self.sitting = EpisodeRunner(self.settings, seed, load_workload(self.settings))
        machines = len(self.sitting.episode.cluster.rack)
        self._network, self._is_compiled = network, is_supported(network.settings, machines)
        self._weights = weights_of(network)
        self._room = workspace_for(
            network.settings, self.settings.max_queue, machines, self.settings.history
        )

    def record(self, ask: Ask) -> DasState:
        cluster, jobs, _ = self.sitting.episode
        return state_of(self.settings, cluster, jobs, self.sitting.state, self.sitting.desk, ask)

    def kind(self) -> Ask:
        """The moment that is asked for."""
        return cast("Ask", on.PHASES[int(self.sitting.desk.counts[on.MOMENT])])

    def act(self) -> None:
        if not self._is_compiled:
            seen = batch_of_one(self.sitting.view, int(self.sitting.desk.counts[on.SHOWN]))
            priority, affinity = self._network.decide(seen).actions
            self.sitting.decide(priority[0].numpy(), affinity[0].numpy())
            return
        decide(self.sitting.view, self._weights, self._room, False, np.int64(0))
        self.sitting.decide(self._room.priority, self._room.affinity)

    def skip(self, decisions: int) -> Episode:
        """The same episode so many decisions later."""
        for _ in range(decisions):
            assert self.sitting.advance_to_decision()
            self.act()
        return self

    def places(self) -> Places:
        return places_of(self.sitting.state, self.sitting.episode.jobs)

    def moments(self) -> Iterator[Seen]:
        while self.sitting.advance_to_decision():
            kind = self.kind()
            asked, before = self.record(kind), self.places()
            self.act()
            yield Seen(asked, before, self.places(), kind)

    def events(self) -> Iterator[Seen]:
        """Its moments are those between which no time passes."""
        open_event: tuple[float, DasState, Places, str] | None = None
        after: Places = {}
        while self.sitting.advance_to_decision():
            now = float(self.sitting.state.times[at.NOW])
            if open_event is not None and now != open_event[0]:
                yield Seen(open_event[1], open_event[2], after, open_event[3])
                open_event = None
            if open_event is None:
                open_event = now, self.record("event"), self.places(), self.kind()
            else:
                open_event = (*open_event[:3], f"{open_event[3]}, {self.kind()}")
            self.act()
            after = self.places()
        if open_event is not None:
            yield Seen(open_event[1], open_event[2], after, open_event[3])


def under_rule(name: str, settings: GpuSchedulingSettings, seed: int) -> Iterator[Seen]:
    """As rollout.run has it, epoch by epoch."""
    baseline, (cluster, jobs, luck) = BASELINES[name], build_episode(settings, seed)
    ordering = baseline.ordering
    state = at.new_state(settings, cluster, jobs, luck, by_user=ordering.rule == rules.DRF)
    if ordering.by_the_clock:
        state.times[at.NEXT_REPLAN] = 0.0
    by = ordering.rule, baseline.placement, no_preferences(jobs)
    while advance(state, cluster, jobs, ordering.rule) == at.DECIDE:
        if state.clock[at.QUEUED] == 0:
            continue
        now = state.times[at.NOW]
        replans = ordering.replans and now >= state.times[at.NEXT_REPLAN]
        kind: Ask = "event" if replans else "placing"
        asked = state_of(settings, cluster, jobs, state, None, kind)
        before = places_of(state, jobs)
        if replans:
            replan(state, cluster, jobs, *by)
            state.times[at.NEXT_REPLAN] = now + settings.replan_s
        else:
            run_scheduling_pass(state, cluster, jobs, *by)
        yield Seen(asked, before, places_of(state, jobs), kind)


def carried_out(before: Places, decision: DasDecision) -> Places:
    """Who runs where once the decision is carried out."""
    after = {job: where for job, where in before.items() if job not in decision.stop}
    for start in decision.start:
        assert start.job not in after
        after[start.job] = {one.machine: one.instances for one in start.placements}
    return after
