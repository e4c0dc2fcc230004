"""Retraining jobs: their command, polling, pauses, faults and persistence."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import parse_assignments
from loadmaster.serving.jobs.client import UnreachableError
from loadmaster.serving.policies import retraining_job
from loadmaster.serving.policies.comparison import COMPARISON_FILE
from loadmaster.serving.policies.retraining_job import Retraining, RetrainingSettings, assignment
from loadmaster.serving.system import RecordedInput
from tests.serving import toy
from tests.serving.policies.conftest import FakeCluster, comparison

HOUR_S = 3600.0
LIMITS = RetrainingSettings(
    iterations=3, minutes=0.5, settings={"rollouts.workers": 4}, patience_s=HOUR_S,
    cool_down_s=6 * HOUR_S, back_off_s=600, back_off_max_s=2000,
)  # fmt: skip
SHIFTED: dict[str, Any] = {"interarrival_s": 12.5, "arrivals": "poisson", "executors": 40}
UNREACHABLE = UnreachableError("no Ray cluster answers")


class Setup:
    """A Retraining with its cluster, bundle and folder."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder / "kept"
        self.bundle = toy.make_bundle(folder / "mine")
        self.retraining = self.another()

    def another(self, system: str = "toy", subfolder: str = "", record: Any = None) -> Retraining:
        record = record and json.loads(json.dumps(record))
        return Retraining(system, self.cluster, self.folder / subfolder, LIMITS, record)

    def submit(self, now: float = 0.0, **environment: Any) -> retraining_job.RetrainingState:
        return self.retraining.submit(self.bundle, environment, "drift", now)

    def poll(self, now: float, **changes: Any) -> retraining_job.RetrainingState:
        """Change the current job and poll it."""
        if changes:
            self.cluster.change(**changes)
        polled = self.retraining.poll(now)
        assert polled is not None
        return polled

    def succeed(self, now: float, better: bool = True) -> retraining_job.RetrainingState:
        self.cluster.finish(better=better)
        return self.poll(now)


def test_folder_of_retrainings_is_private_and_a_fault_of_it_a_failure(setup: Setup) -> None:
    setup.submit()
    assert setup.folder.stat().st_mode & 0o777 == 0o700
    (setup.folder.parent / "file").touch()
    blocked = setup.another(subfolder="../file/inside")
    assert blocked.submit(setup.bundle, {}, "drift", 0.0).status == "failed"


@pytest.fixture
def setup(cluster: FakeCluster, tmp_path: Path) -> Setup:
    return Setup(cluster, tmp_path)


def test_submit_runs_the_retrain_command(setup: Setup) -> None:
    state = setup.submit(now=100.0, **SHIFTED)
    assert (state.status, state.submitted_at, state.why) == ("queued", 100.0, "drift")
    words = setup.cluster.words()
    assert words[:4] == ["retrain", "toy", "--from", str(setup.bundle)]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--output"] == state.folder
    assert [options[one] for one in ("--iterations", "--minutes", "--seeds")] == ["3", "0.5", "32"]
    given = [value for option, value in pairwise(words) if option == "--set"]
    assert parse_assignments(given) == {"environment": SHIFTED, "rollouts": {"workers": 4}}


def test_recorded_input_is_passed_as_files(setup: Setup) -> None:
    recorded = RecordedInput(
        {"jobs": ["a.yaml", "other"], "environment.data": "b.csv", "environment.load": 2},
        {"a.yaml": "tasks: []", "b.csv": "count"},
    )

    def submit(content: RecordedInput) -> tuple[str, Any]:
        state = setup.retraining.submit(setup.bundle, {"load": 1, "x": 3}, "drift", 1e9, content)
        words = setup.cluster.words()
        given = [value for option, value in pairwise(words) if option == "--set"]
        return state.folder, parse_assignments(given)

    folder, given = submit(recorded)
    inputs = Path(given["environment"]["data"]).parent
    assert (inputs.parent, inputs.stat().st_mode & 0o777) == (setup.folder, 0o700)
    assert {file.name: file.read_text() for file in inputs.iterdir()} == recorded.files
    assert given["jobs"] == [str(inputs / "a.yaml"), "other"]
    assert given["environment"] == {"load": 2, "x": 3, "data": str(inputs / "b.csv")}
    setup.cluster.change(status="failed")
    setup.retraining.poll(1e9)
    setup.retraining = setup.another()
    other, _ = submit(recorded._replace(files={**recorded.files, "b.csv": "count\n1"}))
    assert other != folder  # another content is another request
    assert not inputs.exists()


def test_pretrained_bundle_is_passed_by_name(setup: Setup, root: Path) -> None:
    setup.bundle = root / "models" / "pretrained" / "decima-stream"
    setup.submit()
    assert setup.cluster.words()[2:4] == ["--from", "decima-stream"]


def test_poll_follows_the_job_to_its_comparison(setup: Setup) -> None:
    assert setup.retraining.poll(0.0) is None
    setup.submit(**SHIFTED, now=10.0)
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


def test_submit_is_refused_while_a_job_runs_and_during_the_cool_down(setup: Setup) -> None:
    assert setup.retraining.blocked_reason(0.0) is None
    job = setup.submit().job
    with pytest.raises(InputError, match=job):
        setup.submit(now=1.0)
    assert len(setup.cluster.jobs) == 1
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
    first = setup.submit(**SHIFTED)
    assert setup.poll(0.0, status="stopped").error == "the job was stopped"
    again = setup.submit(**SHIFTED, now=HOUR_S)
    assert again.folder == first.folder
    assert again.job != first.job
    setup.poll(HOUR_S, status="failed")
    other = setup.submit(now=2 * HOUR_S, **{**SHIFTED, "executors": 41})
    assert other.folder != first.folder


def test_old_folders_are_deleted(setup: Setup) -> None:
    """Except the latest three, the one in use, and those of other systems."""
    other = setup.folder / "das-0123-4567"
    other.mkdir(parents=True)
    folders = []
    for number in range(7):
        state = setup.submit(executors=10 + number, now=number * 1e6)
        folders.append(Path(state.folder))
        setup.succeed(number * 1e6 + 60)
        os.utime(state.folder, (number, number))
    left = {each for each in folders if each.exists()}
    assert left == set(folders[-4:])
    again = setup.submit(executors=13, now=1e9)
    assert Path(again.folder) == folders[3]
    assert {each for each in folders if each.exists()} == left
    assert other.exists()


def test_unreachable_cluster_fails_a_submission(setup: Setup) -> None:
    setup.cluster.fault = UNREACHABLE
    state = setup.submit()
    assert (state.job, state.status, state.error) == ("", "failed", str(UNREACHABLE))
    assert setup.retraining.blocked_reason(1.0) is not None
    assert setup.poll(1.0) == state


def test_unreachable_cluster_is_polled_until_the_limit(setup: Setup) -> None:
    setup.submit()
    for now, fault, status in (
        (10.0, UNREACHABLE, "queued"),
        (20.0, None, "running"),
        (LIMITS.patience_s + 1, UNREACHABLE, "failed"),
    ):
        setup.cluster.fault = fault
        polled = setup.poll(now, status="running")
        assert (polled.status, polled.error) == (status, fault and str(fault))


def test_long_job_is_stopped(setup: Setup) -> None:
    state = setup.submit()
    ended = setup.poll(LIMITS.patience_s + 1)
    assert (ended.status, ended.error) == ("failed", "stopped after 3600 s")
    assert setup.cluster.stopped == [state.job]


TEXT = comparison().model_dump_json()


@pytest.mark.parametrize(
    ("written", "part"),
    [
        (None, "verdict.json"),
        (TEXT[: len(TEXT) // 2], "damaged"),
        (TEXT.replace("-12.5", "NaN"), "difference_percent"),
        (TEXT.replace("{", '{"surplus": 1,', 1), "surplus"),
        (TEXT, "bundle does not exist"),
    ],
)
def test_damaged_result_fails_the_retraining(written: str | None, part: str, setup: Setup) -> None:
    folder = Path(setup.submit().folder)
    if written is not None:
        folder.mkdir(parents=True)
        (folder / COMPARISON_FILE).write_text(written)
    ended = setup.poll(10.0, status="succeeded")
    assert ended.status == "failed"
    assert part in (ended.error or "")


@pytest.mark.parametrize("finished", [False, True])
def test_job_unknown_to_the_cluster_ends_by_its_files(finished: bool, setup: Setup) -> None:
    setup.submit()
    if finished:
        setup.cluster.write_result()
    setup.cluster.jobs.clear()
    assert setup.poll(10.0).status == ("done" if finished else "failed")


def test_missing_bundle_is_refused(setup: Setup) -> None:
    setup.bundle = setup.folder / "nothing"
    with pytest.raises(InputError, match="does not exist"):
        setup.submit()
    assert setup.retraining.state is None


def test_restored_retraining_continues(setup: Setup) -> None:
    state = setup.submit(**SHIFTED)
    setup.retraining = setup.another(record=setup.retraining.record())
    assert setup.retraining.state == state
    done = setup.succeed(30.0)
    third = setup.another(record=setup.retraining.record())
    assert third.state == done
    assert third.blocked_reason(31.0) is not None


def test_unrecorded_job_is_adopted(setup: Setup) -> None:
    first = setup.submit(**SHIFTED)
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
