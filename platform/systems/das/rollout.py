"""DAS's rollouts: whole episodes in a compiled loop, or many clusters stepped together.

The loop is several times as fast. Where it does not serve (models/das/compiled.py), one forward
pass in torch decides for both agents of all clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline
from loadmaster.envs.gpu_scheduling import decision_state as on
from loadmaster.envs.gpu_scheduling import features as told
from loadmaster.envs.gpu_scheduling import state as at
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT, apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import DecisionState, advance_to_decision
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Jobs, Workload
from loadmaster.envs.gpu_scheduling.observation import Observation, observe
from loadmaster.envs.gpu_scheduling.rewards import Scales, Terms, reference_scales, total_reward
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import SimState
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.random import splitmix64
from loadmaster.models.das.compiled import (
    ORDER,
    PLACE,
    Weights,
    Workspace,
    decide,
    is_supported,
    weights_of,
    workspace_for,
)
from loadmaster.models.das.network import DasNetwork
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.compiled_buffer import FULL, CompiledBuffer, copy_rows
from loadmaster.platform.rl.rollout import (
    EpisodeScore,
    Ragged,
    Recording,
    RolloutEngine,
    RolloutSpec,
)
from loadmaster.platform.rl.rollout_buffer import Rows
from loadmaster.platform.rl.vector_rollout import VectorEngine

# Episodes under DAS's network, simulator and policy in one compiled loop that leaves a tape.


# Columns of `Tape.facts`; the desk's sums follow.
TIME_S, ORDER_LOG, PLACE_LOG, FIRST_SUM = 0, 1, 2, 3
# Places in `Tape.used`.
STEPS, KEPT, ROWS = range(3)


class Tape(NamedTuple):
    """What an episode leaves: a row for every decision, and the tables of those kept, end to end.

    M machines, R racks, T past decisions.
    """

    used: NDArray[np.int64]  # (3,) rows in use: decisions, kept ones, their jobs
    facts: NDArray[np.float64]  # (steps, FIRST_SUM + SUMS)
    kept: NDArray[np.int64]  # (steps,) which decision it was
    counts: NDArray[np.int64]  # (steps,) its jobs
    machines: NDArray[np.float32]  # (steps, M, MACHINE_FEATURES)
    history_y: NDArray[np.float32]  # (steps, T, M)
    history_mask: NDArray[np.bool_]  # (steps, T, M)
    history_t: NDArray[np.float32]  # (steps, T)
    jobs: NDArray[np.float32]  # (rows, JOB_FEATURES)
    heeded: NDArray[np.bool_]  # (rows,)
    held: NDArray[np.float32]  # (rows, M)
    rack_held: NDArray[np.float32]  # (rows, R)
    priority: NDArray[np.float32]  # (rows,)
    affinity: NDArray[np.float32]  # (rows, M)


def reel_for(settings: GpuSchedulingSettings, cluster: Cluster) -> CompiledBuffer[Tape]:
    racks = int(cluster.rack.max()) + 1
    return CompiledBuffer(
        partial(blank_tape, len(cluster.rack), racks, settings.history, settings.max_queue)
    )


def blank_tape(machines: int, racks: int, past: int, queue: int, decisions: int) -> Tape:
    rows = 8 * decisions + queue  # one observation at least; usual rollouts double it

    def of_decision(*shape: int) -> NDArray[np.float32]:
        return np.zeros((decisions, *shape), np.float32)

    def of_job(*shape: int) -> NDArray[np.float32]:
        return np.zeros((rows, *shape), np.float32)

    return Tape(
        used=np.zeros(3, np.int64),
        facts=np.zeros((decisions, FIRST_SUM + on.SUMS)),
        kept=np.zeros(decisions, np.int64),
        counts=np.zeros(decisions, np.int64),
        machines=of_decision(machines, told.MACHINE_FEATURES),
        history_y=of_decision(past, machines),
        history_mask=np.zeros((decisions, past, machines), np.bool_),
        history_t=of_decision(past),
        jobs=of_job(told.JOB_FEATURES),
        heeded=np.zeros(rows, np.bool_),
        held=of_job(machines),
        rack_held=of_job(racks),
        priority=of_job(),
        affinity=of_job(machines),
    )


@compiled
def run_network(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    desk: DecisionState,
    terms: Terms,
    view: Observation,
    weights: Weights,
    room: Workspace,
    draws: bool,
    luck: int,
    keep: float,
    chance: NDArray[np.float64],
    tape: Tape,
) -> int:
    """Let the network decide until the episode ends, or the trace or the tape does; the status.

    With `draws` it samples by `luck`, without it takes the means. Decision i is kept if `chance`
    (steps,) has a number below `keep` for it.
    """
    used = tape.used
    while True:
        # Before the simulator moves, so that a longer tape goes on where this one ended.
        if used[STEPS] == len(tape.facts) or used[ROWS] + len(view.jobs) > len(tape.jobs):
            return FULL
        status = advance_to_decision(state, cluster, jobs, desk)
        if status != at.DECIDE:
            return status
        observe(state, cluster, jobs, desk, view)
        step = used[STEPS]
        decide(view, weights, room, draws, np.int64(splitmix64(luck, step)))
        facts = tape.facts[step]
        facts[TIME_S] = state.times[at.NOW]
        facts[ORDER_LOG], facts[PLACE_LOG] = room.logs[ORDER], room.logs[PLACE]
        for place in range(on.SUMS):
            facts[FIRST_SUM + place] = desk.sums[place]
        if chance[step] < keep:
            keep_view(view, room, tape, step, desk.counts[on.SHOWN])
        apply_action(state, cluster, jobs, desk, terms, room.priority, room.affinity)
        used[STEPS] = step + 1


@njit_inline
def keep_view(view: Observation, room: Workspace, tape: Tape, step: int, count: int) -> None:
    """Copy the rows in use to the tape's end, and what was done about them."""
    place, start = tape.used[KEPT], tape.used[ROWS]
    tape.kept[place], tape.counts[place] = step, count
    copy_rows(view.machines, tape.machines[place], 0, len(view.machines))
    copy_rows(view.history_y, tape.history_y[place], 0, len(view.history_y))
    copy_rows(view.history_mask, tape.history_mask[place], 0, len(view.history_y))
    for past in range(len(view.history_t)):
        tape.history_t[place, past] = view.history_t[past]
    copy_rows(view.jobs, tape.jobs, start, count)
    copy_rows(view.held, tape.held, start, count)
    copy_rows(view.rack_held, tape.rack_held, start, count)
    copy_rows(room.affinity, tape.affinity, start, count)
    for row in range(count):
        tape.heeded[start + row] = view.heeded[row]
        tape.priority[start + row] = room.priority[row]
    tape.used[KEPT] = place + 1
    tape.used[ROWS] = start + count


# Whole episodes of DAS in the compiled loop: recorded for learning, or just lived through.


COST = "jct_s"


def figures_of(result: EpisodeResult) -> Mapping[str, float]:
    """What a learner is told of an episode that is over."""
    return {COST: result.mean_jct_s, "fee": float(result.fee.mean())}


class Player:
    """A network in one kind of episode: weights, scratch tables, and a tape to play on."""

    def __init__(
        self,
        network: DasNetwork,
        settings: GpuSchedulingSettings,
        cluster: Cluster,
        reel: CompiledBuffer[Tape] | None = None,
    ) -> None:
        self.settings = settings
        tables = settings.max_queue, len(cluster.rack), settings.history
        self._weights, self._room = weights_of(network), workspace_for(network.settings, *tables)
        self._reel = reel or reel_for(settings, cluster)

    def play(self, sitting: EpisodeRunner) -> int:
        """Take the means until the episode is over; how many decisions that were."""
        self._run(sitting, RolloutSpec(sitting.seed, luck=0, keep=0.0), draws=False)
        return int(self._reel.tape.used[STEPS])

    def record(self, sitting: EpisodeRunner, assignment: RolloutSpec, scales: Scales) -> Recording:
        """Sample one rollout and keep a share of it, the same as VectorEngine would."""
        self._run(sitting, assignment, draws=True)
        tape, sums = self._reel.tape, sitting.desk.sums
        facts = tape.facts[: tape.used[STEPS]]
        total = total_reward(
            self.settings, scales, np.concatenate([facts[:, FIRST_SUM:], sums[None]])
        )
        total[0] = 0  # what passed before the first decision joins its reward
        reward = np.diff(total)
        kept = tape.kept[: tape.used[KEPT]].copy()
        return Recording(
            observations=_observations(tape, sitting.view.rack),
            actions={
                ORDERING: _of_jobs(tape, tape.priority),
                PLACEMENT: _of_jobs(tape, tape.affinity),
            },
            log_probability=facts[kept][:, [ORDER_LOG, PLACE_LOG]],
            kept=kept,
            rollout=Rollout(facts[:, TIME_S].copy(), reward, float(sitting.state.times[at.NOW])),
            figures={"return": float(reward.sum()), **figures_of(sitting.result())},
        )

    def _run(self, sitting: EpisodeRunner, assignment: RolloutSpec, draws: bool) -> None:
        """To the end, with as much tape and trace as it takes."""
        reel, (cluster, jobs, _) = self._reel, sitting.episode
        reel.rewind()
        rng, chance = np.random.default_rng(assignment.luck), np.zeros(0)
        while True:
            chance = np.append(chance, rng.random(len(reel.tape.facts) - len(chance)))
            status = run_network(
                sitting.state, cluster, jobs, sitting.desk, sitting.terms, sitting.view,
                self._weights, self._room, draws, assignment.luck, assignment.keep, chance,
                reel.tape,
            )  # fmt: skip
            if status == FULL:
                reel.lengthen()
            elif status == at.GROW_TRACE:
                sitting.lengthen_trace()
            else:
                return


def _observations(tape: Tape, rack: NDArray[np.int64]) -> dict[str, Any]:
    """The kept ones, in the words of envs/gpu_scheduling/observation.py."""
    kept, rows = int(tape.used[KEPT]), int(tape.used[ROWS])
    return {
        "jobs": _of_jobs(tape, tape.jobs),
        "job_mask": Ragged(np.ones(rows, np.bool_), tape.counts[:kept].copy()),
        "heeded": _of_jobs(tape, tape.heeded),
        "machines": tape.machines[:kept].copy(),
        "held": _of_jobs(tape, tape.held),
        "rack_held": _of_jobs(tape, tape.rack_held),
        "rack": np.tile(rack, (kept, 1)),
        "history_y": tape.history_y[:kept].copy(),
        "history_mask": tape.history_mask[:kept].copy(),
        "history_t": tape.history_t[:kept].copy(),
    }


def _of_jobs(tape: Tape, table: NDArray[Any]) -> Ragged:
    return Ragged(table[: tape.used[ROWS]].copy(), tape.counts[: tape.used[KEPT]].copy())


QUEUE = Rows(
    mask="job_mask",
    tables=frozenset({"jobs", "job_mask", "heeded", "held", "rack_held"}),
    actions=frozenset({ORDERING, PLACEMENT}),
)


def das_engine(settings: GpuSchedulingSettings) -> RolloutEngine:
    """A `RolloutEngine` for DasModule."""
    return DasEngine(settings)


class DasEngine:
    """The faster of two engines that a network can be run with; both record the same."""

    def __init__(self, settings: GpuSchedulingSettings) -> None:
        self.settings, self.workload = settings, load_workload(settings)
        self._machines = len(build_cluster(settings).rack)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        return self._for(module.network).roll_out(module, assignments)

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        return self._for(module.network).judge(module, seeds)

    def _for(self, network: DasNetwork) -> RolloutEngine:
        return self.loop if is_supported(network.settings, self._machines) else self.vector

    @cached_property
    def loop(self) -> RolloutEngine:
        return LoopEngine(self.settings, self.workload)

    @cached_property
    def vector(self) -> RolloutEngine:
        return vector_engine(self.settings, self.workload)


class LoopEngine:
    """One episode after the other, simulator and both agents in one compiled loop."""

    def __init__(self, settings: GpuSchedulingSettings, workload: Workload) -> None:
        self.settings, self.workload = settings, workload
        self._scales = reference_scales(settings, workload)
        self._cluster = build_cluster(settings)
        self._reel = reel_for(settings, self._cluster)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        player = self._player(module)
        return [player.record(self._sit(own.sequence), own, self._scales) for own in assignments]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        player, verdicts = self._player(module), []
        for seed in seeds:
            sitting = self._sit(seed)
            decisions = player.play(sitting)
            loss = -float(total_reward(self.settings, self._scales, sitting.desk.sums))
            verdicts.append(EpisodeScore(figures_of(sitting.result())[COST], decisions, loss))
        return verdicts

    def _player(self, module: Any) -> Player:
        return Player(module.network, self.settings, self._cluster, self._reel)

    def _sit(self, seed: int) -> EpisodeRunner:
        return EpisodeRunner(self.settings, seed, self.workload)


def vector_engine(settings: GpuSchedulingSettings, workload: Workload) -> VectorEngine:
    plain = settings.model_dump()

    def make(count: int, horizon_s: float | None) -> GpuSchedulingVectorEnv:
        return GpuSchedulingVectorEnv(count, workload, copy=False, **plain)

    return VectorEngine(make, outcome, COST, QUEUE)


def outcome(envs: GpuSchedulingVectorEnv, index: int) -> Mapping[str, float]:
    """Of an episode that has just ended."""
    return figures_of(envs.result(index))
