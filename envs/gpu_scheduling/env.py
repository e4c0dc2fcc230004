"""PettingZoo environment of GPU scheduling."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT, check_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Workload
from loadmaster.envs.gpu_scheduling.observation import observation_space
from loadmaster.envs.gpu_scheduling.rewards import Scales, reference_scales, total_reward
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import NOW, QUEUED
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.settings import build_settings

ObservationDict = dict[str, NDArray[Any]]
Action = NDArray[np.float32]


def action_spaces(settings: GpuSchedulingSettings, cluster: Cluster) -> dict[str, spaces.Box]:
    """Spaces of the actions: a priority per row, and an affinity per row and machine."""
    rows, machines = settings.max_queue, len(cluster.rack)
    return {
        ORDERING: spaces.Box(-np.inf, np.inf, (rows,), np.float32),
        PLACEMENT: spaces.Box(-np.inf, np.inf, (rows, machines), np.float32),
    }


class GpuSchedulingEnv(ParallelEnv[str, ObservationDict, Action]):
    """Order and place distributed training jobs on machines with GPUs.

    ## Description
    Jobs arrive over time. A job is a gang of equal instances, each with a demand of GPUs, or a
    fraction of one, and cores; all of them run, or none. The speed of a job depends on its GPUs, on
    other jobs that share them, on how far the gang is spread, and on noise. Its fee is the price of
    its GPUs times its time on them. Two agents decide together: "ordering" ranks the jobs,
    "placement" ranks the machines. They decide at an event (an arrival or a completion) if a job
    shown could start. With `preempt=True` they also reconsider running jobs if jobs still wait.

    ## Action
    "ordering": a priority per row of the queue. "placement": an affinity per row and machine. Jobs
    start by descending priority (of equal ones, the lowest id first), and a gang fills machines by
    descending affinity (of equal ones, the first), each with as many instances as fit. A job that
    does not fit is skipped, or with `backfill=False` ends the scheduling pass. Values of unused
    rows and of machines without room have no effect. When the agents reconsider, running jobs are
    shown as well, and only priorities count: each job by descending priority reserves resources as
    if those behind it did not exist, and a running job whose resources are reserved is stopped.
    Then, at the same time, the agents place the jobs that fit. A priority that is not finite ranks
    last and an affinity that is NaN counts as minus infinity; `info["legal"]` is then False. With
    `guide` the actions correct a rule: its keys are divided by exp(priority), affinities are added
    to its values of machines, and it starts, stops and moves jobs at its own times.

    ## Observation
    Padded tables, the same for both agents: `jobs`, `job_mask`, `heeded`, `machines`, `held`,
    `rack_held`, `rack`, `history_y`, `history_mask`, `history_t` (see `observation.py`, and
    `features.py` for their columns). If more than `max_queue` jobs wait, the earliest are shown, or
    with `guide` the first by its keys; `info["hidden"]` counts the others. Durations of
    jobs are shown with `durations="known"` only.

    ## Reward
    Shared by both agents. reward "cost": minus the cost since the last decision, `jct_weight`
    x (jobs in the system x seconds) / `scales.jct_s` + `fee_weight` x dollars / `scales.fee`. The
    scales are the mean completion time and fee of a job under "fifo-first-fit", so the return of
    N jobs is -N x (jct_weight x their mean completion time + fee_weight x their mean fee) in these
    units, and a decision costs about one. The cost before the first decision is part of the first
    reward. Reward "published": (1/N') times the sum over the N' jobs shown of 1 / (fee^fee_weight
    x jct^jct_weight) for a job just placed, both relative to the best possible on the cluster and
    at the job's initial speed, and of -waiting_penalty x GPUs for a job left waiting.

    ## Episode end
    Terminated for both when all jobs are done, or when only jobs that never fit are left.

    ## Arguments
    Those of `GpuSchedulingSettings`, e.g. `GpuSchedulingEnv(cluster="medium", load=0.8)`, or
    `workload_bank=` with a custom `Workload`. With `record=True`, `result()` has the trace.

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
            else Scales(1.0, 1.0)  # unused
        )
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        space = observation_space(self.settings.max_queue, self.cluster, self.settings.history)
        self.observation_spaces = dict.fromkeys(AGENTS, space)
        self.action_spaces = action_spaces(self.settings, self.cluster)
        self._record = record
        self._generator = np_random(None)[0]
        self._runner: EpisodeRunner | None = None
        self._rewarded = 0.0  # sum of the rewards so far

    @property
    def runner(self) -> EpisodeRunner:
        """The current episode."""
        if self._runner is None:
            raise gymnasium.error.ResetNeeded("no episode was started: call reset() first")
        return self._runner

    def observation_space(self, agent: str) -> spaces.Dict:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Box:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, ObservationDict], dict[str, dict[str, Any]]]:
        """Start the episode of `seed`; without one, of the next number of the generator."""
        if seed is not None:
            self._generator = np_random(seed)[0]
        else:
            seed = int(self._generator.integers(1 << 31))
        self._runner = EpisodeRunner(self.settings, seed, self.workload, self._record)
        self._rewarded = 0.0
        self.agents = list(AGENTS)
        self._runner.advance_to_decision()
        return _per_agent(self._observation), _per_agent(lambda: {"seed": seed, **self._info()})

    def step(
        self, actions: Mapping[str, Action]
    ) -> tuple[
        dict[str, ObservationDict],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        if not self.agents:
            raise gymnasium.error.ResetNeeded("no episode is in progress: call reset() first")
        spaces_of = self.action_spaces
        checked = (check_action(actions, agent, spaces_of[agent].shape) for agent in AGENTS)
        legal = self.runner.decide(*checked)
        over = not self.runner.advance_to_decision()
        total = float(total_reward(self.settings, self.scales, self.runner.decision_state.sums))
        reward, self._rewarded = total - self._rewarded, total
        if over:
            self.agents = []
        return (
            _per_agent(self._observation),
            _per_agent(lambda: reward),
            _per_agent(lambda: over),
            _per_agent(lambda: False),
            _per_agent(lambda: {"legal": legal, **self._info()}),
        )

    def result(self) -> EpisodeResult:
        """The outcome so far."""
        return self.runner.result("environment")

    def render(self) -> None:
        """Required by PettingZoo; there are no render modes."""

    def _observation(self) -> ObservationDict:
        """Copy the tables, which every step overwrites."""
        return {name: table.copy() for name, table in self.runner.view._asdict().items()}

    def _info(self) -> dict[str, Any]:
        state = self.runner.state
        hidden = max(0, state.clock[QUEUED] - self.settings.max_queue)
        return {"time_s": float(state.times[NOW]), "hidden": int(hidden)}


def _per_agent(make: Callable[[], Any]) -> dict[str, Any]:
    """Call `make` once per agent: agents do not share mutable objects."""
    return {agent: make() for agent in AGENTS}
