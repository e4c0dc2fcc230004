"""Episodes and rollouts under Decima's network: simulator and network in one compiled loop."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.compiled import compiled, njit_inline, njit_internal, splitmix64
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling import rollout
from loadmaster.envs.dag_scheduling import state as state_cols
from loadmaster.envs.dag_scheduling.actions import apply_action
from loadmaster.envs.dag_scheduling.episode import run_episode as run_rule
from loadmaster.envs.dag_scheduling.jobs import JobTemplates, Workload
from loadmaster.envs.dag_scheduling.observation import Observation, observe
from loadmaster.envs.dag_scheduling.rollout import (
    EpisodeResult,
    buffers_for,
    expected_work,
    initial_state,
)
from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.envs.dag_scheduling.simulator import advance
from loadmaster.envs.dag_scheduling.state import SimState, with_more_slots, with_more_trace
from loadmaster.envs.dag_scheduling.workloads import load_workload
from loadmaster.models.decima.compiled import Scratch, decide, scratch_for
from loadmaster.models.decima.network import DecimaNetwork
from loadmaster.models.decima.policy import DecimaPolicy
from loadmaster.models.decima.weights import Weights, weights_of
from loadmaster.models.ragged import Ragged
from loadmaster.platform.rl.advantages import Rollout
from loadmaster.platform.rl.rollout import (
    FULL,
    CompiledBuffer,
    EpisodeScore,
    Recording,
    RolloutSpec,
    copy_rows,
)
from loadmaster.platform.training.mixture import Mixture

REFERENCE = "srpt-caps"  # the rule that costs in a mixture of settings are relative to
_UNIT = 1.0 / (1 << 53)  # 53 random bits to a number in [0, 1)
_S11 = np.uint64(11)


@njit_internal
def uniform(action_seed: int, count: int) -> float:
    """A number in [0, 1), a function of `action_seed` and `count` alone."""
    return np.float64(splitmix64(action_seed, count) >> _S11) * _UNIT


@compiled
def run_network(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    scratch: Scratch,
    action_seed: int,
) -> int:
    """Decide until the episode ends or a table is full; returns the simulator's status.

    An `action_seed` of 0 or more samples decisions; otherwise the best-scored ones are taken.
    """
    while True:
        status = advance(state, bank)
        if status != state_cols.DECIDE:
            return status
        observe(state, bank, view, rows)
        stage_draw, limit_draw = -1.0, -1.0
        if action_seed >= 0:
            count = 2 * state.clock[state_cols.DECISIONS]
            stage_draw, limit_draw = uniform(action_seed, count), uniform(action_seed, count + 1)
        row, limit, _ = decide(view, weights, scratch, stage_draw, limit_draw)
        apply_action(state, bank, view, rows, row, limit)


def run_episode(
    policy: DecimaPolicy,
    settings: DagSchedulingSettings,
    seed: int,
    workload: Workload,
    *,
    action_seed: int = -1,
    record: bool = False,
) -> EpisodeResult:
    """Run the episode of `seed`; decisions are sampled where `action_seed` is 0 or more.

    May be called from several threads: the policy's own buffers are not used.
    """
    state = initial_state(settings, workload, seed, record)
    while True:
        view, rows = buffers_for(state, workload.bank)
        scratch = scratch_for(policy.network, len(rows), len(state.jobs), settings.total_executors)
        status = run_network(state, workload.bank, view, rows, policy.weights, scratch, action_seed)
        if status == state_cols.GROW_TRACE:
            state = with_more_trace(state)
        elif status == state_cols.GROW_JOBS:
            state = with_more_slots(state)
        else:
            return rollout.episode_result(state, workload, settings, "decima", seed)


# Columns of `DecisionBuffer.steps`.
LOG_PROBABILITY, TIME_MS, JOB_MS = 0, 1, 2
OUTLOOK = 3  # jobs, seconds of work, and job-seconds if the shortest jobs went first
# Counters in `DecisionBuffer.used`.
STEPS, KEPT, STAGE_ROWS, JOB_ROWS, EDGE_ROWS = range(5)


class DecisionBuffer(NamedTuple):
    """A row for every decision of a rollout, and the observations of those kept, end to end."""

    used: NDArray[np.int64]  # (5,) rows in use: decisions, kept ones, the three tables
    steps: NDArray[np.float64]  # (steps, 3)
    outlook: NDArray[np.float64]  # (steps, OUTLOOK)
    kept: NDArray[np.int64]  # (steps,) numbers of the decisions kept
    actions: NDArray[np.int64]  # (steps, 2) stage row, limit
    counts: NDArray[np.int64]  # (steps, 3) its rows of stages, jobs, edges
    cluster: NDArray[np.float32]  # (steps, CLUSTER_FEATURES)
    stages: NDArray[np.float32]  # (stage rows, STAGE_FEATURES)
    stage_job: NDArray[np.int32]  # (stage rows,)
    schedulable: NDArray[np.int8]  # (stage rows,)
    jobs: NDArray[np.float32]  # (job rows, JOB_FEATURES)
    edges: NDArray[np.int32]  # (edge rows, 2)


def empty_buffer(decisions: int) -> DecisionBuffer:
    rows = 16 * decisions  # of each table; most rollouts double it once or twice
    return DecisionBuffer(
        used=np.zeros(5, np.int64),
        steps=np.zeros((decisions, 3)),
        outlook=np.zeros((decisions, OUTLOOK)),
        kept=np.zeros(decisions, np.int64),
        actions=np.zeros((decisions, 2), np.int64),
        counts=np.zeros((decisions, 3), np.int64),
        cluster=np.zeros((decisions, obs_cols.CLUSTER_FEATURES), np.float32),
        stages=np.zeros((rows, obs_cols.STAGE_FEATURES), np.float32),
        stage_job=np.zeros(rows, np.int32),
        schedulable=np.zeros(rows, np.int8),
        jobs=np.zeros((rows, obs_cols.JOB_FEATURES), np.float32),
        edges=np.zeros((rows, 2), np.int32),
    )


@compiled
def record_network(
    state: SimState,
    bank: JobTemplates,
    view: Observation,
    rows: NDArray[np.int64],
    weights: Weights,
    scratch: Scratch,
    action_seed: int,
    keep: float,
    buffer: DecisionBuffer,
) -> int:
    """Decide and fill the buffer until the episode ends or the buffer is full."""
    used = buffer.used
    while True:
        # Checked before the simulator moves, so that a larger buffer continues here.
        if (
            used[STEPS] == len(buffer.steps)
            or used[STAGE_ROWS] + len(view.stages) > len(buffer.stages)
            or used[JOB_ROWS] + len(view.jobs) > len(buffer.jobs)
            or used[EDGE_ROWS] + len(view.edges) > len(buffer.edges)
        ):
            return FULL
        status = advance(state, bank)
        if status != state_cols.DECIDE:
            return status
        observe(state, bank, view, rows)
        step = used[STEPS]
        stage_draw, limit_draw = uniform(action_seed, 3 * step), uniform(action_seed, 3 * step + 1)
        row, limit, log_probability = decide(view, weights, scratch, stage_draw, limit_draw)
        if row == len(view.schedulable) - 1:  # idling is no choice: the time joins the last step
            apply_action(state, bank, view, rows, row, limit)
            continue
        buffer.steps[step, LOG_PROBABILITY] = log_probability
        buffer.steps[step, TIME_MS] = state.clock[state_cols.NOW]
        buffer.steps[step, JOB_MS] = state.clock[state_cols.JOB_MS]
        look_ahead(view, buffer.outlook[step])
        if uniform(action_seed, 3 * step + 2) < keep:
            keep_observation(view, buffer, step, row, limit)
        apply_action(state, bank, view, rows, row, limit)
        used[STEPS] = step + 1


@njit_inline
def look_ahead(view: Observation, outlook: NDArray[np.float64]) -> None:
    """Features of the return to come that do not depend on the policy.

    If all executors worked on the job with the least work left, then on the next, the total
    waiting time would be the sum over pairs of jobs (each with itself as well) of the smaller work.
    """
    jobs, total = int(view.cluster[obs_cols.JOBS]), view.cluster[obs_cols.TOTAL_EXECUTORS]
    work, waiting = 0.0, 0.0
    for first in range(jobs):
        own = view.jobs[first, obs_cols.WORK_LEFT_S]
        work += own
        for second in range(first + 1):
            waiting += min(own, view.jobs[second, obs_cols.WORK_LEFT_S])
    outlook[0], outlook[1], outlook[2] = jobs, work / total, waiting / total


@njit_inline
def keep_observation(
    view: Observation, buffer: DecisionBuffer, step: int, row: int, limit: int
) -> None:
    """Append the rows in use to the buffer."""
    used = buffer.used
    place = used[KEPT]
    stages, jobs = int(view.cluster[obs_cols.STAGES]), int(view.cluster[obs_cols.JOBS])
    edges = int(view.cluster[obs_cols.EDGES])
    buffer.kept[place] = step
    buffer.actions[place, 0], buffer.actions[place, 1] = row, limit
    buffer.counts[place, 0], buffer.counts[place, 1], buffer.counts[place, 2] = stages, jobs, edges
    for i in range(obs_cols.CLUSTER_FEATURES):
        buffer.cluster[place, i] = view.cluster[i]
    for i in range(stages):
        buffer.stage_job[used[STAGE_ROWS] + i] = view.stage_job[i]
        buffer.schedulable[used[STAGE_ROWS] + i] = view.schedulable[i]
    copy_rows(view.stages, buffer.stages, used[STAGE_ROWS], stages)
    copy_rows(view.jobs, buffer.jobs, used[JOB_ROWS], jobs)
    copy_rows(view.edges, buffer.edges, used[EDGE_ROWS], edges)
    used[KEPT] += 1
    used[STAGE_ROWS] += stages
    used[JOB_ROWS] += jobs
    used[EDGE_ROWS] += edges


def recording_of(
    buffer: DecisionBuffer, state: SimState, settings: DagSchedulingSettings
) -> Recording:
    steps, kept, stages, jobs, edges = buffer.used.tolist()
    facts = buffer.steps[:steps]
    counter, end_ms = JOB_MS, state.clock[state_cols.JOB_MS]
    if settings.objective == "makespan":
        counter, end_ms = TIME_MS, state.clock[state_cols.NOW]
    passed = np.append(facts[:, counter], end_ms)
    passed[0] = 0  # what passed before the first decision joins its reward
    chosen = buffer.kept[:kept].copy()
    done = state.completed_ms != state_cols.NONE
    jct_ms = (state.completed_ms - state.arrivals[:, 0])[done]
    per_stage, per_job, per_edge = buffer.counts[:kept].T.copy()
    return Recording(
        observations={
            "stages": Ragged(buffer.stages[:stages].copy(), per_stage),
            "stage_job": Ragged(buffer.stage_job[:stages].copy(), per_stage),
            # The place behind the last stage means idling, which the network never chooses.
            "schedulable": Ragged(buffer.schedulable[:stages].copy(), per_stage, spare=1),
            "jobs": Ragged(buffer.jobs[:jobs].copy(), per_job),
            "edges": Ragged(buffer.edges[:edges].copy(), per_edge),
            "cluster": buffer.cluster[:kept].copy(),
        },
        actions=buffer.actions[:kept].copy(),
        log_probability=facts[chosen, LOG_PROBABILITY],
        kept=chosen,
        rollout=Rollout(
            time_s=facts[:, TIME_MS] / 1000,
            reward=-np.diff(passed) / 1000,
            end_s=float(state.clock[state_cols.NOW]) / 1000,
            outlook=buffer.outlook[:steps].copy(),
        ),
        figures={
            "jct_s": float(jct_ms.mean()) / 1000 if len(jct_ms) else float("nan"),
            "makespan_s": float(state.clock[state_cols.NOW]) / 1000,
            "jobs_finished": float(done.sum()),
        },
    )


class DecimaEngine:
    """A `RolloutEngine` for DecimaModule."""

    def __init__(
        self, settings: DagSchedulingSettings, mixture: Sequence[DagSchedulingSettings] = ()
    ) -> None:
        """Sequences take turns through the settings of a `mixture`, which replace `settings`."""
        members = [(one, load_workload(one)) for one in mixture or (settings,)]
        self.mixture = Mixture(members, rule_cost)
        self.relative = bool(mixture)
        self.buffer = CompiledBuffer(empty_buffer)

    def roll_out(self, module: Any, assignments: Sequence[RolloutSpec]) -> list[Recording]:
        weights = weights_of(module.network)
        return [self._record(module.network, weights, spec) for spec in assignments]

    def _record(self, network: DecimaNetwork, weights: Weights, spec: RolloutSpec) -> Recording:
        (settings, workload), buffer = self.mixture.member(spec.sequence), self.buffer
        bank = workload.bank
        if spec.horizon_s is not None:
            settings = settings.model_copy(update={"horizon_s": spec.horizon_s})
        state = initial_state(settings, workload, spec.sequence, slots=settings.total_jobs)
        view, rows = buffers_for(state, bank)
        scratch = scratch_for(network, len(rows), len(state.jobs), settings.total_executors)
        buffer.rewind()
        while True:
            status = record_network(
                state, bank, view, rows, weights, scratch, spec.action_seed, spec.keep,
                buffer.arrays,
            )  # fmt: skip
            if status != FULL:
                return recording_of(buffer.arrays, state, settings)
            buffer.lengthen()

    def judge(self, module: Any, seeds: Sequence[int]) -> list[EpisodeScore]:
        policy, scores = DecimaPolicy(module.network), []
        for seed in seeds:
            settings, workload = self.mixture.member(seed)
            result = run_episode(policy, settings, seed, workload)
            cost = self.cost(seed, episode_cost(settings, result))
            scores.append(EpisodeScore(cost, result.decisions, cost))
        return scores

    def cost(self, seed: int, cost: float) -> float:
        """A cost on a sequence, in a mixture relative to that of the rule REFERENCE."""
        return self.mixture.relative_cost(seed, cost) if self.relative else cost


def sequence_work(mixture: Sequence[DagSchedulingSettings], sequence: int) -> float:
    """Expected work of a rollout of a sequence, which takes its turn through the settings."""
    settings = mixture[sequence % len(mixture)]
    return expected_work(settings, load_workload(settings), sequence)


def episode_cost(settings: DagSchedulingSettings, result: EpisodeResult) -> float:
    """Seconds that the objective minimises."""
    return result.makespan_s if settings.objective == "makespan" else result.mean_jct_s


def rule_cost(
    member: tuple[DagSchedulingSettings, Workload], seed: int, rule: str = REFERENCE
) -> float:
    """Cost of a rule on a sequence."""
    settings, workload = member
    return episode_cost(settings, run_rule(rule, settings, seed, workload))
