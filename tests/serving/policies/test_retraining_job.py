"""Retraining jobs: their command, polling, pauses, faults and persistence."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import parse_assignments
from loadmaster.serving.jobs.client import UnknownJobError, UnreachableError
from loadmaster.serving.jobs.job import Job
from loadmaster.serving.policies.comparison import (
    COMPARISON_FILE,
    ComparisonResult,
    read_comparison,
)
from loadmaster.serving.policies.retraining_job import (
    Retraining,
    RetrainingSettings,
    RetrainingState,
    assignment,
)
from tests.bundles import make_bundle

HOUR_S = 3600.0
LIMITS = RetrainingSettings(
    cool_down_s=6 * HOUR_S, back_off_s=600, back_off_max_s=2000, patience_s=HOUR_S
)
SHIFTED = {"interarrival_s": 12.5, "arrivals": "poisson", "executors": 40}
UNREACHABLE = UnreachableError("no Ray cluster answers")


class FakeCluster:
    """A cluster whose jobs are changed by tests."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.fault: InputError | None = None
        self.env: Mapping[str, str] | None = None
        self.stopped: list[str] = []

    def submit(
        self, arguments: Sequence[str], *, name: str | None = None, env: Mapping[str, str] | None
    ) -> str:
        self.list()
        self.env = env
        job = f"loadmaster-{name}-{len(self.jobs)}"
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


def comparison(better: bool = True) -> ComparisonResult:
    score = {"version": "0" * 12, "folder": "/x", "mean": 90.0, "ci95": [80.0, 100.0]}
    return ComparisonResult.model_validate({
        "system": "decima", "metric": "jct", "unit": "s", "lower_is_better": True, "sequences": 32,
        "first_seed": 900_000_012, "environment": SHIFTED,
        "candidate": {"name": "new", **score}, "serving": {"name": "old", **score},
        "difference_percent": -7.5, "ci95": [-9.0, -6.0], "better": better,
    })  # fmt: skip


def finish(folder: str, better: bool = True) -> None:
    """Write the files of a finished job."""
    if not (Path(folder) / "bundle").exists():
        make_bundle(Path(folder) / "bundle")
    (Path(folder) / COMPARISON_FILE).write_text(comparison(better).model_dump_json())


class Setup:
    """A Retraining with its cluster, bundle and folder."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.cluster, self.bundle, self.folder = FakeCluster(), bundle, folder
        self.retraining = self.another()

    def another(
        self, system: str = "decima", subfolder: str = "", record: Any = None
    ) -> Retraining:
        return Retraining(system, self.cluster, self.folder / subfolder, LIMITS, record)

    def submit(
        self, environment: Mapping[str, Any] | None = None, now: float = 0.0, why: str = "drift"
    ) -> RetrainingState:
        return self.retraining.submit(self.bundle, environment or {}, why, now)

    def command(self, state: RetrainingState) -> str:
        return self.cluster.jobs[state.job].command

    def poll(self, now: float, **changes: Any) -> RetrainingState:
        """Change the current job and poll it."""
        state = self.retraining.state
        assert state is not None
        if changes:
            self.cluster.jobs[state.job] = replace(self.cluster.jobs[state.job], **changes)
        polled = self.retraining.poll(now)
        assert polled is not None
        return polled

    def succeed(self, now: float, better: bool = True) -> RetrainingState:
        state = self.retraining.state
        assert state is not None
        finish(state.folder, better)
        return self.poll(now, status="succeeded")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundles") / "mine")


@pytest.fixture
def setup(bundle: Path, tmp_path: Path) -> Setup:
    return Setup(bundle, tmp_path)


def test_submit_runs_the_retrain_command(setup: Setup) -> None:
    state = setup.submit(SHIFTED, now=100.0, why="reward fell")
    assert (state.status, state.submitted_at, state.why) == ("queued", 100.0, "reward fell")
    words = shlex.split(setup.command(state))
    assert words[:4] == ["retrain", "decima", "--from", str(setup.bundle)]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--output"] == state.folder
    limits = [options[name] for name in ("--iterations", "--minutes", "--seeds")]
    assert limits == ["200", "20", "32"]
    given = [value for option, value in pairwise(words) if option == "--set"]
    assert parse_assignments(given) == {"environment": SHIFTED}


def test_settings_and_variables_reach_the_job(setup: Setup) -> None:
    settings = RetrainingSettings(iterations=3, minutes=0.5, settings={"rollouts.workers": 4})
    env = {"LOADMASTER_DATA": "/traces"}
    retraining = Retraining("decima", setup.cluster, setup.folder, settings, env=env)
    command = setup.command(retraining.submit(setup.bundle, {}, "", 0.0))
    assert "--iterations 3 --minutes 0.5" in command
    assert "--set rollouts.workers=4" in command
    assert setup.cluster.env == env


def test_pretrained_bundle_is_passed_by_name(setup: Setup, root: Path) -> None:
    setup.bundle = root / "models" / "pretrained" / "decima-stream"
    assert "--from decima-stream" in setup.command(setup.submit())


def test_poll_follows_the_job_to_its_comparison(setup: Setup) -> None:
    assert setup.retraining.poll(0.0) is None
    setup.submit(SHIFTED, now=10.0)
    for status in ("queued", "running"):
        polled = setup.poll(20.0, status=status)
        assert (polled.status, polled.bundle, polled.ended) == (status, None, False)
    done = setup.succeed(30.0)
    assert (done.status, done.ended_at, done.error) == ("done", 30.0, None)
    assert done.comparison == comparison()
    assert done.bundle == str(Path(done.folder) / "bundle")
    shown = json.loads(json.dumps(done.as_json()))
    assert shown["submitted_at"] == "1970-01-01T00:00:10+00:00"
    assert shown["verdict"]["better"] is True
    setup.cluster.jobs.clear()
    assert setup.poll(40.0) == done


def test_second_submit_is_refused_while_a_job_runs(setup: Setup) -> None:
    assert setup.retraining.blocked_reason(0.0) is None
    job = setup.submit().job
    with pytest.raises(InputError, match=job):
        setup.submit(now=1.0)
    assert len(setup.cluster.jobs) == 1


def test_cool_down_after_a_finished_job(setup: Setup) -> None:
    setup.submit()
    setup.succeed(50.0, better=False)
    blocked = setup.retraining.blocked_reason(50.0 + LIMITS.cool_down_s - 1)
    assert "1970-01-01T06:00:50+00:00" in (blocked or "")
    assert setup.retraining.blocked_reason(50.0 + LIMITS.cool_down_s) is None


def test_failures_lengthen_the_pause(setup: Setup) -> None:
    now, pauses = 0.0, []
    message = "x last available logs (truncated to 20,000 chars):\nerror: no such workload\n"
    for _ in range(4):
        setup.submit(now=now)
        failed = setup.poll(now, status="failed", exit_code=2, message=message)
        assert failed.status == "failed"
        assert failed.error == "the job failed (exit code 2)\nerror: no such workload"
        pause = 0.0
        while setup.retraining.blocked_reason(now + pause) is not None:
            pause += 100.0
        pauses.append(pause)
        now += pause
    assert pauses == [600.0, 1200.0, 2000.0, 2000.0]
    setup.submit(now=now)
    setup.succeed(now)
    assert setup.retraining.record()["failures"] == 0


def test_same_request_reuses_its_folder(setup: Setup) -> None:
    first = setup.submit(SHIFTED)
    assert setup.poll(0.0, status="stopped").error == "the job was stopped"
    again = setup.submit(SHIFTED, now=HOUR_S)
    assert again.folder == first.folder
    assert again.job != first.job
    setup.poll(HOUR_S, status="failed")
    other = setup.submit({**SHIFTED, "executors": 41}, now=2 * HOUR_S)
    assert other.folder != first.folder


def test_old_folders_are_deleted(setup: Setup) -> None:
    """Except the latest three, the one in use, and those of other systems."""
    other = setup.folder / "das-0123-4567"
    other.mkdir()
    folders = []
    for number in range(7):
        state = setup.submit({"executors": 10 + number}, now=number * 1e6)
        folders.append(Path(state.folder))
        setup.succeed(number * 1e6 + 60)
        os.utime(state.folder, (number, number))
    left = {each for each in folders if each.exists()}
    assert left == set(folders[-4:])
    again = setup.submit({"executors": 13}, now=1e9)
    assert Path(again.folder) == folders[3]
    assert {each for each in folders if each.exists()} == left
    assert other.exists()


def test_refused_job_counts_as_failed(setup: Setup) -> None:
    setup.cluster.fault = UNREACHABLE
    state = setup.submit(now=5.0)
    assert (state.job, state.status, state.error) == ("", "failed", str(UNREACHABLE))
    assert setup.retraining.blocked_reason(6.0) is not None
    assert setup.poll(6.0) == state


def test_unreachable_cluster_is_polled_until_the_limit(setup: Setup) -> None:
    setup.submit()
    setup.cluster.fault = UNREACHABLE
    polled = setup.poll(10.0, status="running")
    assert (polled.status, polled.error) == ("queued", str(UNREACHABLE))
    setup.cluster.fault = None
    polled = setup.poll(20.0)
    assert (polled.status, polled.error) == ("running", None)
    setup.cluster.fault = UNREACHABLE
    assert setup.poll(LIMITS.patience_s + 1).status == "failed"


def test_long_job_is_stopped(setup: Setup) -> None:
    state = setup.submit()
    ended = setup.poll(LIMITS.patience_s + 1)
    assert (ended.status, ended.error) == ("failed", "stopped after 3600 s")
    assert setup.cluster.stopped == [state.job]


@pytest.mark.parametrize("finished", [False, True])
def test_job_unknown_to_the_cluster_ends_by_its_files(finished: bool, setup: Setup) -> None:
    state = setup.submit()
    if finished:
        finish(state.folder)
    setup.cluster.jobs.clear()
    assert setup.poll(10.0).status == ("done" if finished else "failed")


TEXT = comparison().model_dump_json()


@pytest.mark.parametrize(
    ("written", "part"),
    [
        (None, "verdict.json"),
        (TEXT[: len(TEXT) // 2], "damaged"),
        (TEXT.replace("-7.5", "NaN"), "difference_percent"),
        (TEXT, "bundle does not exist"),
    ],
)
def test_damaged_result_fails_the_retraining(written: str | None, part: str, setup: Setup) -> None:
    folder = Path(setup.submit().folder)
    if written is not None:
        folder.mkdir()
        (folder / COMPARISON_FILE).write_text(written)
    ended = setup.poll(10.0, status="succeeded")
    assert ended.status == "failed"
    assert part in (ended.error or "")


def test_missing_bundle_is_refused(setup: Setup) -> None:
    setup.bundle = setup.folder / "nothing"
    with pytest.raises(InputError, match="does not exist"):
        setup.submit()
    assert setup.retraining.state is None


def test_restored_retraining_continues(setup: Setup) -> None:
    state = setup.submit(SHIFTED)
    setup.retraining = setup.another(record=json.loads(json.dumps(setup.retraining.record())))
    assert setup.retraining.state == state
    done = setup.succeed(30.0)
    third = setup.another(record=json.loads(json.dumps(setup.retraining.record())))
    assert third.state == done
    assert third.blocked_reason(31.0) is not None


def test_unrecorded_job_is_adopted(setup: Setup) -> None:
    first = setup.submit(SHIFTED)
    found = setup.another().submit(setup.bundle, {"executors": 12}, "drift", 5.0)
    assert (found.job, found.folder) == (first.job, first.folder)
    for other in (setup.another(subfolder="other"), setup.another(system="das")):
        assert other.submit(setup.bundle, {}, "", 5.0).job != first.job


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1e-7, 3, True, None, "1e5"])))
def test_assignments_round_trip(environment: dict[str, Any]) -> None:
    given = [assignment(f"environment.{name}", value) for name, value in environment.items()]
    read = parse_assignments(given).get("environment", {})
    for name, value in environment.items():
        assert type(value)(read[name]) == value if value is not None else read[name] is None


def test_comparison_with_unknown_field_is_refused(tmp_path: Path) -> None:
    record = comparison().model_dump(mode="json")
    (tmp_path / COMPARISON_FILE).write_text(json.dumps({**record, "surplus": 1}))
    with pytest.raises(InputError, match="surplus"):
        read_comparison(tmp_path)
