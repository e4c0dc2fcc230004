"""A Slurm cluster as an engine of jobs: decisions of DAS's endpoint as changes of begin times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from pydantic import Field

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import Settings
from loadmaster.platform.steering.core import Mode, RefusedError, SilentError, StepResult
from loadmaster.platform.steering.gpu_jobs import ENDPOINT, JobHistory, with_cluster_name
from loadmaster.platform.steering.jobs import START, Command, Observation
from loadmaster.platform.steering.registry import EngineSpec
from loadmaster.platform.steering.slurm.commands import SlurmCommands
from loadmaster.platform.steering.slurm.records import (
    COMPLETING,
    ENDED,
    RUNNING,
    Mark,
    SlurmJob,
    parse_all,
)
from loadmaster.platform.steering.slurm.state import (
    ClusterState,
    GpuKind,
    StartTimes,
    cluster_state,
)

REASON_MAX = 200  # characters of a reason in AdminComment


class SlurmSettings(Settings):
    """How a cluster is steered."""

    cluster: str = Field(default="slurm", description="Its name in logs, and as a tenant.")
    preempt: bool = Field(
        default=False, description="Let decisions stop and move running jobs that may be requeued."
    )
    replan_s: float = Field(
        default=60, gt=0, description="Time between decisions that order all jobs anew."
    )
    grace_s: float = Field(
        default=120,
        ge=5,
        description="How far a begin time is put off. After it Slurm decides where this ended.",
    )
    start_s: float = Field(
        default=5, gt=0, description="A job that was started counts as running for so long."
    )
    retry_s: float = Field(
        default=15, gt=0, description="After it a job that has not started waits again."
    )
    settle_s: float = Field(
        default=5,
        ge=0,
        description="A requeued job waits at least so long: if it starts while its last run still "
        "ends, Slurm takes that end for the end of the new run, and the job is lost.",
    )
    owner: Literal["user", "account", "name"] = Field(
        default="user", description="Jobs of one owner are expected to resemble each other."
    )
    timeout_s: float = Field(default=10, gt=0, description="Of one of Slurm's commands.")
    default_gpu: str = Field(default="", description="Type of GPUs that have none in Gres.")
    gpu_types: dict[str, GpuKind] = Field(
        default={}, description="speed and price_per_hour of types that are not built in."
    )


class SlurmEngine:
    """Jobs and nodes of one cluster.

    What it knows between steps (ranks of the last decision, ends that were reported) may be lost:
    everything else is read from Slurm, where AdminComment keeps the first submit time of a job.
    """

    def __init__(
        self, commands: SlurmCommands, settings: SlurmSettings, since_s: float | None = None
    ) -> None:
        self.application = settings.cluster
        self._slurm, self._settings = commands, settings
        self._times = StartTimes(settings.start_s, settings.retry_s)
        self._since_s = time.time() if since_s is None else since_s
        self._state = ClusterState(None, {}, {}, ())
        self._history = JobHistory(settings.replan_s)
        self._waiting_since_s: dict[str, float] = {}  # when jobs were first seen waiting
        self._changed: dict[int, Mark] = {}  # by this step

    def observe(self, now_s: float) -> Observation:
        self._now_s, self._changed = now_s, {}
        jobs, nodes = parse_all(self._slurm.jobs(), self._slurm.nodes(), self._settings.owner)
        if not nodes:
            raise InputError(f"{self.application} has no node with GPUs; expected Gres=gpu:...")
        own = self._settings
        self._state = state = cluster_state(
            jobs, nodes, own.gpu_types, own.default_gpu, now_s, self._times
        )
        seen_s = self._waiting_since_s
        self._waiting_since_s = {name: seen_s.get(name, now_s) for name in state.waiting}
        running = frozenset(str(job.id) for job in jobs if RUNNING in job.states)
        started = self._history.note_running(running)
        outcomes = self._outcomes(jobs)
        if state.document is None:
            return Observation(None, None, outcomes=outcomes, started=started, notes=state.notes)
        document = self._history.complete(state.document, now_s)
        digest = (
            self._history.phase,
            tuple((name, tuple(sorted(state.running[name].nodes))) for name in state.running),
            tuple(state.waiting),
            tuple((machine["name"], machine["gpus"]) for machine in document["machines"]),
        )
        return Observation(document, digest, (), outcomes, started, state.notes)

    def commands(self, observation: Observation, decision: Mapping[str, Any]) -> Sequence[Command]:
        """Stops first, then starts, then the begin times of the jobs that wait."""
        state, own = self._state, self._settings
        self._history.note_decision(decision)
        stops = list(decision["stop"])
        starts = {start["job"]: start["placements"] for start in decision["start"]}
        if stops and not own.preempt:
            stops, starts = [], {}  # what it starts may need what it stops: placed in the next step
        found, occupied = list[Command](), set[str]()
        for name in stops:
            job = state.running.get(name)
            if job is None:
                continue  # it has ended or stopped since the decision
            if self._may_stop(job):
                found.append(
                    Command("stop", name, f"stop {name}", partial(self._stop, job), disruptive=True)
                )
            else:
                occupied.update(job.nodes)
        for name, placements in starts.items():
            waiting = state.waiting.get(name)
            where = {str(one["machine"]): int(one["instances"]) for one in placements}
            # One that runs comes back from its stop, and is started then.
            if waiting is None or occupied & where.keys() or self._is_settling(name, waiting):
                continue
            text = ", ".join(f"{machine} x{count}" for machine, count in where.items())
            found.append(
                Command(START, name, f"start {name} on {text}", self._start(waiting, where))
            )
        late = [job for name, job in state.waiting.items() if name not in starts]
        return [*found, *self._put_off(late)]

    def _is_settling(self, name: str, job: SlurmJob) -> bool:
        is_requeued = job.submit_s > job.first_submit_s
        settled_s = self._waiting_since_s[name] + self._settings.settle_s
        return is_requeued and self._now_s < settled_s

    def _may_stop(self, job: SlurmJob) -> bool:
        return job.requeues and not job.constrained and job.states == (RUNNING,)

    def _stop(self, job: SlurmJob) -> None:
        ran_s = job.ran_s + max(self._now_s - job.start_s, 0.0)
        self._set_mark(job, Mark(job.first_submit_s, ran_s))
        self._slurm.requeue(job.id)

    def _start(self, job: SlurmJob, where: Mapping[str, int]) -> Callable[[], None]:
        def run() -> None:
            mark = Mark(job.first_submit_s, job.ran_s, tuple(where.items()))
            self._set_mark(
                job, mark, starttime="now", reqnodelist=",".join(where), numnodes=str(len(where))
            )

        return run

    def _set_mark(self, job: SlurmJob, mark: Mark, **fields: str) -> None:
        self._slurm.update([job.id], **fields, admincomment=mark.text())
        self._changed[job.id] = mark

    def _put_off(self, waiting: Sequence[SlurmJob]) -> list[Command]:
        """Put off begin times that come soon, well before they come."""
        grace_s = self._settings.grace_s
        due = [job for job in waiting if job.eligible_s - self._now_s < grace_s / 2]
        found = list[Command]()
        for job in due:
            if job.mark is None or job.mark.placed or job.required or not job.mark.first_submit_s:
                run = partial(self._put_off_first, job)
                found.append(Command("wait", str(job.id), f"wait {job.id}", run, routine=True))
        again = [job.id for job in due if job.mark is not None and job.mark.first_submit_s
                 and not job.mark.placed and not job.required]  # fmt: skip
        for place in range(0, len(again), 100):
            ids = again[place : place + 100]
            run = partial(self._slurm.update, ids, starttime=f"now+{grace_s:.0f}")
            found.append(Command("wait", f"{ids[0]}...", f"wait {ids}", run, routine=True))
        return found

    def _put_off_first(self, job: SlurmJob) -> None:
        begin = f"now+{self._settings.grace_s:.0f}"
        if job.required:
            self._slurm.update([job.id], reqnodelist="")
        mark = Mark(job.first_submit_s, job.ran_s)
        self._slurm.update([job.id], starttime=begin, admincomment=mark.text())

    def release(self) -> None:
        """Give all jobs that were put off back to Slurm, which orders them by itself."""
        try:
            jobs, _ = parse_all(self._slurm.jobs(), ())
        except SilentError:
            return  # their begin times will pass
        for job in jobs:
            if job.pending and job.mark is not None and not job.constrained:
                try:
                    if job.required:
                        self._slurm.update([job.id], reqnodelist="")
                    self._slurm.update([job.id], starttime="now")
                except (RefusedError, SilentError):
                    continue

    def _outcomes(self, jobs: Sequence[SlurmJob]) -> list[tuple[str, dict[str, Any]]]:
        """Jobs that have completed since the last step."""
        found = list[tuple[str, dict[str, Any]]]()
        for job in jobs:
            done = bool(ENDED & set(job.states)) and COMPLETING not in job.states
            if done and job.end_s >= self._since_s:
                completion_s = job.end_s - job.first_submit_s
                run_s = job.ran_s + max(job.end_s - job.start_s, 0.0)
                name, owner = str(job.id), job.user[:100]
                found += self._history.note_end(job.id, name, owner, completion_s, run_s)
        return found

    def publish(self, observation: Observation, result: StepResult) -> None:
        """Write the reason of a start or a stop into AdminComment of the job."""
        for id, mark in self._changed.items():
            reason = " ".join(f"{result.source}: {result.reason}".split())[:REASON_MAX]
            text = Mark(mark.first_submit_s, mark.ran_s, mark.placed, reason).text()
            try:
                self._slurm.update([id], admincomment=text)
            except RefusedError:
                continue  # ended meanwhile


@contextmanager
def connect(
    settings: SlurmSettings, names: Sequence[str], mode: Mode
) -> Iterator[Callable[[], list[SlurmEngine]]]:
    """Yield a function that lists the cluster; at the end its jobs are given back to Slurm."""
    settings = with_cluster_name(settings, names, "SLURM_CONF")
    engine = SlurmEngine(SlurmCommands(settings.timeout_s), settings)
    try:
        yield lambda: [engine]
    finally:
        if mode == "act":
            engine.release()


SPEC = EngineSpec(
    "slurm",
    ENDPOINT,
    "Order, machines, stops and moves of GPU jobs.",
    SlurmSettings,
    connect,
    by_jobs=True,
    every_s=1.0,
)
