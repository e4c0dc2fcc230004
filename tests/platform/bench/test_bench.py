"""The benchmark command: its shape, and that its figures are measured, not remembered."""

import signal
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadmaster.envs.gpu_scheduling.episode import build_episode
from loadmaster.envs.stream_scaling.episode import build_episode as build_stream
from loadmaster.envs.stream_scaling.episode import build_setup
from loadmaster.envs.stream_scaling.settings import StreamScalingSettings
from loadmaster.envs.stream_scaling.simulator import advance
from loadmaster.envs.stream_scaling.state import LATENCY
from loadmaster.platform.bench import simulators
from loadmaster.platform.bench.measurements import Figure, in_fresh_process
from loadmaster.platform.bench.simpy_stream import RecordSimulation
from tests.platform.cli.one_line import Captured, Cli, Patch
from tests.traces import needs_traces

STOCK = ("stock_runner/envs-1/", "stock_runner/envs-3/")
PARTS = ("cpu_", "", "rollout_", "update_")  # of the time of training


def test_json_has_the_stable_keys(cli: Cli, monkeypatch: Patch) -> None:
    speeds = simulators.episode_speed("dag_scheduling", "tpch-like", "fair")
    monkeypatch.setattr(simulators, "measure", lambda _: speeds)
    monkeypatch.setattr(simulators, "EPISODES", 1)
    results = cli.json("bench simulators")["results"]
    names = [result["name"] for result in results]
    assert names == ["dag_scheduling/fair/decisions_per_s", "dag_scheduling/fair/tasks_per_s"]
    assert all({"name", "value", "unit", "peer"} <= set(result) for result in results)
    # One episode has some 70 tasks a decision, so the two speeds must differ that much.
    assert results[1]["value"] / results[0]["value"] == pytest.approx(70, rel=0.3)


def test_ratio_is_times_better() -> None:
    assert Figure("speed", 200, "1/s", peer=50).ratio == 4
    assert Figure("time", 2, "s", peer=50, higher_is_better=False).ratio == 25
    assert Figure("alone", 2, "s").ratio is None


def test_in_fresh_process_reads_the_number() -> None:
    assert in_fresh_process("print(3.5)") == 3.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("simulator", "did you mean 'simulators'?"),
        ("rollouts decimo", "did you mean 'decima'?"),
        ("encoder decima", "takes no system; expected `loadmaster bench rollouts decima`"),
        ("rollouts --workers 2", "takes no --workers; expected it with `bench scaling` only"),
        ("scaling --gpus 1", "resources.gpus is 1"),
        ("scaling --workers 1,two", "--workers is '1,two'"),
        ("scaling --workers 0,2", "--workers is '0,2'"),
        ("scaling --workers 1 --output /dev/null/x", "cannot write to --output '/dev/null/x'"),
        ("soak --output /dev/null/x", "cannot write to --output '/dev/null/x'"),
        ("soak --minutes 0", "--minutes is 0; expected more than 0, 1,440 at most"),
        ("soak --minutes nan", "--minutes is nan"),
        ("serve --names 10", "takes no --names; expected it with `bench tenants` only"),
        ("tenants --names 0", "--names is 0; expected a positive number"),
        ("tenants sure", "unknown system 'sure'"),
        ("tenants aware --applications 1001", "--applications is 1,001; expected at most 1,000"),
        ("tenants --applications 5", "--applications does not fit `bench tenants`"),
        ("tenants aware --names 5", "--names does not fit `bench tenants aware`"),
        ("faults --kills 0", "--kills is 0; expected 1 to 1,000"),
        ("faults --seed -1", "--seed is -1; expected 0 to"),
        ("soak --kills 3", "soak takes no --kills; expected it with `bench faults` only"),
        ("faults --output /dev/null/x", "cannot write to --output '/dev/null/x'"),
        (
            "soak --minutes 1 --kill-every 60",
            "--kill-every is 60; expected seconds from 5 on, and less than",
        ),
        ("soak --kill-every 0", "--kill-every is 0"),
        ("serve --kill-every 30", "takes no --kill-every; expected it with `bench soak` only"),
        ("serve --replicas 0,2", "--replicas is '0,2'"),
        ("serve --output x", "takes no --output without --replicas"),
        ("foresight aware", "unknown system 'aware'"),
        ("foresight --seeds 1", "--seeds is 1; expected 2 or more"),
        ("foresight --futures 1", "--futures is 1; expected 2 or more"),
        ("foresight --first-seed -1", "--first-seed is -1; expected 0 or more"),
        ("foresight --set objective=makespan", "objective is makespan; expected jct"),
        ("foresight --output /dev/null/x", "cannot write to --output '/dev/null/x'"),
        ("serve --futures 3", "takes no --futures; expected it with `bench foresight` only"),
        ("soak --set jobs=3", "takes no --set; expected it with `bench foresight` only"),
        ("soak --replicas 2", "takes no --replicas; expected it with `bench serve` only"),
    ],
)
def test_bad_input(arguments: str, words: str, cli: Cli, here: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert words in cli.error(f"bench {arguments}")
    assert list(here.iterdir()) == []


def test_sigterm_ends_what_was_started(cli: Cli, here: Path, monkeypatch: Patch) -> None:
    from loadmaster.platform.bench.engines import slurm

    ended = []

    def measure(*_: object) -> list[Figure]:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            ended.append("the cluster")
        return []

    monkeypatch.setattr(slurm, "measure", measure)
    before = signal.getsignal(signal.SIGTERM)
    assert cli("bench engines slurm", 130).err.endswith("interrupted\n")
    assert ended
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_reading_is_compared_with_the_model(cli: Cli, monkeypatch: Patch) -> None:
    from loadmaster.platform.bench import reading

    monkeypatch.setattr(reading, "TURN_S", 0.01)
    results = cli.json("bench reading")["results"]
    found = {one["name"].removeprefix("reading/"): one for one in results}
    for system, example in product(("decima", "das"), ("small", "large")):
        parts = ("json/ms", "msgpack/ms", "options/ms", "decide/ms", "json/kb", "msgpack/kb")
        values = {part: found[f"{system}/{example}/{part}"]["value"] for part in parts}
        assert all(value > 0 for value in values.values())
        assert values["msgpack/kb"] < values["json/kb"]
        assert values["options/ms"] < values["json/ms"] < values["decide/ms"]
    for system in ("decima", "das"):
        assert found[f"{system}/large/json/share_of_model"]["value"] < 0.7
        assert found[f"{system}/large/json/ms"]["peer"] is not None


@pytest.mark.slow
def test_tenants_grow_the_file_and_not_the_memory(cli: Cli) -> None:
    results = cli.json("bench tenants --names 3000")["results"]
    found = {one["name"].removeprefix("tenants/names-3000/"): one["value"] for one in results}
    assert set(found) == {"memory_growth_mb", "disk_mb", "per_s"}
    assert 0.9 < found["disk_mb"] < 30  # some 500 bytes each, and the write-ahead log
    assert found["memory_growth_mb"] < 25  # 3,000 in memory would take as much
    assert found["per_s"] > 10


def tiny_training() -> Any:
    """Toy jobs, few rollouts: seconds instead of minutes."""
    from loadmaster.platform.systems.decima.training import DecimaTraining

    return DecimaTraining.model_validate({
        "environment": {"workload": "toy", "jobs": 3, "executors": 4},
        "rollouts": {"sequences": 2, "per_sequence": 2, "workers": 1},
        "training": {"epochs": 2, "minibatches": 2},
    })  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_rollouts_are_compared_with_the_stock_runner(cli: Cli, monkeypatch: Patch) -> None:
    from loadmaster.platform.systems.decima import bench as decima

    tiny = decima.Effort(
        tiny_training(), episodes=4, stock=(1, 3), vector=2, rounds=1, decisions=20, iterations=1
    )
    monkeypatch.setattr(decima, "EFFORT", tiny)
    results = cli.json("bench rollouts decima")["results"]
    found = {result["name"].removeprefix("decima/"): result["value"] for result in results}
    names = ("", "unrecorded/", "vector_engine/envs-2/", *STOCK)
    assert list(found) == [
        *(f"rollout/{way}decisions_per_s" for way in names),
        *("rollout/stock_runner_decisions_per_s", "rollout/times_stock_runner"),
        *("decision/100-stages/p50_ms", "decision/100-stages/p99_ms"),
        *(f"training/{part}seconds_per_1000_decisions" for part in PARTS),
    ]
    assert all(value > 0 for value in found.values())
    stock = found["rollout/stock_runner_decisions_per_s"]
    assert stock == max(found[f"rollout/{way}decisions_per_s"] for way in STOCK)
    ratio = found["rollout/decisions_per_s"] / stock
    assert found["rollout/times_stock_runner"] == pytest.approx(ratio)
    whole, *parts = list(found.values())[-3:]
    assert sum(parts) <= whole
    ways = decima.contenders(tiny)
    one, three = (ways[way]() for way in STOCK)  # decisions
    assert three > 2 * one


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_scaling_is_written_and_drawn(capfd: Captured, monkeypatch: Patch, tmp_path: Path) -> None:
    from loadmaster.platform.bench import scaling
    from loadmaster.platform.cli import train

    steps: list[dict[str, float]] = []

    class Watched(scaling.Trainer):
        def step(self) -> dict[str, float]:
            steps.append(super().step())
            return steps[-1]

    monkeypatch.setattr(scaling, "SECONDS", 0.2)
    monkeypatch.setattr(scaling, "Trainer", Watched)
    monkeypatch.setattr(scaling, "ROLLOUTS", 1)
    monkeypatch.setattr(train, "new_config", lambda recipe, values: tiny_training())
    folder = tmp_path / "scaling"
    printed = Cli(capfd).json(f"bench scaling --workers 2,1 --output {folder}")
    assert printed["files"] == [str(folder / name) for name in scaling.FILES]
    one, two = rows = pd.read_csv(folder / "scaling.csv").to_dict("records")
    assert [row["workers"] for row in rows] == [1, 2]
    assert one["efficiency"] == one["speedup"] == 1
    assert two["efficiency"] == pytest.approx(two["speedup"] / 2, abs=1e-3)
    for row in rows:
        parts = [row[name] for name in scaling.PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(row["iteration_seconds"], abs=1e-3)
    assert one["exchange_seconds"] == 0 < two["exchange_seconds"]
    values = {result["name"]: result["value"] for result in printed["results"]}
    for name in ("decisions_per_s", "iteration_seconds", "speedup"):
        assert values[f"decima/scaling/workers-2/{name}"] == pytest.approx(two[name], abs=1e-3)
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")
    # After the warm one both sizes did the same iterations, the first of them not counted.
    alone, both = ([step for step in steps[1:] if step["workers"] == n] for n in (1, 2))
    assert len(alone) == len(both) == (len(steps) - 1) / 2 >= 3
    for name in ("iteration", "decisions", "learnt_from", "return_mean"):
        assert alone[0][name] == pytest.approx(both[0][name])
    mean = fmean(step["seconds"] for step in alone[1:])
    assert one["iteration_seconds"] == pytest.approx(mean, abs=1e-3)
    larger = pd.read_csv(folder / "calculated.csv")
    assert larger["workers"].tolist() == [100, 1000]
    assert (larger["rollout_seconds"] == two["rollout_seconds"]).all()
    assert larger["advantage_seconds"].is_monotonic_increasing


@pytest.mark.parametrize("reaches", [0, 2])
def test_interrupted_scaling_leaves_its_points(
    reaches: int, capfd: Captured, monkeypatch: Patch, tmp_path: Path
) -> None:
    from loadmaster.platform.bench import scaling

    def stopped(recipe: Any, workers: Any, config: Any, report_step: Any, on_point: Any) -> None:
        assert config.model_dump() == recipe.config_class().model_dump()  # as `train` has it
        for size in workers[:reaches]:
            parts = dict.fromkeys(scaling.PARTS, 1 / size)
            speeds = {"decisions_per_s": 9000.0 * size, "speedup": float(size), "efficiency": 1.0}
            on_point(scaling.Point(size, 64, 5 / size, **parts, **speeds))
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "measure_scaling", stopped)
    folder = tmp_path / "results" / "scaling"
    progress = Cli(capfd)(f"bench scaling --workers 1,2,4 --output {folder}", 130).err
    files = sorted(path.name for path in tmp_path.rglob("*.*"))
    assert files == ["scaling.csv", "scaling.png"][:reaches]
    line = "2 workers: 2.50 s an iteration of 64 rollouts (2.00x as fast as with 1), 18,000"
    assert (line in progress) == bool(reaches)
    assert not reaches or list(pd.read_csv(folder / files[0])["workers"]) == [1, 2]


def test_generated_jobs_have_another_name(monkeypatch: Patch) -> None:
    monkeypatch.setattr(simulators, "RUNS", 2)
    monkeypatch.setattr(simulators, "RECORDED", 60)
    monkeypatch.setattr(simulators, "MANY", 300)
    figures = [*simulators.three_nodes(False, print), *simulators.many_jobs(False, print)]
    policies = ("fifo-first-fit", "sjf-first-fit", "fifo-load-balance", "sjf-load-balance")
    assert [figure.name for figure in figures] == [
        "gpu_scheduling/pai-like-3x8/cpu_s",
        *(f"gpu_scheduling/pai-like-3x8/{policy}/cpu_s" for policy in policies),
        *(f"gpu_scheduling/pai-like-300-jobs/{rule}/cpu_s" for rule in ("fifo", "sjf")),
    ]
    assert all(figure.value > 0 and figure.peer is None for figure in figures)
    assert figures[0].value == max(figure.value for figure in figures[1:5])


@needs_traces
def test_recorded_jobs_have_a_peer(monkeypatch: Patch) -> None:
    monkeypatch.setattr(simulators, "RUNS", 9)
    measured = (*simulators.three_nodes(True, print), *simulators.many_jobs(True, print))
    figures = {figure.name: figure for figure in measured}
    small = figures["gpu_scheduling/pai-3x8/cpu_s"]
    assert small.peer == 9.0
    assert (small.ratio or 0) > 2000
    for ordering in ("fifo", "sjf"):
        assert figures[f"gpu_scheduling/20000-jobs/{ordering}/cpu_s"].value < 0.5


def test_vector_speed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(simulators, "MEASURED_S", 0.1)
    figure = simulators.vector_speed(2)
    assert figure.name == "gpu_scheduling/vector-2/steps_per_s"
    assert figure.value > 1000


def test_repeated_jobs() -> None:
    settings = simulators.same_rules(simulators.ONE_NODE, jobs=50)
    own = build_episode(settings, 0).jobs
    many = simulators.repeated(own, 2500, 1000)
    assert many.job_id.tolist() == list(range(2500))
    assert [many.arrival_s[place] for place in (0, 999, 1000, 2499)] == [0, 0, 60, 120]
    assert set(many.duration_s) <= set(own.duration_s)
    pairs = set(zip(own.duration_s, own.gpu, strict=True))
    assert set(zip(many.duration_s, many.gpu, strict=True)) <= pairs
    assert len(np.unique(many.duration_s)) > 10


def test_stream_scaling_speeds(monkeypatch: Patch) -> None:
    monkeypatch.setattr(simulators, "SIMPY_MINUTES", {"small-1": 2})
    monkeypatch.setattr(simulators, "STREAM_RUNS", 2)
    lines: list[str] = []
    monkeypatch.setattr(simulators, "find_spec", lambda name: None)
    figures = list(simulators.stream_scaling(lines.append))
    assert [figure.name for figure in figures] == [
        "stream_scaling/small-1/task_minutes_per_s",
        "stream_scaling/small-1/no-noise/task_minutes_per_s",
    ]
    assert all(figure.value > 50_000 and figure.peer is None for figure in figures)
    assert "loadmaster[bench]" in lines[0]


def test_simpy_is_slower(monkeypatch: Patch) -> None:
    pytest.importorskip("simpy")
    monkeypatch.setattr(simulators, "SIMPY_MINUTES", {"small-1": 5})
    figure = next(simulators.stream_scaling(print))
    assert (figure.ratio or 0) > 200


@pytest.mark.slow
def test_simpy_model_has_the_simulators_latency() -> None:
    """A steady load that keeps the longest task busy for 80%: mean latency within 10%."""
    pytest.importorskip("simpy")
    settings = StreamScalingSettings(workload="toy", load_scale=2.0, minutes=120, contention=0.0)
    setup = build_setup(settings)
    start = build_stream(settings, setup, 0)
    need = 120 * setup.tables.nominal * setup.tables.service_min / 0.8
    plan = np.maximum(np.ceil(need), 1).astype(np.int64)
    start.state.parallelism[:] = plan
    advance(setup.tables, start.constants, start.state, 180)
    records = RecordSimulation(setup.tables, start.constants, start.state.load, plan, 1)
    records.run(180)
    latencies, ends = np.array(records.latencies_min), np.array(records.ends_min)
    expected = start.state.outcome[60:, LATENCY].mean()
    assert latencies[ends > 60].mean() == pytest.approx(expected, rel=0.1)
