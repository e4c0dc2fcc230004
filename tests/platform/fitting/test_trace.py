"""Traces of users: recognised by content, split by time, converted to workloads without loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.alibaba import COLUMNS
from loadmaster.envs.dag_scheduling.workloads.job_file import read_jobs
from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings, MachineGroup
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.platform.fitting.environment import choose_episodes, choose_system
from loadmaster.platform.fitting.steps import FitFolder, digest
from loadmaster.platform.fitting.trace import FORMATS, UserTrace, read_trace, recognise
from tests.envs.dag_scheduling import spark_log as log

PAI = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user"
BATCH_TASK = ",".join(COLUMNS)


def pai_file(folder: Path, jobs: int = 20) -> Path:
    """Jobs in no order of time; the last line is the first to arrive."""
    rows = [f"{n},{1 + n % 3},{1000 - 10 * n},4.5,0.5,T4,{60 + n},u{n % 4}" for n in range(jobs)]
    path = folder / "any-name.csv"
    path.write_text("\n".join([PAI, *rows, "99,1,5,1.0,0.0,,10,u1"]) + "\n")
    return path


def alibaba_file(folder: Path, header: bool, jobs: int = 20) -> Path:
    rows = [f"M1,2,j_{n},1,Terminated,{100 + 10 * n},{107 + 10 * n},100,0.5" for n in range(jobs)]
    path = folder / "tasks.csv"
    path.write_text("\n".join([*([BATCH_TASK] if header else []), *rows]) + "\n")
    return path


def spark_file(folder: Path, jobs: int = 20) -> Path:
    chains = [each for n in range(jobs) for each in log.chain(n, 7_000 + 400 * n)]
    return log.write(folder / "app", [*log.application(), log.executor(1, 4), *chains])


def test_formats_are_recognised(tmp_path: Path) -> None:
    spark = spark_file(tmp_path)
    assert recognise(spark) == "spark"
    assert recognise(pai_file(tmp_path)) == "pai"
    assert [recognise(alibaba_file(tmp_path, header)) for header in (True, False)] == [
        "alibaba"
    ] * 2
    # What a fit writes is a trace too.
    for source, name in ((spark, "dag-jobs"), (pai_file(tmp_path), "gpu-jobs")):
        trace = read_trace(source, None)
        written = tmp_path / trace.file
        written.write_text("".join(trace.lines(slice(None))))
        assert recognise(written) == name
        again = read_trace(written, None)
        assert list(again.lines(slice(None))) == list(trace.lines(slice(None)))


def test_jobs_are_split_by_time(tmp_path: Path) -> None:
    folder = FitFolder(tmp_path / "fit")
    folder.write_workload(read_trace(spark_file(tmp_path), None))
    train, test = (read_jobs(each / "jobs.jsonl") for each in (folder.train, folder.test))
    assert [each.job.name for each in (*train, *test)] == [f"app-1-job-{n}" for n in range(20)]
    assert (len(train), len(test)) == (14, 6)
    assert train[0].arrival_s == 0
    assert test[0].arrival_s == pytest.approx(14 * 0.4)


def test_gpu_jobs_are_sorted_and_keep_their_demands(tmp_path: Path) -> None:
    trace = read_trace(pai_file(tmp_path), None)
    folder = FitFolder(tmp_path / "fit")
    folder.write_workload(trace)
    settings = GpuSchedulingSettings(workload="jobs", data=folder.test)
    workload = load_workload(settings)
    jobs = workload.draw(6, True, np.random.default_rng(0))
    assert jobs.job_id.tolist() == [5, 4, 3, 2, 1, 0]
    assert jobs.duration_s.tolist() == [65, 64, 63, 62, 61, 60]
    assert set(jobs.gpu.tolist()) == {50}
    assert set(jobs.cpu.tolist()) == {450}
    types = list(settings.known_gpu_types)
    assert {types[number] for number in jobs.gpu_type} == {"T4"}
    assert "left out: 1 without a GPU" in trace.description


def test_gpu_jobs_that_no_cluster_holds_are_left_out(tmp_path: Path) -> None:
    trace = read_trace(pai_file(tmp_path), None)
    machine = MachineGroup(count=1, gpus=1, gpu="T4", cpus=64)
    assert trace.held_by is not None
    held = trace.held_by(GpuSchedulingSettings(machines=(machine,)))
    assert held.size == 14  # gangs of three with half a GPU each do not fit one GPU
    assert held.description.endswith("1 without a GPU, 6 too large for the cluster")
    assert held.arrival_s[0] == 0
    assert trace.held_by(GpuSchedulingSettings()) is trace
    queued = GpuSchedulingSettings(machines=(machine,), oversized="queue")
    assert trace.held_by(queued) is trace
    typed = GpuSchedulingSettings(
        machines=(machine.model_copy(update={"gpu": "V100"}),), require_types=True
    )
    with pytest.raises(InputError, match="no job fits the cluster"):
        trace.held_by(typed)


def test_digest_depends_on_the_jobs(tmp_path: Path) -> None:
    path = spark_file(tmp_path)
    first = digest(read_trace(path, None))
    assert digest(read_trace(path, "spark")) == first
    assert digest(read_trace(spark_file(tmp_path, jobs=21), None)) != first


def test_environment_follows_the_trace(tmp_path: Path) -> None:
    spark = read_trace(spark_file(tmp_path), None)
    assert choose_system(None, spark).name == "decima"
    own = choose_episodes(spark, {}, None).values
    assert (own["executors"], own["interarrival_s"], own["arrivals"]) == (4, 0.4, "poisson")
    assert (own["moving_delay_s"], own["warmup_s"]) == (0, 0)  # one application
    given = {"moving_delay_s": 3, "load": 0.5}
    values = choose_episodes(spark, given, 9).values
    assert (values["executors"], values["moving_delay_s"], values["load"]) == (9, 3, 0.5)
    assert "interarrival_s" not in values
    alibaba = read_trace(alibaba_file(tmp_path, True), None)
    assert choose_episodes(alibaba, {}, None).values["load"] == 0.7
    assert choose_episodes(alibaba, {}, 50).values["interarrival_s"] == 10
    assert choose_episodes(alibaba, {"arrivals": "batch"}, None).values == {
        "workload": "jobs", "arrivals": "batch",
    }  # fmt: skip
    pai = read_trace(pai_file(tmp_path), None)
    assert choose_system(None, pai).name == "das"
    assert choose_episodes(pai, {}, None).values == {"workload": "jobs"}
    machines = [{"count": 1, "gpus": 8, "gpu": "T4", "cpus": 64}]
    values = choose_episodes(pai, {"machines": machines}, None).values
    assert values["interarrival_s"] == pytest.approx(10)


def test_dags_are_trained_on_in_short_sequences(tmp_path: Path) -> None:
    spark = choose_episodes(read_trace(spark_file(tmp_path), None), {}, None)
    assert (spark.on(tmp_path)["jobs"], spark.to_train(tmp_path)["jobs"]) == (100, 30)
    pai = choose_episodes(read_trace(pai_file(tmp_path), None), {"jobs": 400}, None)
    assert pai.to_train(tmp_path) == pai.on(tmp_path)


def test_jobs_that_arrive_at_once_are_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    stage = {"tasks": 1, "first_ms": [5]}
    lines = [json.dumps({"name": f"j{n}", "stages": [stage]}) for n in range(10)]
    path.write_text("\n".join(lines))
    trace = read_trace(path, None)
    assert (trace.size, trace.mean_gap_s) == (10, 0)
    assert choose_episodes(trace, {}, 3).values["arrivals"] == "batch"


@pytest.mark.parametrize(
    ("given", "executors", "words"),
    [
        ({"data": "x"}, None, "--set data"),
        ({"executors": 3}, 4, "one of the two"),
        ({}, 0, "--executors is 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, given: dict[str, Any], executors: int | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        choose_episodes(read_trace(spark_file(tmp_path), None), given, executors)


def refused(path: Path, forced: str | None = None) -> str:
    with pytest.raises(InputError) as raised:
        read_trace(path, forced)
    return str(raised.value)


def test_bad_traces_are_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path / "no").startswith(f"{tmp_path / 'no'}: no such file")
    path = tmp_path / "trace"
    for content in (b"", b"a,b\n1,2\n", b"\0\1\2", b'{"x": 1}\n', b"\xff\xfe\n"):
        path.write_bytes(content)
        text = refused(path)
        assert text.startswith(str(path))
        assert "expected" in text
    assert refused(path, "csv").startswith("--format 'csv'; expected one of: spark")
    assert "expected a file" in refused(tmp_path, "pai")
    few = refused(spark_file(tmp_path / "few", jobs=9))
    assert "9 usable jobs; expected at least 10" in few
    pai = pai_file(tmp_path)
    pai.write_text(pai.read_text().replace("0,1,1000,", "0,1,soon,"))
    assert refused(pai) == f"{pai}, line 2: submit_time 'soon'; expected a number of 0 or more"


def test_every_format_has_a_reader(tmp_path: Path) -> None:
    """A file in none of them is refused by each, by name."""
    path = tmp_path / "trace.csv"
    path.write_text("a,b\n1,2\n")
    for name in FORMATS:
        assert str(path) in refused(path, name)


def test_split_of_few_jobs_leaves_some_in_both_parts() -> None:
    trace = UserTrace("spark", "dag_scheduling", "f", lambda part: iter(()), [0.0, 1.0], "")
    assert trace.split == (slice(0, 1), slice(1, 2))
