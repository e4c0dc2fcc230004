"""Jobs, their files and loads: what is generated, what is read, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import find_environment
from loadmaster.envs.settings import build_settings
from loadmaster.envs.stream_scaling.episode import build_episode, build_setup
from loadmaster.envs.stream_scaling.generated_jobs import SIZES, generated_job
from loadmaster.envs.stream_scaling.job_files import load_job
from loadmaster.envs.stream_scaling.jobs import PEAK, Task, build_job, job_tables
from loadmaster.envs.stream_scaling.settings import WARM_UP_MIN, StreamScalingSettings
from loadmaster.envs.stream_scaling.workloads import load_workload


@pytest.mark.parametrize("name", SIZES)
def test_generated_jobs_have_their_sizes(name: str) -> None:
    job, size = generated_job(name), SIZES[name]
    assert job == generated_job(name)
    assert (len(job.tasks), len(job.edges), int(job.levels.max())) == (
        size.tasks, size.edges, size.levels,
    )  # fmt: skip
    tables = job_tables(job, 10)
    assert int((tables.source >= 0).sum()) == size.sources
    assert int((tables.weight > 0).sum()) == size.sinks
    busy = PEAK * tables.nominal * tables.service_min
    assert busy.max() == pytest.approx(8.0), "the longest task needs 80% of ten instances"
    assert int((busy > 1).sum()) == size.long
    np.testing.assert_allclose(tables.nominal, 1.0)


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        ([], "no tasks"),
        ([Task("a", 1.0), Task("a", 1.0)], "two tasks are called 'a'"),
        ([Task("a", 1.0, ("b",)), Task("b", 1.0, ("a",))], "a, b depend on each other"),
        ([Task("a", 1.0, ("b",))], "parent 'b' is no task"),
        ([Task("a", 0.0)], "duration 0"),
        ([Task("a", float("nan"))], "duration nan"),
        ([Task("a", 1.0), Task("b", 1.0, ("a",), (1.0, 2.0))], "2 selectivities; expected 1"),
        ([Task("a", 1.0), Task("b", 1.0, ("a",), (-1.0,))], "a selectivity below 0"),
        ([Task("a", 1.0, key_groups=0)], "below 1"),
        ([Task("a", 1.0, chained=True)], "chained with 0 parents"),
        ([Task("a", 1.0), Task("b", 1.0, ("a", "a"))], "a parent is named twice"),
    ],
)
def test_faulty_jobs_are_refused(tasks: list[Task], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        build_job("test", tasks)


FILE = """
tasks:
  - {name: sink, duration: 2, parents: [join], selectivity: [0.5]}
  - {name: join, duration: 4.0, parents: [clicks, views], state_mb: 300}
  - {name: clicks, duration: 1, partitions: 4}
  - {name: views, duration: 1.5}
"""


def test_job_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    job = load_job(StreamScalingSettings(job=str(path)))
    assert job.names == ("clicks", "views", "join", "sink")
    tables = job_tables(job, 10)
    assert tables.cap.tolist() == [4, 10, 10, 10]
    np.testing.assert_allclose(tables.nominal, [1, 1, 1, 0.5])
    assert find_environment("stream_scaling").make(job=str(path)).reset(seed=0)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("tasks: 3", "no list 'tasks'"),
        ("[", "cannot be read"),
        ("tasks: [3]", "task 1: 3; expected a mapping"),
        ("tasks: [{name: a}]", "no duration"),
        ("tasks: [{name: a, duration: long}]", "duration is 'long'; expected float"),
        ("tasks: [{name: a, duration: 1, size: 2}]", "size"),
    ],
)
def test_faulty_job_files_are_refused(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=fault) as found:
        load_job(StreamScalingSettings(job=str(path)))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"job": "smal-1"}, "small-1"),
        ({"job": "missing.yaml"}, "cannot be read"),
        ({"workload": "clarknet-lik"}, "clarknet-like"),
        ({"initial": 11}, "initial is 11"),
        ({"initial": 0}, "initial"),
        ({"decide_every_min": 0}, "decide_every_min"),
        ({"minutes": 4}, "decide_every_min is 5, more than the 4 minutes"),
        ({"skew": 1.0}, "skew"),
        ({"faults": [{"kind": "spike", "at_min": 5, "task": "nothing"}]}, "task 'nothing'"),
        ({"faults": [{"kind": "storm", "at_min": 5}]}, "kind"),
    ],
)
def test_bad_settings_are_refused_in_a_line(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault) as found:
        build_setup(build_settings(StreamScalingSettings, settings))
    assert "\n" not in str(found.value)


def test_clarknet_like_load_has_the_figures_of_the_trace() -> None:
    load = load_workload(StreamScalingSettings())
    weeks = [load.draw(10_080, np.random.default_rng(seed))[0] for seed in range(10)]
    counts = np.concatenate(weeks)
    assert counts.mean() == pytest.approx(166, rel=0.05)
    assert counts.std() == pytest.approx(76, rel=0.1)
    assert counts.max() == 472
    day = np.corrcoef(counts[:-1440], counts[1440:])[0, 1]
    night = np.corrcoef(counts[:-720], counts[720:])[0, 1]
    assert day > 0.4
    assert night < -0.3


def counts_file(folder: Path, rows: list[str], header: str = "datetime,view") -> Path:
    path = folder / "counts.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_counts_of_a_file_begin_anywhere_in_it(tmp_path: Path) -> None:
    rows = [f"2024-01-02 {minute // 60:02}:{minute % 60:02}:00,{minute}" for minute in range(600)]
    data = counts_file(tmp_path, rows)
    load = load_workload(StreamScalingSettings(workload="counts", data=data))
    counts, first = load.draw(700, np.random.default_rng(1))
    start = int(counts[0])
    assert first == 1440 + start, "a Tuesday"
    np.testing.assert_array_equal(counts, (start + np.arange(700)) % 600)


@pytest.mark.parametrize(
    ("rows", "header", "fault"),
    [
        (["2024-01-01 00:00:00,1", "2024-01-01 00:02:00,1"], "datetime,view", "line 3: datetime"),
        (["2024-01-01 00:00:00,-1"], "datetime,view", "line 2: view '-1'"),
        (["2024-01-01 00:00:00,0"], "datetime,view", "no records at all"),
        (["never,1"], "datetime,view", "line 2: datetime 'never'"),
        (["1,1"], "a,b", "no column of counts"),
    ],
)
def test_faulty_counts_are_refused(
    tmp_path: Path, rows: list[str], header: str, fault: str
) -> None:
    data = counts_file(tmp_path, rows, header)
    with pytest.raises(InputError, match=fault):
        load_workload(StreamScalingSettings(workload="counts", data=data))


def test_faults_change_the_load_or_the_tasks() -> None:
    def load_of(**fault: Any) -> Any:
        settings = build_settings(
            StreamScalingSettings,
            {"workload": "toy", "minutes": 100, "faults": [{"at_min": 10, "minutes": 5, **fault}]},
        )
        setup = build_setup(settings)
        return build_episode(settings, setup, 0).state.load[:, WARM_UP_MIN:], setup.tables.faults

    spike, _ = load_of(kind="spike", factor=3.0)
    assert spike[:, 9:16].mean(0).tolist() == [60, 180, 180, 180, 180, 180, 60]
    silent, _ = load_of(kind="silent-source", task="source-2")
    assert silent[1, 9:16].tolist() == [60, 0, 0, 0, 0, 0, 60]
    assert (silent[0] == 60).all()
    _, faults = load_of(kind="lost-instance")
    assert faults[0, 2:4].tolist() == [WARM_UP_MIN + 10, WARM_UP_MIN + 15]
