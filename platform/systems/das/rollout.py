"""DAS's rollouts: whole episodes in a compiled loop, or many environments stepped together.

The loop is several times as fast. Networks that it does not support (models/das/compiled.py) are
run in torch, with one forward pass for both agents of all environments.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, splitmix64
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT, apply_action
from loadmaster.envs.gpu_scheduling.cluster import Cluster, build_cluster
from loadmaster.envs.gpu_scheduling.decision_state import (
    SHOWN,
    SUMS,
    DecisionState,
    advance_to_decision,
)
from loadmaster.envs.gpu_scheduling.episode import EpisodeResult
from loadmaster.envs.gpu_scheduling.episode_runner import EpisodeRunner
from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.observation import Observation, blank_observation, observe
from loadmaster.envs.gpu_scheduling.rewards import Terms, reference_scales, total_reward
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import DECIDE, GROW_TRACE, NOW, SimState
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.models.das import compiled as kernels
from loadmaster.models.das.compiled import Weights, Workspace
from loadmaster.models.das.compiled_loop import run_episode
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.rule_tilt import tilt_rule
from loadmaster.models.ragged import Ragged
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import (
    FULL,
    CompiledBuffer,
    EpisodeScore,
    Recording,
    RolloutEngine,
    RolloutSpec,
    copy_rows,
)
from loadmaster.platform.rl.vector_rollout import Rows, VectorEngine

COST = "jct_s"
QUEUE = Rows(
    mask="job_mask",
    tables=frozenset({"jobs", "job_mask", "heeded", "held", "rack_held"}),
    actions=frozenset({ORDERING, PLACEMENT}),
)

# Tables of the observation in `EpisodeBuffer`: one a decision, one a job.
OF_DECISION = ("machines", "history_y", "history_mask", "history_t")
OF_JOB = ("jobs", "heeded", "held", "rack_held")
# Columns of `EpisodeBuffer.facts`; the environment's sums follow.
TIME_S, ORDER_LOG_PROB, PLACE_LOG_PROB, FIRST_SUM = 0, 1, 2, 3
# Places in `EpisodeBuffer.used`.
STEPS, KEPT, ROWS = range(3)


class EpisodeBuffer(NamedTuple):
    """Facts of every decision, and the observations and actions of those kept, end to end.

    M machines, R racks, T past decisions.
    """

    used: NDArray[np.int64]  # (3,) rows in use: decisions, kept ones, their jobs
    facts: NDArray[np.float64]  # (steps, FIRST_SUM + SUMS)
    kept: NDArray[np.int64]  # (steps,) number of the decision
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


def empty_buffer(view: Observation, decisions: int) -> EpisodeBuffer:
    """For observations like `view`."""
    rows = 8 * decisions + len(view.jobs)  # at least one observation; usual rollouts double it

    def empty(length: int, table: Any) -> NDArray[Any]:
        return np.zeros((length, *table.shape), table.dtype)

    return EpisodeBuffer(
        used=np.zeros(3, np.int64),
        facts=np.zeros((decisions, FIRST_SUM + SUMS)),
        kept=np.zeros(decisions, np.int64),
        counts=np.zeros(decisions, np.int64),
        **{name: empty(decisions, getattr(view, name)) for name in OF_DECISION},
        **{name: empty(rows, getattr(view, name)[0]) for name in OF_JOB},
        priority=np.zeros(rows, np.float32),
        affinity=empty(rows, view.held[0]),
    )


@compiled
def run_sampled(
    state: SimState,
    cluster: Cluster,
    jobs: Jobs,
    decision_state: DecisionState,
    terms: Terms,
    view: Observation,
    weights: Weights,
    work: Workspace,
    action_seed: int,
    keep: float,
    chance: NDArray[np.float64],
    buffer: EpisodeBuffer,
) -> int:
    """Sample decisions until the episode ends, or the trace or buffer is full; returns the status.

    Decision i is kept if `chance[i]` is below `keep`.
    """
    used = buffer.used
    while True:
        # Before the simulator advances, so that a larger buffer resumes where this one ended.
        if used[STEPS] == len(buffer.facts) or used[ROWS] + len(view.jobs) > len(buffer.jobs):
            return FULL
        status = advance_to_decision(state, cluster, jobs, decision_state)
        if status != DECIDE:
            return status
        observe(state, cluster, jobs, decision_state, view)
        step = used[STEPS]
        key = np.int64(splitmix64(action_seed, step))
        kernels.decide(view, weights, work, kernels.SAMPLES, key)
        facts = buffer.facts[step]
        facts[TIME_S] = state.times[NOW]
        facts[ORDER_LOG_PROB] = work.log_prob[kernels.ORDER]
        facts[PLACE_LOG_PROB] = work.log_prob[kernels.PLACE]
        for place in range(SUMS):
            facts[FIRST_SUM + place] = decision_state.sums[place]
        if chance[step] < keep:
            _keep(view, work, buffer, step, decision_state.counts[SHOWN])
        apply_action(state, cluster, jobs, decision_state, terms, work.priority, work.affinity)
        used[STEPS] = step + 1


@njit_inline
def _keep(view: Observation, work: Workspace, buffer: EpisodeBuffer, step: int, count: int) -> None:
    """Append the rows in use and their actions."""
    place, start = buffer.used[KEPT], buffer.used[ROWS]
    buffer.kept[place], buffer.counts[place] = step, count
    copy_rows(view.machines, buffer.machines[place], 0, len(view.machines))
    copy_rows(view.history_y, buffer.history_y[place], 0, len(view.history_y))
    copy_rows(view.history_mask, buffer.history_mask[place], 0, len(view.history_y))
    for past in range(len(view.history_t)):
        buffer.history_t[place, past] = view.history_t[past]
    copy_rows(view.jobs, buffer.jobs, start, count)
    copy_rows(view.held, buffer.held, start, count)
    copy_rows(view.rack_held, buffer.rack_held, start, count)
    copy_rows(work.affinity, buffer.affinity, start, count)
    for row in range(count):
        buffer.heeded[start + row] = view.heeded[row]
        buffer.priority[start + row] = work.priority[row]
    buffer.used[KEPT] = place + 1
    buffer.used[ROWS] = start + count


def _observations(buffer: EpisodeBuffer, rack: NDArray[np.int64]) -> dict[str, Any]:
    """The kept ones, by the names of envs/gpu_scheduling/observation.py."""
    kept, rows = int(buffer.used[KEPT]), int(buffer.used[ROWS])
    return {
        "job_mask": Ragged(np.ones(rows, np.bool_), buffer.counts[:kept].copy()),
        "rack": np.tile(rack, (kept, 1)),
        **{name: getattr(buffer, name)[:kept].copy() for name in OF_DECISION},
        **{name: _ragged(buffer, getattr(buffer, name)) for name in OF_JOB},
    }


def _ragged(buffer: EpisodeBuffer, table: NDArray[Any]) -> Ragged:
    return Ragged(table[: buffer.used[ROWS]].copy(), buffer.counts[: buffer.used[KEPT]].copy())


def figures_of(result: EpisodeResult) -> Mapping[str, float]:
    """Metrics of a finished episode."""
    return {COST: result.mean_jct_s, "fee": float(result.fee.mean())}


class LoopEngine:
    """One episode after the other, simulator and both agents in one compiled loop."""

    def __init__(self, settings: GpuSchedulingSettings) -> None:
        self.settings, self.workload = settings, load_workload(settings)
        self._scales = reference_scales(settings, self.workload)
        cluster = build_cluster(settings)
        self._machines = len(cluster.rack)
        view = blank_observation(settings.max_queue, cluster, settings.history)
        self._buffer = CompiledBuffer(partial(empty_buffer, view))

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        prepared = self.prepare(module.network)
        return [self._record(spec, module.network, *prepared) for spec in assignments]

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        prepared, scores = self.prepare(module.network), []
        for seed in seeds:
            runner, decisions = self.run(module.network, seed, *prepared)
            loss = -float(total_reward(self.settings, self._scales, runner.decision_state.sums))
            scores.append(EpisodeScore(runner.result().mean_jct_s, decisions, loss))
        return scores

    def run(
        self, network: DasNetwork, seed: int, weights: Weights, work: Workspace
    ) -> tuple[EpisodeRunner, int]:
        """Run the greedy policy to the end; return the episode and its decisions."""
        runner = self._start(network, seed)
        return runner, run_episode(runner, weights, work)

    def _start(self, network: DasNetwork, seed: int) -> EpisodeRunner:
        runner = EpisodeRunner(self.settings, seed, self.workload)
        tilt_rule(network, runner.state.rule)
        return runner

    def prepare(self, network: DasNetwork) -> tuple[Weights, Workspace]:
        sizes = self.settings.max_queue, self._machines, self.settings.history
        return kernels.weights_of(network), kernels.workspace_for(network.settings, *sizes)

    def _record(
        self, spec: RolloutSpec, network: DasNetwork, weights: Weights, work: Workspace
    ) -> Recording:
        """Sample one rollout and keep a share of it, as VectorEngine does."""
        runner = self._start(network, spec.sequence)
        growing = self._buffer
        cluster, jobs, _ = runner.episode
        growing.rewind()
        rng, chance, status = np.random.default_rng(spec.action_seed), np.zeros(0), FULL
        while status in (FULL, GROW_TRACE):
            chance = np.append(chance, rng.random(len(growing.arrays.facts) - len(chance)))
            status = run_sampled(
                runner.state, cluster, jobs, runner.decision_state, runner.terms, runner.view,
                weights, work, spec.action_seed, spec.keep, chance, growing.arrays,
            )  # fmt: skip
            if status == FULL:
                growing.lengthen()
            elif status == GROW_TRACE:
                runner.grow_trace()
        buffer, sums = growing.arrays, runner.decision_state.sums
        facts = buffer.facts[: buffer.used[STEPS]]
        total = total_reward(
            self.settings, self._scales, np.concatenate([facts[:, FIRST_SUM:], sums[None]])
        )
        total[0] = 0  # costs before the first decision count towards its reward
        reward = np.diff(total)
        kept = buffer.kept[: buffer.used[KEPT]].copy()
        return Recording(
            observations=_observations(buffer, runner.view.rack),
            actions={
                ORDERING: _ragged(buffer, buffer.priority),
                PLACEMENT: _ragged(buffer, buffer.affinity),
            },
            log_probability=facts[kept][:, [ORDER_LOG_PROB, PLACE_LOG_PROB]],
            kept=kept,
            rollout=Rollout(facts[:, TIME_S].copy(), reward, float(runner.state.times[NOW])),
            figures={"return": float(reward.sum()), **figures_of(runner.result())},
        )


class DasEngine:
    """`RolloutEngine` of DasModule: the fastest one that supports the network.

    Both engines record the same.
    """

    def __init__(self, settings: GpuSchedulingSettings) -> None:
        self.settings = settings
        self._machines = len(build_cluster(settings).rack)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        return self._for(module.network).roll_out(module, assignments)

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        return self._for(module.network).judge(module, seeds)

    def _for(self, network: DasNetwork) -> RolloutEngine:
        return self.loop if kernels.is_supported(network.settings, self._machines) else self.vector

    @cached_property
    def loop(self) -> RolloutEngine:
        return LoopEngine(self.settings)

    @cached_property
    def vector(self) -> RolloutEngine:
        workload, plain = load_workload(self.settings), self.settings.model_dump()

        def make(count: int, horizon_s: float | None) -> GpuSchedulingVectorEnv:
            return GpuSchedulingVectorEnv(count, workload, copy=False, **plain)

        def outcome(envs: GpuSchedulingVectorEnv, index: int) -> Mapping[str, float]:
            return figures_of(envs.result(index))

        return VectorEngine(make, outcome, COST, QUEUE)
