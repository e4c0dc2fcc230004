"""Import of Spark event logs: DAGs, waves, slots and left-out jobs known by hand; bad lines."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from loadmaster.envs.dag_scheduling.jobs import Stage
from loadmaster.envs.dag_scheduling.workloads.spark import read_log
from loadmaster.envs.dag_scheduling.workloads.spark_files import applications, is_event_log
from loadmaster.envs.errors import InputError
from tests.envs.dag_scheduling import spark_log as log

LEVEL = 1


def waves(stage: Stage) -> tuple[list[int], list[int], list[int]]:
    """Fresh, first, rest."""
    fresh, first, rest = (
        [int(ms) for ms in wave.get(LEVEL, [])] for wave in (stage.fresh, stage.first, stage.rest)
    )
    return fresh, first, rest


def fault_of(path: Path) -> str:
    with pytest.raises(InputError) as raised:
        read_log(path)
    return str(raised.value)


def test_stages_and_waves_of_a_job(tmp_path: Path) -> None:
    events = [
        *log.application(),
        log.executor(1, 2),
        log.job_start(0, 5000, (0, 1, 2)),
        # Three tasks on two slots: the third one reuses the slot that was free first.
        log.task(0, 5000, 5300),
        log.task(0, 5000, 5400),
        log.task(0, 5290, 5350),  # clocks are coarse: before the first one has left
        log.task(0, 5350, 5360, reason="TaskKilled"),
        log.stage(0, 3, 5000, 5400),
        log.task(1, 5010, 5020, executor=7),
        log.stage(1, 1, 5010, 5020),
        log.task(2, 5400, 5450),
        log.stage(2, 1, 5400, 5450, parents=(0, 1)),
        log.job_end(0, 5450),
    ]
    found = read_log(log.write(tmp_path / "app", events))
    (recorded,) = found.jobs
    assert (recorded.arrival_s, recorded.job.name) == (5.0, "app-1-job-0")
    assert [(each.tasks, each.parents) for each in recorded.job.stages] == [
        (3, ()), (1, ()), (1, (0, 1)),
    ]  # fmt: skip
    assert [waves(each) for each in recorded.job.stages] == [
        ([300, 400], [], [60]), ([10], [], []), ([], [50], []),
    ]  # fmt: skip
    assert (found.slots, found.applications, dict(found.left_out)) == (2, 1, {})


def test_adaptive_execution_joins_the_jobs_of_a_query_by_rdds(tmp_path: Path) -> None:
    """Two shuffle stages run as Spark jobs of their own; parent ids name copies that never ran."""
    events = [
        *log.application(),
        log.executor(1, 2),
        log.job_start(0, 1000, (0,), sql=4),
        log.task(0, 1000, 1100),
        log.stage(0, 1, 1000, 1100, rdds={1: (), 2: (1,)}),
        log.job_end(0, 1100),
        log.job_start(1, 1000, (1,), sql=4),
        log.task(1, 1000, 1200),
        log.stage(1, 1, 1000, 1200, rdds={3: ()}),
        log.job_end(1, 1200),
        log.job_start(2, 1250, (2, 3, 4), sql=4),
        log.task(4, 1250, 1300),
        log.stage(4, 1, 1250, 1300, parents=(2, 3), rdds={5: (2,), 6: (3,), 7: (5, 6)}),
        log.job_end(2, 1300),
    ]
    (recorded,) = read_log(log.write(tmp_path / "app", events)).jobs
    assert recorded.job.name == "app-1-sql-4"
    assert [each.parents for each in recorded.job.stages] == [(), (), (0, 1)]


def test_rdd_of_a_later_stage_is_no_parent(tmp_path: Path) -> None:
    events = [
        *log.application(),
        log.job_start(0, 0, (0, 1)),
        log.task(0, 0, 10),
        log.stage(0, 1, 0, 10, rdds={2: (1,)}),
        log.task(1, 20, 30),
        log.stage(1, 1, 20, 30, rdds={1: ()}),
        log.job_end(0, 30),
    ]
    (recorded,) = read_log(log.write(tmp_path / "app", events)).jobs
    assert [each.parents for each in recorded.job.stages] == [(), ()]


def test_first_task_after_another_job_is_fresh(tmp_path: Path) -> None:
    events = [*log.application(), log.executor(1, 1), *log.chain(0, 0), *log.chain(1, 1000)]
    first, second = read_log(log.write(tmp_path / "app", events)).jobs
    for recorded in (first, second):
        assert [waves(each) for each in recorded.job.stages] == [
            ([100], [], [100]), ([], [50], []),
        ]  # fmt: skip


def test_unfinished_failed_and_unmeasured_jobs_are_left_out(tmp_path: Path) -> None:
    events = [
        *log.application(),
        *log.chain(0, 0),
        *log.chain(1, 1000)[:-1],
        *log.chain(2, 2000)[:-1],
        log.job_end(2, 2500, "JobFailed"),
        log.job_start(3, 3000, (99,)),
        log.job_end(3, 3100),
    ]
    found = read_log(log.write(tmp_path / "app", events))
    assert [each.job.name for each in found.jobs] == ["app-1-job-0"]
    assert dict(found.left_out) == {"unfinished": 1, "failed": 1, "without tasks": 1}


def test_slots_are_the_most_at_one_time(tmp_path: Path) -> None:
    properties = {"spark.task.cpus": "2"}
    first = [
        *log.application("a"),
        log.event("EnvironmentUpdate", **{"Spark Properties": properties}),
        log.executor(1, 4),
        log.executor(2, 4, time=100),
        log.removed(1, 200),
        *log.chain(0, 0),
    ]
    log.write(tmp_path / "logs" / "a", first)
    # Begins after the last task of the first one, whose executors have no recorded end.
    log.write(
        tmp_path / "logs" / "b",
        [*log.application("b"), log.executor(1, 3, 900), *log.chain(0, 900)],
    )
    found = read_log(tmp_path / "logs")
    assert (found.slots, found.applications) == (4, 2)
    assert [each.job.name for each in found.jobs] == ["a-job-0", "b-job-0"]


def test_rolled_and_packed_logs(tmp_path: Path) -> None:
    rolled = tmp_path / "logs" / "eventlog_v2_app-1"
    parts = [log.application(), log.chain(0, 0), log.chain(1, 1000), log.chain(2, 2000)]
    rolled.mkdir(parents=True)
    (rolled / "appstatus_app-1").touch()
    (rolled / ".events_1_app-1.crc").write_bytes(b"\0")
    for number, events in enumerate(parts, 8):  # ten comes after nine
        content = log.text(events).encode()
        with pa.CompressedOutputStream(str(rolled / f"events_{number}_app-1.zstd"), "zstd") as file:
            file.write(content)
    assert is_event_log(tmp_path / "logs")
    assert len(read_log(tmp_path / "logs").jobs) == 3
    # A compacted file replaces those up to its number.
    compact = rolled / "events_10_app-1.compact"
    log.write(compact, [*log.application(), *log.chain(1, 1000)])
    ((_, files),) = applications(rolled)
    assert [file.name for file in files] == [compact.name, "events_11_app-1.zstd"]
    assert len(read_log(rolled).jobs) == 2
    packed = tmp_path / "app.gz"
    packed.write_bytes(gzip.compress(log.text([*parts[0], *parts[1]]).encode()))
    assert is_event_log(packed)
    assert len(read_log(packed).jobs) == 1


def test_last_line_of_a_running_log_may_be_incomplete(tmp_path: Path) -> None:
    content = log.text([*log.application(), *log.chain(0, 0)]) + '{"Event":"SparkListenerTaskEnd"'
    running = tmp_path / "app.inprogress"
    running.write_text(content)
    assert len(read_log(running).jobs) == 1
    ended = tmp_path / "app"
    ended.write_text(content)
    assert fault_of(ended).startswith(f"{ended}, line 10: ")
    running.write_text(content + "\n" + log.text(log.chain(1, 1000)))
    assert fault_of(running).startswith(f"{running}, line 10: ")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("nonsense", '{"Event"'),
        ('{"Event":"SparkListenerTaskEnd","Stage ID":0}', "'Task End Reason'"),
        ('{"Event":"SparkListenerJobStart","Job ID":"a"}', "a whole number"),
        ('{"Event":"SparkListenerJobStart","Job ID":7,"Submission Time":1}', "'Stage IDs'"),
        (json.dumps(log.task(0, 20, 10)), "'Launch Time', 20"),
        ('{"Event":"SparkListenerStageCompleted","Stage Info":[]}', "an object"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    path = log.write(tmp_path / "app", log.application())
    path.write_text(path.read_text() + line + "\n")
    fault = fault_of(path)
    assert fault.startswith(f"{path}, line 3: ")
    assert named in fault
    assert "; expected " in fault


def test_logs_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    packed = tmp_path / "app.lz4"
    packed.write_bytes(b"LZ4Block")
    assert "lz4" in fault_of(packed)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(log.text(log.application() * 500).encode())[:-40])
    assert fault_of(cut).startswith(f"{cut}, ")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert fault_of(empty).startswith(f"{empty}: no event logs")
    nothing = log.write(tmp_path / "nothing", log.application())
    assert fault_of(nothing).startswith(f"{nothing}: no finished jobs")
