"""Retraining jobs: train a policy on a cluster, for the present inputs of its endpoint.

A system has one job at a time, with a pause after each that grows with failures. Times are passed
in. `record()` has the whole state, so that a restarted service finds its job again.
"""

import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_text_file, private_folder
from loadmaster.models.manifest import pretrained_folder, read_manifest
from loadmaster.serving.decisions.request import iso
from loadmaster.serving.jobs.client import UnknownJobError
from loadmaster.serving.jobs.job import Job
from loadmaster.serving.policies.comparison import (
    BUNDLE_FOLDER,
    COMPARISON_FILE,
    ComparisonResult,
    read_comparison,
)
from loadmaster.serving.system import Record, RecordedInput

COMMAND = "retrain"
HOUR_S = 3600.0
INPUTS = "inputs"  # prefix of the folders with recorded input
KEPT_FOLDERS = 3  # of earlier retrainings; serving bundles are copies


class RetrainingSettings(Record):
    """Limits of a retraining, and pauses between them."""

    iterations: PositiveInt = 200
    minutes: PositiveFloat = 20.0  # of training, without the comparison
    sequences: int = Field(default=32, ge=2)  # of the comparison
    patience_s: PositiveFloat = 4 * HOUR_S  # a longer job is stopped
    cool_down_s: NonNegativeFloat = 6 * HOUR_S  # after a finished job
    back_off_s: PositiveFloat = 600.0  # after a failed job; doubles with each further failure
    back_off_max_s: PositiveFloat = 24 * HOUR_S
    # Those of `loadmaster train --set`: {"rollouts.workers": 4}
    settings: Mapping[str, Any] = Field(default_factory=dict)


class RetrainingState(Record):
    """The latest retraining of a system. Times are in seconds since 1970."""

    job: str  # id; "": the cluster did not accept it
    status: Literal["queued", "running", "failed", "done"]
    submitted_at: float
    why: str
    serving: str  # version of the initial bundle
    folder: str
    ended_at: float | None = None
    comparison: ComparisonResult | None = None
    error: str | None = None  # why it failed, or why it cannot be polled now

    @property
    def ended(self) -> bool:
        return self.status in ("failed", "done")

    @property
    def bundle(self) -> str | None:
        """Folder of the new policy, once it has been compared."""
        return str(Path(self.folder) / BUNDLE_FOLDER) if self.comparison is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return the state for an endpoint's status."""
        return {
            "job": self.job,
            "status": self.status,
            "submitted_at": iso(self.submitted_at, "seconds"),
            "ended_at": None if self.ended_at is None else iso(self.ended_at, "seconds"),
            "why": self.why,
            "bundle": self.bundle,
            "verdict": None if self.comparison is None else self.comparison.model_dump(mode="json"),
            "error": self.error,
        }


class RetrainingRecord(Record):
    """Persistent state."""

    state: RetrainingState | None = None
    failures: NonNegativeInt = 0  # in a row
    next_at: float = 0.0  # earliest time of the next


class Cluster(Protocol):
    """The part of `Jobs` that is used here."""

    def submit(self, arguments: Sequence[str], *, name: str | None = None) -> str: ...
    def get(self, job: str) -> Job: ...
    def list(self) -> list[Job]: ...
    def stop(self, job: str) -> bool: ...


class Retraining:
    """Retrainings of a system. Calls block, and must come from one thread at a time."""

    def __init__(
        self,
        system: str,
        cluster: Cluster,
        folder: Path,
        settings: RetrainingSettings | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """`folder`: for runs and bundles, shared with the cluster. `record`: from `record()`."""
        self._system, self._cluster, self._folder = system, cluster, folder.absolute()
        self._settings = settings or RetrainingSettings()
        self._known = RetrainingRecord.model_validate(dict(record or {}))

    @property
    def state(self) -> RetrainingState | None:
        return self._known.state

    def record(self) -> dict[str, Any]:
        """Return the complete state for JSON."""
        return self._known.model_dump(mode="json")

    def blocked_reason(self, now: float) -> str | None:
        """Why no retraining can be submitted now; None: one can."""
        state = self.state
        if state is not None and not state.ended:
            return f"job {state.job} is {state.status} already"
        if now < self._known.next_at:
            after = "failed" if state is not None and state.status == "failed" else "ended"
            next_at = iso(self._known.next_at, "seconds")
            return f"the last retraining {after} recently; next at {next_at}"
        return None

    def submit(
        self,
        bundle: Path,
        environment: Mapping[str, Any],
        why: str,
        now: float,
        recorded: RecordedInput | None = None,
    ) -> RetrainingState:
        """Submit a job that trains the bundle further in an environment with these settings.

        Files of `recorded` are written beside the folder of the job. Raises InputError if none can
        be submitted now. If the cluster does not accept the job, the retraining counts as failed.
        """
        if (blocked := self.blocked_reason(now)) is not None:
            raise InputError(f"no retraining of {self._system}: {blocked}")
        version = read_manifest(bundle).version
        settings = {f"environment.{name}": value for name, value in environment.items()}
        inputs = self._folder / f"{INPUTS}-{self._system}-{_digest(recorded and recorded.files)}"
        if recorded is not None:
            settings |= _with_paths(recorded, inputs)
        request = self._arguments(_bundle_spec(bundle), settings)
        # The same request gets the same folder, and resumes an earlier attempt there.
        folder = self._folder / f"{self._system}-{version}-{_digest([version, *request])}"
        arguments = [*request, "--output", str(folder)]
        state = RetrainingState(
            job="", status="queued", submitted_at=now, why=why, serving=version, folder=str(folder)
        )
        try:
            job = self._orphan()
            if job is not None:
                return self._update(state, job=job.id, folder=_output_of(job))
            private_folder(self._folder)  # the job may run with another umask
            self._delete_old_folders(but={folder, inputs, *bundle.absolute().parents})
            for file, content in recorded.files.items() if recorded is not None else ():
                private_folder(inputs)
                with atomic_text_file(inputs / file) as written:
                    written.write(content)
            name = f"{COMMAND}-{self._system}"
            return self._update(state, job=self._cluster.submit(arguments, name=name))
        except (InputError, OSError) as fault:
            return self._fail(state, str(fault), now)

    def poll(self, now: float) -> RetrainingState | None:
        """Return the state of the latest retraining, updated from the cluster while it runs."""
        state = self.state
        if state is None or state.ended:
            return state
        try:
            job = self._cluster.get(state.job)
            if not job.ended:
                if now - state.submitted_at > self._settings.patience_s:
                    self._cluster.stop(state.job)
                    return self._fail(state, f"stopped after {self._settings.patience_s:g} s", now)
                status = "queued" if job.status == "queued" else "running"
                return self._update(state, status=status, error=None)
        except UnknownJobError as fault:
            if (Path(state.folder) / COMPARISON_FILE).exists():
                return self._done(state, now)
            return self._fail(state, f"{fault}; was the cluster restarted?", now)
        except InputError as fault:  # perhaps only for now
            if now - state.submitted_at > self._settings.patience_s:
                return self._fail(state, str(fault), now)
            return self._update(state, error=str(fault))
        if job.status == "succeeded":
            return self._done(state, now)
        return self._fail(state, "\n".join([f"the job {job.ending}", *job.last_lines()]), now)

    def _arguments(self, bundle: str, settings: Mapping[str, Any]) -> list[str]:
        limits = self._settings
        values = {**settings, **limits.settings}
        assignments = [assignment(name, values[name]) for name in sorted(values)]
        return [
            COMMAND, self._system, "--from", bundle,
            "--iterations", str(limits.iterations), "--minutes", f"{limits.minutes:g}",
            "--seeds", str(limits.sequences),
            *(part for each in assignments for part in ("--set", each)),
        ]  # fmt: skip

    def _orphan(self) -> Job | None:
        """Find a running job that is not recorded: the service died after submitting it."""
        for job in self._cluster.list():
            ours = shlex.split(job.command)[:2] == [COMMAND, self._system]
            if ours and not job.ended and Path(_output_of(job)).parent == self._folder:
                return job
        return None

    def _delete_old_folders(self, but: set[Path]) -> None:
        """Delete the oldest folders. Called while no job uses any of them."""
        ours = [each for each in self._folder.glob(f"{self._system}-*-*") if each not in but]
        ours.sort(key=lambda each: each.stat().st_mtime)
        unused = self._folder.glob(f"{INPUTS}-{self._system}-*")
        inputs = [each for each in unused if each not in but]
        for each in [*ours[: max(0, len(ours) - KEPT_FOLDERS)], *inputs]:
            shutil.rmtree(each, ignore_errors=True)

    def _done(self, state: RetrainingState, now: float) -> RetrainingState:
        try:
            comparison = read_comparison(Path(state.folder))
            read_manifest(Path(state.folder) / BUNDLE_FOLDER)
        except InputError as fault:
            return self._fail(state, str(fault), now)
        self._known = RetrainingRecord(next_at=now + self._settings.cool_down_s)
        return self._update(state, status="done", comparison=comparison, error=None, ended_at=now)

    def _fail(self, state: RetrainingState, error: str, now: float) -> RetrainingState:
        limits, failures = self._settings, self._known.failures + 1
        pause = min(limits.back_off_max_s, limits.back_off_s * 2.0 ** min(failures - 1, 32))
        self._known = RetrainingRecord(failures=failures, next_at=now + pause)
        return self._update(state, status="failed", error=error, ended_at=now)

    def _update(self, state: RetrainingState, **changes: Any) -> RetrainingState:
        changed = state.model_copy(update=changes)
        self._known = self._known.model_copy(update={"state": changed})
        return changed


def _bundle_spec(bundle: Path) -> str:
    """The name of a pretrained bundle, whose path may differ on the cluster; else the path."""
    inside = bundle.resolve().parent == pretrained_folder().resolve()
    return bundle.name if inside else str(bundle.absolute())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def _with_paths(recorded: RecordedInput, folder: Path) -> dict[str, Any]:
    """The settings, with paths in place of the names of files, also in lists."""

    def located(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [located(one) for one in value]
        known = isinstance(value, str) and value in recorded.files
        return str(folder / value) if known else value

    return {name: located(value) for name, value in recorded.settings.items()}


def assignment(name: str, value: Any) -> str:
    """An argument of --set, whose values are YAML; JSON is a subset."""
    return f"{name}={json.dumps(value)}"


def _output_of(job: Job) -> str:
    words = shlex.split(job.command)
    return words[words.index("--output") + 1] if "--output" in words[:-1] else ""
