"""The PettingZoo face of the GPU scheduling simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT, apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import (
    DecisionState,
    advance_to_decision,
    new_decision_state,
)
from loadmaster.envs.gpu_scheduling.episode import Episode, EpisodeResult, build_episode
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.observation import (
    Observation,
    blank_observation,
    observation_space,
    observe,
)
from loadmaster.envs.gpu_scheduling.rewards import (
    Scales,
    published_terms,
    reference_scales,
    total_reward,
)
from loadmaster.envs.gpu_scheduling.rollout import episode_result
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState, new_state, with_more_trace
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.settings import build_settings

ObservationDict = dict[str, NDArray[Any]]
Action = NDArray[np.float32]


def action_spaces(settings: GpuSchedulingSettings, cluster: Cluster) -> dict[str, spaces.Box]:
    """Real numbers: a priority for each row of the queue, an affinity of each to each machine."""
    rows, machines = settings.max_queue, len(cluster.rack)
    return {
        ORDERING: spaces.Box(-np.inf, np.inf, (rows,), np.float32),
        PLACEMENT: spaces.Box(-np.inf, np.inf, (rows, machines), np.float32),
    }


class GpuSchedulingEnv(ParallelEnv[str, ObservationDict, Action]):
    """Order and place distributed training jobs on machines with GPUs.

    ## Description
    Jobs arrive over time. A job is a gang of equal instances, each asking for GPUs, or a share of
    one, and cores; all of them run, or none. How fast it runs depends on the GPUs it got, on its
    neighbours on them, on how far the gang is spread, and on luck; the fee is the price of its
    GPUs times its time on them. Two agents decide together: "ordering" who goes first, and
    "placement" where. They are asked at an event (an arrival, a completion) if one of the jobs
    shown could start now. With `preempt=True` they are also asked to reconsider if jobs are left
    waiting.

    ## Action
    "ordering": a priority for each row of the queue. "placement": an affinity of each row to each
    machine. Jobs are offered to the cluster by descending priority (of equal ones, the lowest id
    first), and a gang fills machines with room by descending affinity (the first of equal ones),
    each with as many instances as fit. A job that does not fit is skipped, or with
    `backfill=False` ends the epoch. Numbers for rows without a job and machines without room mean
    nothing. When they reconsider, running jobs are shown as well, and only priorities count: all
    jobs are walked by descending priority, each takes its place as if those behind it were not
    there, and a running job whose place is taken so is stopped; then, at the same moment, the
    agents place what could start. A priority that is not finite comes last and an affinity that is
    not a number counts as minus infinity; `info["legal"]` is then False.

    ## Observation
    Padded tables, the same for both agents: `jobs`, `job_mask`, `heeded`, `machines`, `held`,
    `rack_held`, `rack`, `history_y`, `history_mask`, `history_t` (see `observation.py`, and
    `features.py` for their columns). If more than `max_queue` jobs wait, those that came first are
    shown, and `info["hidden"]` tells how many are not. How long a job will run is shown with
    `durations="known"` only.

    ## Reward
    Shared by both agents. reward "cost": minus what accrued since the last decision, `jct_weight`
    x (jobs in the system x seconds) / `scales.jct_s` + `fee_weight` x dollars / `scales.fee`. The
    scales are the mean completion time and fee of a job under "fifo-first-fit", so the return of
    N jobs is -N x (jct_weight x their mean completion time + fee_weight x their mean fee) in these
    units, and a decision costs about one. What passes before the first decision joins the first
    reward. Reward "published": (1/N') times the sum over the N' jobs shown of 1 / (fee^fee_weight
    x jct^jct_weight) for a job just placed, both relative to the best that the cluster could do
    for it and at the speed with which it sets out, and of -waiting_penalty x GPUs for a job left
    waiting.

    ## Episode end
    Terminated for both when all jobs are done, or when nothing but jobs that never fit is left.

    ## Arguments
    Those of `GpuSchedulingSettings`, e.g. `GpuSchedulingEnv(cluster="medium", load=0.8)`; or
    `workload_bank=` with a `Workload` of your own. With `record=True`, `result()` has the trace.

    ## Version history
    v0: first release.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (PettingZoo declares it so)
        "name": "loadmaster/GpuScheduling-v0",
        "render_modes": [],
        "is_parallelizable": True,
    }
    render_mode = None

    def __init__(
        self, workload_bank: Workload | None = None, record: bool = False, **settings: Any
    ) -> None:
        self.settings = build_settings(GpuSchedulingSettings, settings)
        self.workload = workload_bank or load_workload(self.settings)
        self.cluster = build_cluster(self.settings)
        self.scales = (
            reference_scales(self.settings, self.workload)
            if self.settings.reward == "cost"
            else Scales(1.0, 1.0)  # nobody asks
        )
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        seen = observation_space(self.settings.max_queue, self.cluster, self.settings.history)
        self.observation_spaces = dict.fromkeys(AGENTS, seen)
        self.action_spaces = action_spaces(self.settings, self.cluster)
        self._terms = published_terms(self.settings, self.cluster)
        self._record = record
        self._seed = 0
        self._generator = np_random(None)[0]
        self._episode: Episode | None = None
        self._state: SimState
        self._desk: DecisionState
        self._view: Observation
        self._rewarded = 0.0  # what the rewards so far have accounted for

    def observation_space(self, agent: str) -> spaces.Dict:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Box:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, ObservationDict], dict[str, dict[str, Any]]]:
        """Start the episode of `seed`; without one, the next of the environment's own stream."""
        if seed is not None:
            self._generator = np_random(seed)[0]
        self._seed = seed if seed is not None else int(self._generator.integers(1 << 31))
        self._episode = episode = build_episode(self.settings, self._seed, self.workload)
        self._state = new_state(self.settings, *episode, record=self._record)
        self._desk = new_decision_state(self.settings, *episode[:2])
        self._view = blank_observation(self.settings.max_queue, self.cluster, self.settings.history)
        self._rewarded = 0.0
        self.agents = list(AGENTS)
        self._run()
        return self._for_each_agent(self._observation), self._for_each_agent(self._started)

    def step(
        self, actions: Mapping[str, Action]
    ) -> tuple[
        dict[str, ObservationDict],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        if self._episode is None or not self.agents:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset() before step()")
        drawn = [self._read(actions, agent) for agent in AGENTS]
        legal = apply_action(
            self._state, self.cluster, self._episode.jobs, self._desk, self._terms, *drawn
        )
        over = self._run() == at.DONE
        total = float(total_reward(self.settings, self.scales, self._desk.sums))
        reward, self._rewarded = total - self._rewarded, total
        told = (
            self._for_each_agent(self._observation),
            self._for_each_agent(lambda: reward),
            self._for_each_agent(lambda: over),
            self._for_each_agent(lambda: False),
            self._for_each_agent(lambda: {"legal": legal, **self._told()}),
        )
        if over:
            self.agents = []
        return told

    def result(self) -> EpisodeResult:
        """The outcome as it stands."""
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("call reset() before result()")
        return episode_result(
            self._state, self.cluster, self._episode.jobs, "environment", self._seed
        )

    def render(self) -> None:
        """There is nothing to see."""

    def close(self) -> None:
        """There is nothing to close."""

    def _run(self) -> int:
        """On to the next decision or the end, and look; the status."""
        assert self._episode is not None
        jobs = self._episode.jobs
        while True:
            status = advance_to_decision(self._state, self.cluster, jobs, self._desk)
            if status != at.GROW_TRACE:
                break
            self._state = with_more_trace(self._state)
        observe(self._state, self.cluster, jobs, self._desk, self._view)
        return status

    def _read(self, actions: Mapping[str, Action], agent: str) -> Action:
        if agent not in actions:
            raise InputError(f"no action of agent {agent!r}; expected one of each of {AGENTS}")
        action = np.ascontiguousarray(actions[agent], np.float32)
        shape = self.action_spaces[agent].shape
        if action.shape != shape:
            raise InputError(f"action of {agent!r} has shape {action.shape}; expected {shape}")
        return action

    def _for_each_agent(self, tell: Any) -> dict[str, Any]:
        """Each its own copy."""
        return {agent: tell() for agent in AGENTS}

    def _observation(self) -> ObservationDict:
        """Copies: the tables themselves are written anew at every step."""
        return {name: table.copy() for name, table in self._view._asdict().items()}

    def _started(self) -> dict[str, Any]:
        return {"seed": self._seed, **self._told()}

    def _told(self) -> dict[str, Any]:
        hidden = max(0, self._state.clock[at.QUEUED] - self.settings.max_queue)
        return {"time_s": float(self._state.times[at.NOW]), "hidden": int(hidden)}
