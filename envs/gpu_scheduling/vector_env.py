"""Many GPU scheduling environments stepped in one compiled call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_internal
from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import AGENTS, ORDERING, PLACEMENT, apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster
from loadmaster.envs.gpu_scheduling.decision_state import (
    DecisionState,
    advance_to_decision,
    new_decision_state,
)
from loadmaster.envs.gpu_scheduling.env import Action, GpuSchedulingEnv, ObservationDict
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult, build_episode
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.gpu_scheduling.rewards import Terms, published_terms, total_reward
from loadmaster.envs.gpu_scheduling.rollout import episode_result
from loadmaster.envs.gpu_scheduling.state import SimState, new_state
from loadmaster.envs.random import EpisodeSeeds

# Many episodes side by side in common tables, so that one compiled call can step them all.
#
# Episodes differ in their numbers of jobs, allocation rows, groups and users. The tables have room
# for the largest, and each episode works on the part of them that is its own.


SIZES = 5  # of an episode: its jobs, allocation rows, groups, shapes, users
Table = NDArray[Any]


class Fleet(NamedTuple):
    """E episodes: the tables of each record, with an axis of E in front."""

    sizes: NDArray[np.int64]  # (E, SIZES)
    states: SimState
    jobs: Jobs
    desks: DecisionState


def sizes_of(state: SimState) -> tuple[int, int, int, int, int]:
    kinds = len(state.groups), len(state.shapes), len(state.user_use)
    return len(state.key), len(state.rows), *kinds


def empty_fleet(episodes: int, state: SimState, jobs: Jobs, desk: DecisionState) -> Fleet:
    """Room for `episodes` that are no larger than this one."""

    def room(table: Table) -> Table:
        return np.zeros((episodes, *table.shape), table.dtype)

    return Fleet(
        np.zeros((episodes, SIZES), np.int64),
        SimState._make(room(table) for table in state),
        Jobs._make(room(table) for table in jobs),
        DecisionState._make(room(table) for table in desk),
    )


def put(fleet: Fleet, index: int, state: SimState, jobs: Jobs, desk: DecisionState) -> Fleet:
    """Begin an episode at `index`; the fleet that holds it, with more room if it needs that."""
    fleet.sizes[index] = sizes_of(state)
    return Fleet(
        fleet.sizes,
        SimState._make(_put(fleet.states, state, index)),
        Jobs._make(_put(fleet.jobs, jobs, index)),
        DecisionState._make(_put(fleet.desks, desk, index)),
    )


def _put(all_tables: tuple[Table, ...], tables: tuple[Table, ...], index: int) -> Iterator[Table]:
    """All tables with these in their places; longer copies of them where they had no room."""
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
def step_fleet(
    fleet: Fleet,
    cluster: Cluster,
    terms: Terms,
    deciding: NDArray[np.bool_],
    priorities: NDArray[np.float32],
    affinities: NDArray[np.float32],
    views: Observation,
    legal: NDArray[np.bool_],
    status: NDArray[np.int64],
) -> None:
    """Act where a decision was asked for; take every episode on to its next one."""
    for i in range(len(deciding)):
        state, jobs = state_of(fleet, i), jobs_of(fleet, i)
        desk, view = desk_of(fleet, i), view_of(views, i)
        legal[i] = True
        if deciding[i]:
            legal[i] = apply_action(state, cluster, jobs, desk, terms, priorities[i], affinities[i])
        status[i] = advance_to_decision(state, cluster, jobs, desk)
        observe(state, cluster, jobs, desk, view)


@njit_internal
def state_of(fleet: Fleet, i: int) -> SimState:
    """Episode i's tables, without copying."""
    jobs, rows, groups, shapes, users = fleet.sizes[i]
    s = fleet.states
    return SimState(
        s.clock[i], s.times[i], s.setup[i], s.progress[i, :jobs], s.finish_s[i, :jobs],
        s.key[i, :jobs], s.jobs[i, : jobs + 1], s.rows[i, :rows], s.row_speed[i, :rows],
        s.machines[i], s.factors[i], s.free[i], s.groups[i, :groups], s.shapes[i, :shapes],
        s.heap[i, :jobs], s.event_heap[i, :jobs], s.place[i, :jobs], s.user_use[i, :users],
        s.room[i], s.order[i, :jobs], s.order_at[i, :jobs], s.rack_fit[i], s.trace[i],
    )  # fmt: skip


@njit_internal
def jobs_of(fleet: Fleet, i: int) -> Jobs:
    count, j = fleet.sizes[i, 0], fleet.jobs
    return Jobs(
        j.arrival_s[i, :count], j.duration_s[i, :count], j.instances[i, :count], j.gpu[i, :count],
        j.cpu[i, :count], j.gpu_type[i, :count], j.comm[i, :count], j.user[i, :count],
        j.job_id[i, :count],
    )  # fmt: skip


@njit_internal
def desk_of(fleet: Fleet, i: int) -> DecisionState:
    # Its tables may be longer than the episode needs: nothing asks for their length.
    d = fleet.desks
    return DecisionState(
        d.counts[i], d.sums[i], d.shown[i], d.running[i], d.affinity[i],
        d.row_of[i], d.free[i], d.noted_s[i], d.noted_speed[i], d.noted[i], d.users[i], d.facts[i],
    )  # fmt: skip


@njit_internal
def view_of(views: Observation, i: int) -> Observation:
    return Observation(
        views.jobs[i], views.job_mask[i], views.heeded[i], views.machines[i], views.held[i],
        views.rack_held[i], views.rack[i],
        views.history_y[i], views.history_mask[i], views.history_t[i],
    )  # fmt: skip


class GpuSchedulingVectorEnv(VectorEnv[ObservationDict, Mapping[str, Action], NDArray[Any]]):
    """`num_envs` clusters side by side, each as `GpuSchedulingEnv`, whose page describes it.

    Gymnasium's vector form: one observation and one reward for both agents, which share them, and
    a mapping of agents to actions. Environment i seeded with s lives through the same episodes as
    a single one seeded with s, so equal seeds give rollouts that share their jobs. A finished
    environment starts its next episode in the step that follows; that step's action is ignored
    and its reward is 0. With `copy=False` the observations are views that the next step
    overwrites.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        "autoreset_mode": AutoresetMode.NEXT_STEP
    }

    def __init__(
        self,
        num_envs: int,
        workload_bank: Workload | None = None,
        copy: bool = True,
        **settings: Any,
    ) -> None:
        single = GpuSchedulingEnv(workload_bank, **settings)
        self.settings, self.workload = single.settings, single.workload
        self.cluster, self.scales = single.cluster, single.scales
        self.possible_agents = list(AGENTS)
        self.num_envs = num_envs
        self.single_observation_space = single.observation_space(ORDERING)
        self.single_action_space = spaces.Dict({**single.action_spaces})
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._copy = copy
        self._shapes = {
            agent: (num_envs, *space.shape) for agent, space in single.action_spaces.items()
        }
        self._terms = published_terms(self.settings, self.cluster)
        blank = blank_observation(self.settings.max_queue, self.cluster, self.settings.history)
        self._views = Observation._make(np.stack([table] * num_envs) for table in blank)
        self._fleet = empty_fleet(num_envs, *self._begin(0))
        self._status = np.full(num_envs, at.DONE, np.int64)
        self._legal = np.ones(num_envs, np.bool_)
        self._rewarded = np.zeros(num_envs)
        self._seeds = EpisodeSeeds(num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start an episode in every environment; an integer seed counts upwards over them."""
        for i, own in enumerate(self._seeds.begin(seed)):
            self._start(i, own)
        nothing = {agent: np.zeros(shape, np.float32) for agent, shape in self._shapes.items()}
        self._run(nothing, np.zeros(self.num_envs, np.bool_))
        return self._observation(), {"seed": self._seeds.now.copy(), **self._told()}

    def step(
        self, actions: Mapping[str, Action]
    ) -> tuple[
        ObservationDict, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        drawn = {agent: self._read(actions, agent) for agent in AGENTS}
        deciding = self._status == at.DECIDE
        for i in np.flatnonzero(~deciding):
            self._start(int(i), None)
        self._run(drawn, deciding)
        total = total_reward(self.settings, self.scales, self._fleet.desks.sums)
        # What passes before an episode's first decision joins that decision's reward.
        rewards = np.where(deciding, total - self._rewarded, 0.0)
        self._rewarded = np.where(deciding, total, 0.0)
        over = self._status == at.DONE
        info = {"legal": self._legal.copy(), **self._told()}
        return self._observation(), rewards, over, np.zeros_like(over), info

    def result(self, index: int) -> EpisodeResult:
        """The outcome of environment `index` as it stands."""
        jobs = int(self._fleet.sizes[index, 0])
        state = SimState._make(table[index] for table in self._fleet.states)
        state = state._replace(progress=state.progress[:jobs])
        drawn = Jobs._make(table[index, :jobs].copy() for table in self._fleet.jobs)
        return episode_result(
            state, self.cluster, drawn, "environment", int(self._seeds.now[index])
        )

    def _start(self, index: int, seed: int | None) -> None:
        seed = self._seeds.next(index, seed)
        self._rewarded[index] = 0
        self._fleet = put(self._fleet, index, *self._begin(seed))
        for name, table in self._views._asdict().items():
            if name != "rack":
                table[index] = 0

    def _begin(self, seed: int) -> tuple[SimState, Jobs, DecisionState]:
        episode = build_episode(self.settings, seed, self.workload)
        state = new_state(self.settings, *episode)
        return state, episode.jobs, new_decision_state(self.settings, *episode[:2])

    def _run(self, drawn: Mapping[str, Action], deciding: NDArray[np.bool_]) -> None:
        step_fleet(
            self._fleet, self.cluster, self._terms, deciding, drawn[ORDERING],
            drawn[PLACEMENT], self._views, self._legal, self._status,
        )  # fmt: skip

    def _read(self, actions: Mapping[str, Action], agent: str) -> Action:
        if agent not in actions:
            raise InputError(f"no actions of agent {agent!r}; expected some of each of {AGENTS}")
        drawn = np.ascontiguousarray(actions[agent], np.float32)
        shape = self._shapes[agent]
        if drawn.shape != shape:
            raise InputError(f"actions of {agent!r} have shape {drawn.shape}; expected {shape}")
        return drawn

    def _told(self) -> dict[str, Any]:
        states = self._fleet.states
        hidden = np.maximum(states.clock[:, at.QUEUED] - self.settings.max_queue, 0)
        return {"time_s": states.times[:, at.NOW].copy(), "hidden": hidden}

    def _observation(self) -> ObservationDict:
        fields = self._views._asdict()
        return {name: table.copy() if self._copy else table for name, table in fields.items()}
