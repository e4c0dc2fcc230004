"""Vector environment: many GPU scheduling episodes stepped in one compiled call.

The tables of all episodes are batched. Episodes differ in their numbers of jobs, allocation rows
and users; the batched tables are as large as the largest, and each episode uses a slice.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.gpu_scheduling.actions import (
    AGENTS,
    ORDERING,
    PLACEMENT,
    apply_action,
    check_action,
)
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import (
    DecisionState,
    advance_to_decision,
    new_decision_state,
)
from loadmaster.envs.gpu_scheduling.env import Action, GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, build_episode, episode_result
from loadmaster.envs.gpu_scheduling.episode_runner import set_guide
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.gpu_scheduling.rewards import Terms, published_terms, total_reward
from loadmaster.envs.gpu_scheduling.state import DONE, NOW, QUEUED, SimState, new_state
from loadmaster.envs.vector_env import EpisodeVectorEnv, Mask, StepResult

SIZES = 3  # of an episode: jobs, allocation rows, users
Table = NDArray[Any]


class BatchedState(NamedTuple):
    """Tables of E episodes, with a leading axis of length E."""

    sizes: NDArray[np.int64]  # (E, SIZES)
    states: SimState
    jobs: Jobs
    decisions: DecisionState


def _stacked(tables: tuple[Table, ...], times: int) -> Iterator[Table]:
    return (np.stack([table] * times) for table in tables)


def _put_episode(
    batch: BatchedState, index: int, state: SimState, jobs: Jobs, decision: DecisionState
) -> BatchedState:
    """Write an episode at `index`; return the batch, with larger tables if necessary."""
    batch.sizes[index] = len(state.key), len(state.rows), len(state.user_use)
    return BatchedState(
        batch.sizes,
        SimState._make(_put_tables(batch.states, state, index)),
        Jobs._make(_put_tables(batch.jobs, jobs, index)),
        DecisionState._make(_put_tables(batch.decisions, decision, index)),
    )


def _put_tables(
    all_tables: tuple[Table, ...], tables: tuple[Table, ...], index: int
) -> Iterator[Table]:
    """Write `tables` at `index` of `all_tables`; tables that are too short are replaced."""
    for held, table in zip(all_tables, tables, strict=True):
        rows = len(table)
        if rows > held.shape[1]:
            longer = np.zeros((len(held), *table.shape), table.dtype)
            longer[:, : held.shape[1]] = held
            longer[index] = table
            yield longer
        else:
            held[index, :rows] = table
            yield held


@compiled
def _step_batch(
    batch: BatchedState,
    cluster: Cluster,
    terms: Terms,
    deciding: NDArray[np.bool_],
    priorities: NDArray[np.float32],
    affinities: NDArray[np.float32],
    views: Observation,
    legal: NDArray[np.bool_],
    status: NDArray[np.int64],
) -> None:
    """Apply actions where `deciding`, and advance every episode to its next decision."""
    for i in range(len(deciding)):
        state, jobs = _state_of(batch, i), _jobs_of(batch, i)
        decision, view = _decision_of(batch, i), _view_of(views, i)
        legal[i] = True
        if deciding[i]:
            legal[i] = apply_action(
                state, cluster, jobs, decision, terms, priorities[i], affinities[i]
            )
        status[i] = advance_to_decision(state, cluster, jobs, decision)
        observe(state, cluster, jobs, decision, view)


@njit_internal
def _state_of(batch: BatchedState, i: int) -> SimState:
    """Views of episode i's tables."""
    jobs, rows, users = batch.sizes[i]
    s = batch.states
    return SimState(
        s.clock[i], s.times[i], s.setup[i], s.progress[i, :jobs], s.finish_s[i, :jobs],
        s.key[i, :jobs], s.jobs[i, : jobs + 1], s.rows[i, :rows], s.row_speed[i, :rows],
        s.machines[i], s.factors[i], s.free[i], s.groups[i, :jobs], s.shapes[i, :jobs],
        s.heap[i, :jobs], s.event_heap[i, :jobs], s.place[i, :jobs], s.user_use[i, :users],
        s.room[i], s.order[i, :jobs], s.order_at[i, :jobs], s.rack_fit[i], s.rule[i],
        s.user_history[i, : users + 1], s.components[i, :users], s.process[i], s.trace[i],
    )  # fmt: skip


@njit_internal
def _jobs_of(batch: BatchedState, i: int) -> Jobs:
    count, j = batch.sizes[i, 0], batch.jobs
    return Jobs(
        j.arrival_s[i, :count], j.duration_s[i, :count], j.instances[i, :count], j.gpu[i, :count],
        j.cpu[i, :count], j.gpu_type[i, :count], j.comm[i, :count], j.user[i, :count],
        j.job_id[i, :count],
    )  # fmt: skip


@njit_internal
def _decision_of(batch: BatchedState, i: int) -> DecisionState:
    # Unsliced: their length is not used.
    d = batch.decisions
    return DecisionState(
        d.counts[i], d.sums[i], d.shown[i], d.running[i], d.affinity[i],
        d.row_of[i], d.priority[i], d.start_priority[i], d.rule_priority[i], d.replan_s[i],
        d.free[i], d.history_s[i], d.history_speed[i], d.noted[i], d.users[i], d.static_features[i],
    )  # fmt: skip


@njit_internal
def _view_of(views: Observation, i: int) -> Observation:
    return Observation(
        views.jobs[i], views.job_mask[i], views.heeded[i], views.machines[i], views.held[i],
        views.rack_held[i], views.rack[i],
        views.history_y[i], views.history_mask[i], views.history_t[i],
    )  # fmt: skip


class GpuSchedulingVectorEnv(EpisodeVectorEnv[Mapping[str, Action]]):
    """`num_envs` environments as described at `GpuSchedulingEnv`.

    It has Gymnasium's vector API: observations and rewards, which the agents share, are given once,
    and actions are a mapping by agent.
    """

    def __init__(
        self,
        num_envs: int,
        workload_bank: Workload | None = None,
        copy: bool = True,
        **settings: Any,
    ) -> None:
        single = GpuSchedulingEnv(workload_bank, **settings)
        action_space = spaces.Dict({**single.action_spaces})
        limits = single.settings
        blank = blank_observation(limits.max_queue, single.cluster, limits.history)
        super().__init__(num_envs, single.observation_space(ORDERING), action_space, blank, copy)
        self.settings, self.workload = single.settings, single.workload
        self.cluster, self.scales = single.cluster, single.scales
        self.possible_agents = list(AGENTS)
        self._shapes = {
            agent: (num_envs, *space.shape) for agent, space in single.action_spaces.items()
        }
        self._terms = published_terms(self.settings, self.cluster)
        state, jobs, decision = self._new_episode(0)
        self._batch = BatchedState(
            np.zeros((num_envs, SIZES), np.int64),
            SimState._make(_stacked(state, num_envs)),
            Jobs._make(_stacked(jobs, num_envs)),
            DecisionState._make(_stacked(decision, num_envs)),
        )
        self._status = np.full(num_envs, DONE, np.int64)

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        return super().step({a: check_action(actions, a, self._shapes[a]) for a in AGENTS})

    def result(self, index: int) -> EpisodeResult:
        """The outcome of environment `index` so far."""
        jobs = int(self._batch.sizes[index, 0])
        state = SimState._make(table[index] for table in self._batch.states)
        state = state._replace(progress=state.progress[:jobs])
        jobs_table = Jobs._make(table[index, :jobs].copy() for table in self._batch.jobs)
        return episode_result(
            state, self.cluster, jobs_table, "environment", int(self._seeds[index])
        )

    def _start(self, index: int, seed: int) -> None:
        self._batch = _put_episode(self._batch, index, *self._new_episode(seed))
        for name, table in self._views._asdict().items():
            if name != "rack":
                table[index] = 0

    def _new_episode(self, seed: int) -> tuple[SimState, Jobs, DecisionState]:
        episode = build_episode(self.settings, seed, self.workload)
        state = new_state(self.settings, *episode)
        decision = new_decision_state(self.settings, *episode[:2])
        set_guide(self.settings, self.workload, episode, state, decision)
        return state, episode.jobs, decision

    def _run(self, actions: Mapping[str, Action], deciding: Mask) -> tuple[Mask, Mask]:
        _step_batch(
            self._batch, self.cluster, self._terms, deciding, actions[ORDERING],
            actions[PLACEMENT], self._views, self._legal, self._status,
        )  # fmt: skip
        self._over = self._status == DONE
        return self._over, np.zeros_like(self._over)

    def _reward_so_far(self) -> NDArray[np.float64]:
        return total_reward(self.settings, self.scales, self._batch.decisions.sums)

    def _info(self) -> dict[str, Any]:
        states = self._batch.states
        hidden = np.maximum(states.clock[:, QUEUED] - self.settings.max_queue, 0)
        return {"time_s": states.times[:, NOW].copy(), "hidden": hidden}
