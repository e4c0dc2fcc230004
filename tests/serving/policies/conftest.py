"""A cluster without processes, and the files of finished retrainings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.serving.jobs.client import UnknownJobError
from loadmaster.serving.jobs.job import Job
from loadmaster.serving.policies import comparison as comparisons
from tests.serving import toy


def comparison(better: bool = True) -> comparisons.ComparisonResult:
    score = {"name": "x", "version": "0" * 12, "folder": "/x", "mean": 90.0, "ci95": [80.0, 100.0]}
    return comparisons.ComparisonResult.model_validate({
        "system": "toy", "metric": "jct", "unit": "s", "lower_is_better": True, "sequences": 32,
        "first_seed": 900_000_012, "environment": {}, "candidate": score, "serving": score,
        "difference_percent": -12.5, "ci95": [-15.0, -10.0], "better": better,
    })  # fmt: skip


class FakeCluster:
    """A cluster whose jobs are changed by tests."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.fault: InputError | None = None
        self.stopped: list[str] = []

    def submit(self, arguments: Sequence[str], *, name: str | None = None) -> str:
        job = f"{name}-{len(self.list()) + 1}"
        command = shlex.join(arguments)
        self.jobs[job] = Job(job, "queued", command, "/runs", 0.0, None, None, "")
        return job

    def list(self) -> list[Job]:
        if self.fault is not None:
            raise self.fault
        return list(self.jobs.values())

    def get(self, job: str) -> Job:
        self.list()
        if job not in self.jobs:
            raise UnknownJobError(f"the cluster has no job {job!r}")
        return self.jobs[job]

    def stop(self, job: str) -> bool:
        self.stopped.append(job)
        return True

    def words(self) -> list[str]:
        """Command of the latest job."""
        return shlex.split(list(self.jobs.values())[-1].command)

    def change(self, **values: Any) -> None:
        """Change the latest job."""
        job, latest = list(self.jobs.items())[-1]
        self.jobs[job] = replace(latest, **values)

    def write_result(self, better: bool = True, does: str = "follows", extra: int = 0) -> None:
        """Write the files of the latest job."""
        words = self.words()
        folder = Path(words[words.index("--output") + 1])
        if not (folder / comparisons.BUNDLE_FOLDER).exists():
            toy.make_bundle(folder / comparisons.BUNDLE_FOLDER, "retrained", does, extra)
        (folder / comparisons.COMPARISON_FILE).write_text(comparison(better).model_dump_json())

    def finish(self, **result: Any) -> None:
        self.write_result(**result)
        self.change(status="succeeded")


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()
