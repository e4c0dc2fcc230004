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
from loadmaster.serving.policies.comparison import FILE, ComparisonResult, read_comparison
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


class FakeCluster:
    """A cluster whose jobs change by `turn`."""

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

    def turn(self, job: str, **changed: Any) -> None:
        self.jobs[job] = replace(self.jobs[job], **changed)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundles") / "mine")


@pytest.fixture
def retraining(cluster: FakeCluster, tmp_path: Path) -> Retraining:
    return Retraining("decima", cluster, tmp_path, LIMITS)


def comparison(better: bool = True) -> ComparisonResult:
    score = {"version": "0" * 12, "folder": "/x", "mean": 90.0, "ci95": [80.0, 100.0]}
    return ComparisonResult.model_validate({
        "system": "decima", "metric": "jct", "unit": "s", "lower_is_better": True, "sequences": 32,
        "first_seed": 900_000_012, "environment": SHIFTED,
        "candidate": {"name": "new", **score}, "serving": {"name": "old", **score},
        "difference_percent": -7.5, "ci95": [-9.0, -6.0], "better": better,
    })  # fmt: skip


def poll(retraining: Retraining, now: float) -> RetrainingState:
    state = retraining.poll(now)
    assert state is not None
    return state


def finish(folder: str, better: bool = True) -> None:
    """Write the files of a finished job."""
    if not (Path(folder) / "bundle").exists():
        make_bundle(Path(folder) / "bundle")
    (Path(folder) / FILE).write_text(comparison(better).model_dump_json())


def test_submit_runs_the_retrain_command(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    state = retraining.submit(bundle, SHIFTED, "reward fell", now=100.0)
    assert (state.status, state.submitted_at, state.why) == ("queued", 100.0, "reward fell")
    words = shlex.split(cluster.jobs[state.job].command)
    assert words[:4] == ["retrain", "decima", "--from", str(bundle)]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--output"] == state.folder
    bounds = [options[name] for name in ("--iterations", "--minutes", "--seeds")]
    assert bounds == ["200", "20", "32"]
    given = [value for option, value in pairwise(words) if option == "--set"]
    assert parse_assignments(given) == {"environment": SHIFTED}


def test_settings_and_variables_reach_the_job(
    cluster: FakeCluster, bundle: Path, tmp_path: Path
) -> None:
    more = RetrainingSettings(iterations=3, minutes=0.5, settings={"rollouts.workers": 4})
    retraining = Retraining("decima", cluster, tmp_path, more, env={"LOADMASTER_DATA": "/traces"})
    command = cluster.jobs[retraining.submit(bundle, {}, "", 0.0).job].command
    assert "--iterations 3 --minutes 0.5" in command
    assert "--set rollouts.workers=4" in command
    assert cluster.env == {"LOADMASTER_DATA": "/traces"}


def test_pretrained_bundle_is_passed_by_name(
    retraining: Retraining, cluster: FakeCluster, root: Path
) -> None:
    shipped = root / "models" / "pretrained" / "decima-stream"
    state = retraining.submit(shipped, {}, "", 0.0)
    assert "--from decima-stream" in cluster.jobs[state.job].command


def test_poll_follows_the_job_to_its_comparison(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    assert retraining.poll(0.0) is None
    job = retraining.submit(bundle, SHIFTED, "drift", now=10.0).job
    seen = []
    for status in ("queued", "running"):
        cluster.turn(job, status=status)
        polled = poll(retraining, 20.0)
        seen.append((polled.status, polled.bundle, polled.ended))
    assert seen == [("queued", None, False), ("running", None, False)]
    cluster.turn(job, status="succeeded")
    finish(polled.folder)
    done = poll(retraining, 30.0)
    assert (done.status, done.ended_at, done.error) == ("done", 30.0, None)
    assert done.verdict == comparison()
    assert done.bundle == str(Path(done.folder) / "bundle")
    shown = json.loads(json.dumps(done.as_json()))
    assert shown["submitted_at"] == "1970-01-01T00:00:10+00:00"
    assert shown["verdict"]["better"] is True
    cluster.jobs.clear()
    assert retraining.poll(40.0) == done


def test_second_submit_is_refused_while_a_job_runs(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    assert retraining.blocked_reason(0.0) is None
    job = retraining.submit(bundle, {}, "", 0.0).job
    with pytest.raises(InputError, match=job):
        retraining.submit(bundle, {}, "", 1.0)
    assert len(cluster.jobs) == 1


def test_cool_down_after_a_finished_job(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    state = retraining.submit(bundle, {}, "", 0.0)
    finish(state.folder, better=False)
    cluster.turn(state.job, status="succeeded")
    retraining.poll(50.0)
    blocked = retraining.blocked_reason(50.0 + LIMITS.cool_down_s - 1)
    assert "1970-01-01T06:00:50+00:00" in (blocked or "")
    assert retraining.blocked_reason(50.0 + LIMITS.cool_down_s) is None


def test_failures_lengthen_the_pause(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    now, pauses = 0.0, []
    for _ in range(4):
        job = retraining.submit(bundle, {}, "", now).job
        message = "x last available logs (truncated to 20,000 chars):\nerror: no such workload\n"
        cluster.turn(job, status="failed", exit_code=2, message=message)
        failed = poll(retraining, now)
        assert failed.status == "failed"
        assert failed.error == "the job failed (exit code 2)\nerror: no such workload"
        pause = 0.0
        while retraining.blocked_reason(now + pause) is not None:
            pause += 100.0
        pauses.append(pause)
        now += pause
    assert pauses == [600.0, 1200.0, 2000.0, 2000.0]
    state = retraining.submit(bundle, {}, "", now)
    finish(state.folder)
    cluster.turn(state.job, status="succeeded")
    retraining.poll(now)
    assert retraining.record()["failures"] == 0


def test_same_request_reuses_its_folder(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    first = retraining.submit(bundle, SHIFTED, "", 0.0)
    cluster.turn(first.job, status="stopped")
    assert poll(retraining, 0.0).error == "the job was stopped"
    again = retraining.submit(bundle, SHIFTED, "", HOUR_S)
    assert again.folder == first.folder
    assert again.job != first.job
    cluster.turn(again.job, status="failed")
    retraining.poll(HOUR_S)
    other = retraining.submit(bundle, {**SHIFTED, "executors": 41}, "", 2 * HOUR_S)
    assert other.folder != first.folder


def test_old_folders_are_deleted(
    retraining: Retraining, cluster: FakeCluster, bundle: Path, tmp_path: Path
) -> None:
    """Except the latest three, the one in use, and those of other systems."""
    (tmp_path / "das-0123-4567").mkdir()
    folders = []
    for number in range(7):
        state = retraining.submit(bundle, {"executors": 10 + number}, "", now=number * 1e6)
        folders.append(Path(state.folder))
        finish(state.folder)
        os.utime(state.folder, (number, number))
        cluster.turn(state.job, status="succeeded")
        retraining.poll(number * 1e6 + 60)
    left = {each for each in folders if each.exists()}
    assert left == set(folders[-4:])
    again = retraining.submit(bundle, {"executors": 13}, "", now=1e9)
    assert Path(again.folder) == folders[3]
    assert {each for each in folders if each.exists()} == left
    assert (tmp_path / "das-0123-4567").exists()


def test_refused_job_counts_as_failed(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    cluster.fault = UnreachableError("no Ray cluster answers")
    state = retraining.submit(bundle, {}, "drift", 5.0)
    assert (state.job, state.status, state.error) == ("", "failed", "no Ray cluster answers")
    assert retraining.blocked_reason(6.0) is not None
    assert retraining.poll(6.0) == state


def test_unreachable_cluster_is_polled_until_the_limit(
    retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    state = retraining.submit(bundle, {}, "", 0.0)
    cluster.turn(state.job, status="running")
    cluster.fault = UnreachableError("no Ray cluster answers")
    silent = poll(retraining, 10.0)
    assert (silent.status, silent.error) == ("queued", "no Ray cluster answers")
    cluster.fault = None
    found = poll(retraining, 20.0)
    assert (found.status, found.error) == ("running", None)
    cluster.fault = UnreachableError("no Ray cluster answers")
    lost = poll(retraining, LIMITS.patience_s + 1)
    assert lost.status == "failed"


def test_long_job_is_stopped(retraining: Retraining, cluster: FakeCluster, bundle: Path) -> None:
    state = retraining.submit(bundle, {}, "", 0.0)
    ended = poll(retraining, LIMITS.patience_s + 1)
    assert (ended.status, ended.error) == ("failed", "stopped after 3600 s")
    assert cluster.stopped == [state.job]


@pytest.mark.parametrize("finished", [False, True])
def test_job_unknown_to_the_cluster_ends_by_its_files(
    finished: bool, retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    state = retraining.submit(bundle, {}, "", 0.0)
    if finished:
        finish(state.folder)
    cluster.jobs.clear()
    ended = poll(retraining, 10.0)
    assert ended.status == ("done" if finished else "failed")


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("no verdict", "verdict.json"),
        ("half a verdict", "damaged"),
        ("not a number", "difference_percent"),
        ("no bundle", "bundle does not exist"),
    ],
)
def test_damaged_result_fails_the_retraining(
    damage: str, part: str, retraining: Retraining, cluster: FakeCluster, bundle: Path
) -> None:
    state = retraining.submit(bundle, {}, "", 0.0)
    folder = Path(state.folder)
    text = comparison().model_dump_json()
    if damage != "no verdict":
        folder.mkdir()
        half, nan = text[: len(text) // 2], text.replace("-7.5", "NaN")
        (folder / FILE).write_text({"half a verdict": half, "not a number": nan}.get(damage, text))
    cluster.turn(state.job, status="succeeded")
    ended = poll(retraining, 10.0)
    assert ended.status == "failed"
    assert part in (ended.error or "")


def test_missing_bundle_is_refused(retraining: Retraining, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        retraining.submit(tmp_path / "nothing", {}, "", 0.0)
    assert retraining.state is None


def test_restored_retraining_continues(
    retraining: Retraining, cluster: FakeCluster, bundle: Path, tmp_path: Path
) -> None:
    state = retraining.submit(bundle, SHIFTED, "drift", 0.0)
    kept = json.loads(json.dumps(retraining.record()))
    again = Retraining("decima", cluster, tmp_path, LIMITS, kept)
    assert again.state == state
    finish(state.folder)
    cluster.turn(state.job, status="succeeded")
    done = again.poll(30.0)
    kept = json.loads(json.dumps(again.record()))
    third = Retraining("decima", cluster, tmp_path, LIMITS, kept)
    assert third.state == done
    assert third.blocked_reason(31.0) is not None


def test_unrecorded_job_is_adopted(
    retraining: Retraining, cluster: FakeCluster, bundle: Path, tmp_path: Path
) -> None:
    first = retraining.submit(bundle, SHIFTED, "drift", 0.0)
    unrecorded = Retraining("decima", cluster, tmp_path, LIMITS)
    found = unrecorded.submit(bundle, {"executors": 12}, "drift", 5.0)
    assert (found.job, found.folder) == (first.job, first.folder)
    elsewhere = Retraining("decima", cluster, tmp_path / "other", LIMITS)
    assert elsewhere.submit(bundle, {}, "", 5.0).job != first.job
    other = Retraining("das", cluster, tmp_path, LIMITS)
    assert other.submit(bundle, {}, "", 5.0).job != first.job


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1e-7, 3, True, None, "1e5"])))
def test_assignments_round_trip(environment: dict[str, Any]) -> None:
    given = [assignment(f"environment.{name}", value) for name, value in environment.items()]
    read = parse_assignments(given).get("environment", {})
    for name, value in environment.items():
        assert type(value)(read[name]) == value if value is not None else read[name] is None


def test_comparison_with_unknown_field_is_refused(tmp_path: Path) -> None:
    record = comparison().model_dump(mode="json")
    (tmp_path / FILE).write_text(json.dumps({**record, "surplus": 1}))
    with pytest.raises(InputError, match="surplus"):
        read_comparison(tmp_path)
