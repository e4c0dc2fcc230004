"""Explanations of DAS's decisions: ranked jobs and machines, and which job is stopped for which."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.envs.gpu_scheduling.actions import apply_action
from loadmaster.envs.gpu_scheduling.decision_state import (
    PHASES,
    PLACING_AGAIN,
    RECONSIDERING,
    DecisionState,
)
from loadmaster.envs.gpu_scheduling.episode import Episode
from loadmaster.envs.gpu_scheduling.jobs import WHOLE
from loadmaster.envs.gpu_scheduling.scheduling_pass import preempt_lower_ranked, set_priorities
from loadmaster.envs.gpu_scheduling.state import GPU, NOW, ROWS_USED, SimState
from loadmaster.models.das.compiled_loop import MACHINES, NO_REWARD, ROWS, Scores
from loadmaster.models.das.decision import (
    ClusterTables,
    Decision,
    placements_of,
    read_decision,
    summarise,
)
from loadmaster.models.das.ordering import Priorities
from loadmaster.models.das.placement import Placements
from loadmaster.models.keyed_random import standard_normal
from loadmaster.models.layers import Array32
from loadmaster.models.policy import ExplainedDecision, Explanation, Option

OPTIONS = 5  # jobs, and machines, that an explanation lists
DRAWS = 1000  # samples that estimate the probability of coming first
# Choices of an explained decision.
FIRST_JOB, FIRST_MACHINE = "job that goes first", "machine it fills first"
BY_PRIORITY = "job by priority"


def scored_options(tables: ClusterTables, scores: Scores) -> dict[str, list[Option]]:
    """The scores of an event as options; empty if nothing was to decide."""

    def options(names: list[str], score: Array32, std: Array32) -> list[Option]:
        pairs = zip(names, score.tolist(), std.tolist(), strict=False)
        return [Option(name, round(mean, 6), round(own, 6)) for name, mean, own in pairs]

    rows, machines = scores.counts[ROWS], scores.counts[MACHINES]
    found: dict[str, list[Option]] = {}
    if rows:
        names = [f"job {tables.job_name(job)}" for job in scores.jobs[:rows].tolist()]
        found["job"] = options(names, scores.priority, np.exp(scores.priority_log_std))
    if machines:
        names = [tables.machine_name(machine) for machine in scores.machines[:machines].tolist()]
        found["machine"] = options(names, scores.affinity, scores.affinity_std)
    return found


class Ranking(NamedTuple):
    """K rows of jobs, or machines, the highest score first."""

    items: list[int]
    score: list[float]  # the mean of its priority or affinity
    probability: list[float]  # of the highest score, when actions are sampled

    def options(
        self, name: Callable[[int], str], details: Callable[[int], Mapping[str, str]]
    ) -> list[Option]:
        return [
            Option(
                name(item), score, None, probability, place == 0,
                {**details(item), "score": f"{score:+.3f}"},
            )
            for place, (item, score, probability) in enumerate(self._best())
        ]  # fmt: skip

    def records(self, fields: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**fields(item), "score": round(score, 6), "probability": round(probability, 4)}
            for item, score, probability in self._best()
        ]

    def _best(self) -> list[tuple[int, float, float]]:
        return list(zip(*self, strict=True))[:OPTIONS]


def rank(items: NDArray[np.int64], score: NDArray[Any], samples: NDArray[Any]) -> Ranking:
    """Of scores (K,) and samples of them (DRAWS, K)."""
    probability = np.bincount(samples.argmax(1), minlength=len(items)) / len(samples)
    order = np.argsort(-score, kind="stable")
    return Ranking(*(table[order].tolist() for table in (items, score, probability)))


class DecisionContext(NamedTuple):
    """An episode before a decision, and the network's distributions of both agents' actions."""

    episode: Episode
    state: SimState
    phase: int  # a key of PHASES
    shown: NDArray[np.int64]  # (Q,) the job in each row of the observation
    observation: dict[str, Tensor]  # a batch of one
    priorities: Priorities
    placements: Placements
    guided: DecisionState | None  # where the actions correct a rule

    @property
    def actions(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean priority (Q,) and affinity (Q, M)."""
        return self.priorities.mean[0].numpy(), self.placements.mean()[0].numpy()

    @property
    def priority(self) -> NDArray[np.float32]:
        """(Q,) mean priorities, with those of the rule that they correct."""
        mean: NDArray[np.float32] = self.priorities.mean[0].numpy()
        return mean + self.rule_priority

    @property
    def rule_priority(self) -> NDArray[np.float32]:
        """(Q,) zeros without a rule."""
        if self.guided is None:
            return np.zeros(len(self.shown), np.float32)
        return self.guided.rule_priority[: len(self.shown)].astype(np.float32)

    @property
    def startable(self) -> NDArray[np.int64]:
        """Rows of the jobs that could start."""
        return np.flatnonzero(self.placements.fits[0].any(1).numpy())

    @property
    def is_running(self) -> NDArray[np.bool_]:
        """(Q,)"""
        running: NDArray[np.bool_] = self.state.jobs[self.shown, ROWS_USED] > 0
        return running

    @property
    def time_s(self) -> float:
        return float(self.state.times[NOW])

    @property
    def has_choice(self) -> bool:
        """Whether another action could have another effect."""
        if self.guided is not None:
            return len(self.shown) > 1
        if self.phase == RECONSIDERING:
            running = self.is_running
            return bool(self.stopped_for(np.flatnonzero(~running), np.where(running, 0.0, 1.0)))
        return len(self.startable) > 1 or int(self.placements.fits.sum()) > 1

    def stopped_for(self, waiting: NDArray[np.int64], priority: NDArray[np.float64]) -> set[int]:
        """Jobs that would be stopped if only these waiting rows were offered."""
        cluster, jobs, _ = self.episode
        state = SimState._make(table.copy() for table in self.state)
        before = np.flatnonzero(state.jobs[:-1, ROWS_USED] > 0)
        running = self.is_running
        state.key[before] = -np.inf  # jobs that are not shown cannot be stopped
        state.key[self.shown[running]] = -priority[running]
        set_priorities(state, jobs, self.shown[waiting], priority[waiting], len(waiting))
        preempt_lower_ranked(state, cluster, jobs, np.zeros_like(state.free))
        return set(before[state.jobs[before, ROWS_USED] == 0].tolist())

    def rank_jobs(self, rows: NDArray[np.int64]) -> Ranking:
        standard = standard_normal(torch.arange(DRAWS), self.priorities.mean.shape[1:], stream=0)
        samples = self.priorities.sample(standard).numpy() + self.rule_priority  # (DRAWS, Q)
        return rank(rows, self.priority[rows], samples[:, rows])

    def rank_machines(self, row: int) -> Ranking:
        """For the job of this row, which could start."""
        machines = np.flatnonzero(self.placements.fits[0, row].numpy())
        affinity = self.placements.mean()[0, row].numpy()[machines]
        shape = self.placements.fits.shape[1:]
        samples = np.stack([
            self.placements.sample(standard_normal(key[None], shape, stream=1))[0, row].numpy()
            for key in torch.arange(DRAWS)
        ])  # fmt: skip
        return rank(machines, affinity, samples[:, machines])

    def corrected(self) -> tuple[ClusterTables, Decision]:
        """What the rule does with these corrections, in copies of the tables."""
        assert self.guided is not None
        cluster, jobs, _ = self.episode
        state = SimState._make(table.copy() for table in self.state)
        decision_state = DecisionState._make(table.copy() for table in self.guided)
        tables = ClusterTables(
            *(state, cluster, jobs, decision_state, placements_of(state)),
            job_name=lambda job: str(jobs.job_id[job]),
            machine_name=lambda machine: f"machine {machine + 1}",
        )
        apply_action(*tables.simulation, NO_REWARD, *map(np.ascontiguousarray, self.actions))
        return tables, read_decision(tables)

    def job_id(self, row: int) -> int:
        return int(self.episode.jobs.job_id[self.shown[row]])

    def job_name(self, row: int) -> str:
        return f"job {self.job_id(row)}"

    def job_details(self, row: int, age: str) -> dict[str, str]:
        """GPUs, and seconds in the system under the heading `age`."""
        jobs, job = self.episode.jobs, self.shown[row]
        gang = f"{jobs.instances[job]} x " if jobs.instances[job] > 1 else ""
        age_s = self.time_s - jobs.arrival_s[job]
        return {"GPUs": f"{gang}{jobs.gpu[job] / WHOLE:g}", age: f"{age_s:,.0f}"}

    def machine_details(self, machine: int) -> dict[str, str]:
        cluster = self.episode.cluster
        return {
            "free GPUs": f"{self.state.free[machine, GPU] / WHOLE:g}",
            "speed": f"{cluster.speed[machine]:.2f}",
            "$ a GPU-hour": f"{cluster.price_per_s[machine] * 3600:.2f}",
        }


def explain(context: DecisionContext, number: int) -> ExplainedDecision:
    """Explain the decision, which is that of this number in the episode."""
    free_gpus = float(context.state.free[:, GPU].sum()) / WHOLE
    gpus = context.episode.cluster.gpu_capacity.sum() / WHOLE
    explain_phase = _reconsidering if context.phase == RECONSIDERING else _placing
    if context.guided is not None:
        explain_phase = _correcting
    situation, explanation, record = explain_phase(context)
    shared = {
        "decision": number,
        "time_s": context.time_s,
        "moment": PHASES[context.phase],
        "free_gpus": free_gpus,
        "jobs_shown": len(context.shown),
    }
    summary = f"{situation}; {free_gpus:g} of {gpus:g} GPUs free: {explanation.summary}"
    explanation = replace(explanation, summary=summary)
    return ExplainedDecision(context.time_s, explanation, {**shared, **record})


def _placing(context: DecisionContext) -> tuple[str, Explanation, dict[str, Any]]:
    """Which job goes first, and to which machine."""
    # In a strict queue the first job may fit nowhere and block those behind it.
    jobs = context.rank_jobs(np.flatnonzero(context.priorities.mask[0].numpy()))
    first, startable, name = jobs.items[0], context.startable, context.job_name
    choices = {FIRST_JOB: jobs.options(name, lambda row: context.job_details(row, "waited, s"))}
    others = {FIRST_JOB: len(jobs.items) - len(choices[FIRST_JOB])}
    chosen: dict[str, int | None] = {"job": context.job_id(first), "machine": None}
    record: dict[str, Any] = {
        "jobs_that_could_start": len(startable),
        "jobs": jobs.records(lambda row: {"job": context.job_id(row)}),
        "machines": [],
        "chosen": chosen,
    }
    summary = f"{name(first)} goes first, does not fit, and blocks those behind it"
    if first in startable:
        machines, rack = context.rank_machines(first), context.episode.cluster.rack
        choices[FIRST_MACHINE] = machines.options(
            lambda machine: f"machine {machine + 1} (rack {rack[machine] + 1})",
            context.machine_details,
        )
        others[FIRST_MACHINE] = len(machines.items) - len(choices[FIRST_MACHINE])
        record["machines"] = machines.records(lambda machine: {"machine": machine})
        chosen["machine"] = machines.items[0]
        summary = f"{name(first)} goes first, and to machine {machines.items[0] + 1}"
    again = ", after reconsidering" if context.phase == PLACING_AGAIN else ""
    situation = f"{len(context.shown)} jobs shown, {len(startable)} could start{again}"
    return situation, Explanation(summary, choices, others), record


def _list_all(
    context: DecisionContext, more: Callable[[int], dict[str, str]]
) -> tuple[list[Option], dict[str, Any], dict[str, int]]:
    """All jobs by priority: options with `more` details, a record, and how many are not listed."""
    running = context.is_running
    jobs = context.rank_jobs(np.arange(len(running)))

    def details(row: int) -> dict[str, str]:
        now = "runs" if running[row] else "waits"
        return {**context.job_details(row, "here for, s"), "now": now, **more(row)}

    options = jobs.options(context.job_name, details)
    record = {
        "jobs_running": int(running.sum()),
        "jobs_waiting": int((~running).sum()),
        "jobs": jobs.records(
            lambda row: {"job": context.job_id(row), "running": bool(running[row])}
        ),
    }
    return options, record, {BY_PRIORITY: len(jobs.items) - len(options)}


def _counts(record: Mapping[str, Any], what: str) -> str:
    runs, waits = record["jobs_running"], record["jobs_waiting"]
    return f"{runs + waits} jobs {what}, {runs} run, {waits} wait"


def _reconsidering(context: DecisionContext) -> tuple[str, Explanation, dict[str, Any]]:
    """All jobs by priority, and which is stopped for which."""
    options, record, others = _list_all(context, lambda row: {})
    name, stopped = context.job_name, _stopped_for(context)
    record["stopped"] = [
        {"job": context.job_id(row), "for": context.job_id(other)} for row, other in stopped.items()
    ]
    parts = [f"{name(row)} is stopped for {name(other)}" for row, other in stopped.items()]
    if len(parts) > OPTIONS:
        parts[OPTIONS:] = [f"{len(parts) - OPTIONS} more are stopped"]
    summary = ", ".join(parts) or "no job is stopped"
    explanation = Explanation(summary, {BY_PRIORITY: options}, others)
    return _counts(record, "reconsidered"), explanation, record


def _correcting(context: DecisionContext) -> tuple[str, Explanation, dict[str, Any]]:
    """All jobs by priority, and what the rule does with the corrected keys and values."""
    options, record, others = _list_all(
        context, lambda row: {"by rule": f"{context.rule_priority[row]:+.3f}"}
    )
    tables, decision = context.corrected()
    record["started"] = [int(tables.jobs.job_id[job]) for job, _ in decision.start]
    record["stopped"] = [int(tables.jobs.job_id[job]) for job in decision.stop]
    explanation = Explanation(summarise(tables, decision), {BY_PRIORITY: options}, others)
    return _counts(record, "shown"), explanation, record


def _stopped_for(context: DecisionContext) -> dict[int, int]:
    """Rows of stopped jobs, each with that of the waiting job whose arrival first stops it."""
    priority = context.priority.astype(np.float64)
    waiting = np.flatnonzero(~context.is_running)
    waiting = waiting[np.argsort(-priority[waiting], kind="stable")]
    row_of = {int(job): row for row, job in enumerate(context.shown)}
    stopped = context.stopped_for(waiting, priority)
    found: dict[int, int] = {}
    for count, row in enumerate(waiting, start=1):
        for job in sorted(stopped & context.stopped_for(waiting[:count], priority)):
            found.setdefault(row_of[job], int(row))
        if len(found) == len(stopped):
            break
    return found
