"""Retraining: a job, submitted by name, that trains a policy for what its endpoint sees now.

One at a time for a system, with a pause after each; failures make the pause longer. The clock is
passed in. All it knows goes through `record()`, so that a service that was restarted finds its job
again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import pretrained_folder, read_manifest
from loadmaster.serving.jobs.client import UnknownJobError
from loadmaster.serving.jobs.job import Job
from loadmaster.serving.policies.comparison import BUNDLE, FILE, ComparisonResult, read_comparison
from loadmaster.serving.system import Record

COMMAND = "retrain"
HOUR_S = 3600.0
KEPT = 3  # folders of earlier retrainings, to look into; their bundles were copied if they serve


class RetrainingSettings(Record):
    """How far a retraining may go, and how often one may be."""

    iterations: PositiveInt = 200
    minutes: PositiveFloat = 20.0  # of training; judging comes on top
    sequences: int = Field(default=32, ge=2)  # to judge on
    patience_s: PositiveFloat = 4 * HOUR_S  # a job that takes longer in all is stopped
    cool_down_s: NonNegativeFloat = 6 * HOUR_S  # after one that came to its verdict
    back_off_s: PositiveFloat = 600.0  # after one that failed; doubles with every further one
    back_off_max_s: PositiveFloat = 24 * HOUR_S
    settings: Mapping[str, Any] = Field(
        default_factory=dict
    )  # of `loadmaster train --set`: {"rollouts.workers": 4}


class RetrainingState(Record):
    """A retraining, the latest of its system. Times are in seconds since 1970."""

    job: str  # its id; "": the cluster did not take it
    status: Literal["queued", "running", "failed", "done"]
    submitted_at: float
    why: str
    serving: str  # version of the bundle it began with
    folder: str
    ended_at: float | None = None
    verdict: ComparisonResult | None = None
    error: str | None = None  # why it failed, or why nothing is heard of it at the moment

    @property
    def ended(self) -> bool:
        return self.status in ("failed", "done")

    @property
    def bundle(self) -> str | None:
        """The folder of the new policy, once there is a verdict on it."""
        return str(Path(self.folder) / BUNDLE) if self.verdict is not None else None

    def shown(self) -> dict[str, Any]:
        """For an endpoint's status."""
        return {
            "job": self.job,
            "status": self.status,
            "submitted_at": _iso(self.submitted_at),
            "ended_at": None if self.ended_at is None else _iso(self.ended_at),
            "why": self.why,
            "bundle": self.bundle,
            "verdict": None if self.verdict is None else self.verdict.model_dump(mode="json"),
            "error": self.error,
        }


class RetrainingRecord(Record):
    """What outlives the service."""

    state: RetrainingState | None = None
    failures: NonNegativeInt = 0  # in a row
    next_at: float = 0.0  # none before


class Cluster(Protocol):
    """As much of `Jobs` as is needed here."""

    def submit(
        self, arguments: Sequence[str], *, name: str | None = None, env: Mapping[str, str] | None
    ) -> str: ...
    def get(self, job: str) -> Job: ...
    def list(self) -> list[Job]: ...
    def stop(self, job: str) -> bool: ...


class Retraining:
    """A system's retrainings. Calls block while the cluster answers; one thread at a time."""

    def __init__(
        self,
        system: str,
        cluster: Cluster,
        folder: Path,
        settings: RetrainingSettings | None = None,
        record: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`folder`: for runs and bundles, as the cluster's machines see it too. `record`: what
        `record()` gave. `env`: variables for the job, such as LOADMASTER_DATA."""
        self._system, self._cluster, self._folder = system, cluster, folder.absolute()
        self._settings = settings or RetrainingSettings()
        self._env = dict(env or {})
        self._known = RetrainingRecord.model_validate(dict(record or {}))

    @property
    def state(self) -> RetrainingState | None:
        return self._known.state

    def record(self) -> dict[str, Any]:
        """For a JSON file."""
        return self._known.model_dump(mode="json")

    def refusal(self, now: float) -> str | None:
        """Why no retraining can be asked for now; None: one can."""
        state = self.state
        if state is not None and not state.ended:
            return f"job {state.job} is {state.status} already"
        if now < self._known.next_at:
            after = "failed" if state is not None and state.status == "failed" else "ended"
            return f"the last retraining {after} not long ago; the next may be at " + _iso(
                self._known.next_at
            )
        return None

    def submit(
        self, bundle: Path, environment: Mapping[str, Any], why: str, now: float
    ) -> RetrainingState:
        """Train the policy in that folder further, in an environment with these settings.

        An InputError if that may not be now. A cluster that does not take the job makes a failed
        retraining, to be tried again later.
        """
        if (refusal := self.refusal(now)) is not None:
            raise InputError(f"no retraining of {self._system}: {refusal}")
        version = read_manifest(bundle).version
        wanted = self._arguments(_named(bundle), environment)
        # The same request gets the same folder, and goes on where an earlier attempt ended.
        digest = hashlib.sha256(json.dumps([version, *wanted]).encode()).hexdigest()[:8]
        folder = self._folder / f"{self._system}-{version}-{digest}"
        arguments = [*wanted, "--output", str(folder)]
        begun = RetrainingState(
            job="", status="queued", submitted_at=now, why=why, serving=version, folder=str(folder)
        )
        try:
            job = self._orphan()
            if job is None:
                self._clear_away(but={folder, *bundle.absolute().parents})
                name = f"{COMMAND}-{self._system}"
                begun = _changed(
                    begun, job=self._cluster.submit(arguments, name=name, env=self._env)
                )
            else:
                begun = _changed(begun, job=job.id, folder=_output_of(job))
        except InputError as fault:
            return self._end(_changed(begun, status="failed", error=str(fault)), now)
        return self._keep(begun)

    def poll(self, now: float) -> RetrainingState | None:
        """How the latest one is doing, asked anew while it goes on."""
        state = self.state
        if state is None or state.ended:
            return state
        try:
            job = self._cluster.get(state.job)
            if not job.ended:
                if now - state.submitted_at > self._settings.patience_s:
                    self._cluster.stop(state.job)
                    return self._fail(state, "it took too long and was stopped", now)
                going = "queued" if job.status == "queued" else "running"
                return self._keep(_changed(state, status=going, error=None))
        except UnknownJobError as fault:
            if (Path(state.folder) / FILE).exists():
                return self._done(state, now)
            return self._fail(state, f"{fault}; was the cluster started anew?", now)
        except InputError as fault:  # it may be heard of again
            if now - state.submitted_at > self._settings.patience_s:
                return self._fail(state, str(fault), now)
            return self._keep(_changed(state, error=str(fault)))
        if job.status == "succeeded":
            return self._done(state, now)
        return self._fail(state, "\n".join([f"the job {job.ending}", *job.last_lines()]), now)

    def _arguments(self, bundle: str, environment: Mapping[str, Any]) -> list[str]:
        limits = self._settings
        values = {f"environment.{name}": value for name, value in environment.items()}
        values |= limits.settings
        return [
            COMMAND, self._system, "--from", bundle,
            "--iterations", str(limits.iterations), "--minutes", f"{limits.minutes:g}",
            "--seeds", str(limits.sequences),
            *(part for name in sorted(values) for part in ("--set", _assigned(name, values[name]))),
        ]  # fmt: skip

    def _orphan(self) -> Job | None:
        """A job of ours that goes on though we know nothing of it: the service died just then."""
        for job in self._cluster.list():
            ours = shlex.split(job.command)[:2] == [COMMAND, self._system]
            if ours and not job.ended and Path(_output_of(job)).parent == self._folder:
                return job
        return None

    def _clear_away(self, but: set[Path]) -> None:
        """The oldest folders, while no job is at work in any of them."""
        ours = [each for each in self._folder.glob(f"{self._system}-*-*") if each not in but]
        ours.sort(key=lambda each: each.stat().st_mtime)
        for each in ours[: max(0, len(ours) - KEPT)]:
            shutil.rmtree(each, ignore_errors=True)

    def _done(self, state: RetrainingState, now: float) -> RetrainingState:
        try:
            verdict = read_comparison(Path(state.folder))
            read_manifest(Path(state.folder) / BUNDLE)
        except InputError as fault:
            return self._fail(state, str(fault), now)
        return self._end(_changed(state, status="done", verdict=verdict, error=None), now)

    def _fail(self, state: RetrainingState, error: str, now: float) -> RetrainingState:
        return self._end(_changed(state, status="failed", error=error), now)

    def _end(self, state: RetrainingState, now: float) -> RetrainingState:
        limits = self._settings
        failures = self._known.failures + 1 if state.status == "failed" else 0
        pause = limits.cool_down_s
        if failures:
            pause = min(limits.back_off_max_s, limits.back_off_s * 2.0 ** min(failures - 1, 32))
        ended = _changed(state, ended_at=now)
        self._known = RetrainingRecord(state=ended, failures=failures, next_at=now + pause)
        return ended

    def _keep(self, state: RetrainingState) -> RetrainingState:
        self._known = self._known.model_copy(update={"state": state})
        return state


def _changed(state: RetrainingState, **values: Any) -> RetrainingState:
    return state.model_copy(update=values)


def _named(bundle: Path) -> str:
    """One that ships by its name: the cluster's machines may have it elsewhere."""
    inside = bundle.resolve().parent == pretrained_folder().resolve()
    return bundle.name if inside else str(bundle.absolute())


def _assigned(name: str, value: Any) -> str:
    """For --set, which reads YAML, as JSON is."""
    return f"{name}={json.dumps(value)}"


def _output_of(job: Job) -> str:
    words = shlex.split(job.command)
    return words[words.index("--output") + 1] if "--output" in words[:-1] else ""


def _iso(time_s: float) -> str:
    """To the second: a job takes minutes."""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat(timespec="seconds")
