"""Hidden speeds: classes, drift, progress as the integral of the speed, and what rules learn."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling import features
from loadmaster.envs.gpu_scheduling import state as cols
from loadmaster.envs.gpu_scheduling.actions import sample_legal_action
from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.envs.gpu_scheduling.calibration import tuned_baseline
from loadmaster.envs.gpu_scheduling.class_speeds import (
    CLASSES,
    MAIN_SHARE,
    class_factors,
    draw_classes,
    pair_severities,
)
from loadmaster.envs.gpu_scheduling.cluster import build_cluster
from loadmaster.envs.gpu_scheduling.env import GpuSchedulingEnv
from loadmaster.envs.gpu_scheduling.episode import (
    Episode,
    build_episode,
    run_baseline,
    run_episode,
)
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuSchedulingSettings
from loadmaster.envs.gpu_scheduling.state import DRIFT_EVERY_S, new_state
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.envs.gpu_scheduling.workloads import load_workload
from loadmaster.envs.settings import build_settings
from tests.envs.gpu_scheduling.instances import job, jobs_of, machines, play
from tests.envs.gpu_scheduling.test_calibration import kept_in

PREDICTED = (
    "predicted-speed-price", "predicted-measured-speeds", "predicted-process-speeds",
    "predicted-true-speeds",
)  # fmt: skip
SEED = 12


def hidden(**values: Any) -> GpuSchedulingSettings:
    return GpuSchedulingSettings.model_validate({"speeds": "hidden", "stragglers": 0, **values})


def splitmix64(key: int, count: int) -> int:
    mask = (1 << 64) - 1
    x = (key + (count + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def normal(key: int, count: int) -> float:
    one, other = ((splitmix64(key, 2 * count + i) >> 11) * 2.0**-53 + 2.0**-54 for i in (0, 1))
    return math.sqrt(-2 * math.log(one)) * math.cos(2 * math.pi * other)


def drift_of(
    settings: GpuSchedulingSettings, seed: int, machine: int, rack: int, steps: int
) -> NDArray[np.float64]:
    """(steps,) Speed factor of a machine from its definition."""
    kept = math.exp(-DRIFT_EVERY_S / (3600 * settings.drift_hours))
    key, logs = splitmix64(seed, 1 << 40), np.zeros((steps, 2))
    sigmas = settings.machine_drift, settings.rack_drift
    for part, (entity, sigma) in enumerate(zip((machine, (1 << 20) + rack), sigmas, strict=True)):
        drawn = [sigma * normal(splitmix64(key, entity), step) for step in range(steps)]
        logs[0, part] = drawn[0]
        for step in range(1, steps):
            logs[step, part] = kept * logs[step - 1, part] + math.sqrt(1 - kept**2) * drawn[step]
    factor: NDArray[np.float64] = np.exp(logs.sum(axis=1))
    return factor


def work_done(factor: NDArray[np.float64], start_s: float, end_s: float) -> float:
    """Integral of a factor that is constant for DRIFT_EVERY_S."""
    edges = np.arange(len(factor) + 1) * DRIFT_EVERY_S
    inside = np.clip(edges[1:], start_s, end_s) - np.clip(edges[:-1], start_s, end_s)
    return float(inside @ factor)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo-first-fit", "fifo-fastest", "drf-load-balance"])
def test_progress_is_integral_of_speed(policy: str) -> None:
    groups = machines(3, 2, per_rack=2), machines(2, 1, "T4")
    settings = hidden(machines=groups, interference=False)
    rows = [job(400.0 * i, 2000.0 + 700 * i, user=i % 5) for i in range(40)]
    episode = Episode(build_cluster(settings), jobs_of(rows), SEED)
    cluster, jobs, seed = episode
    result = play(policy, settings, episode)
    classes, names = draw_classes(jobs, seed), list(GPU_TYPES)
    assert result.trace is not None
    assert result.preemptions == 0
    steps = int(result.trace.end_s.max() // DRIFT_EVERY_S) + 1
    drift = [drift_of(settings, seed, m, int(cluster.rack[m]), steps) for m in range(5)]
    trace = result.trace
    columns = trace.job, trace.machine, trace.start_s, trace.end_s
    for number, machine, start_s, end_s in zip(*columns, strict=True):
        gpu = GPU_TYPES[names[cluster.gpu_type[machine]]]
        speed = gpu.speed * class_factors(gpu)[classes[number]]
        done_s = speed * work_done(drift[machine], start_s, end_s)
        assert done_s == pytest.approx(jobs.duration_s[number], rel=1e-9)
    busy = result.trace.instances @ (result.trace.end_s - result.trace.start_s)
    assert result.gpu_s == pytest.approx(busy)


@pytest.mark.slow
def test_sharers_lose_by_the_pair_of_their_classes() -> None:
    """Two jobs of half a GPU: together they use all of it, so they keep 0.79 on average."""
    settings = hidden(machines=(machines(1, 1),), machine_drift=0, rack_drift=0)
    jobs = jobs_of([job(0, 1000, gpu=50, user=0), job(0, 5000, gpu=50, user=1)])
    seeds = range(6)
    assert len({tuple(draw_classes(jobs, seed)) for seed in seeds}) > 3
    for seed in seeds:
        one, other = draw_classes(jobs, seed)[np.argsort(jobs.duration_s)]
        pairs = pair_severities(GPU_TYPES["V100"])
        kept = [max(1 - 0.21 * pairs[a, b], 0.05) for a, b in ((one, other), (other, one))]
        first_s = 1000 / kept[0]
        last_s = first_s + 5000 - first_s * kept[1]
        result = play("fifo-first-fit", settings, Episode(build_cluster(settings), jobs, seed))
        assert sorted(result.finish_s) == pytest.approx([first_s, last_s])


def test_class_speeds_are_those_measured() -> None:
    recommendation, gan = CLASSES.index("Recommendation"), CLASSES.index("CycleGAN")
    p100 = GPU_TYPES["P100"].speed * class_factors(GPU_TYPES["P100"])
    assert p100[recommendation] == pytest.approx(2.17)
    assert p100[gan] == pytest.approx(0.54)
    assert class_factors(GPU_TYPES["V100"]) == pytest.approx(np.ones(len(CLASSES)))
    assert class_factors(GPU_TYPES["A100"]) == pytest.approx(np.ones(len(CLASSES)))
    between = class_factors(GPU_TYPES["T4"])
    for factor, *ends in zip(
        between, class_factors(GPU_TYPES["K80"]), class_factors(GPU_TYPES["P100"]), strict=True
    ):
        assert min(ends) <= factor <= max(ends)
    for gpu in GPU_TYPES.values():
        assert pair_severities(gpu).mean() == pytest.approx(1)


def test_users_tend_to_run_one_class() -> None:
    jobs = jobs_of([job(i, 1, user=i % 8) for i in range(4000)])
    classes = draw_classes(jobs, SEED)
    assert np.array_equal(classes, draw_classes(jobs, SEED))
    assert not np.array_equal(classes, draw_classes(jobs, SEED + 1))
    expected = MAIN_SHARE + (1 - MAIN_SHARE) / len(CLASSES)
    for user in range(8):
        counts = np.bincount(classes[jobs.user == user], minlength=len(CLASSES))
        assert counts.max() / counts.sum() == pytest.approx(expected, abs=0.05)


@pytest.mark.slow
def test_drift_has_the_spread_and_memory_of_the_settings() -> None:
    settings = hidden(machine_drift=0.3, rack_drift=0.2, drift_hours=2)
    logs = np.log([drift_of(settings, 5, m, m // 4, 3000) for m in range(16)])
    assert logs.std() == pytest.approx(math.hypot(0.3, 0.2), rel=0.1)
    later = int(2 * 3600 / DRIFT_EVERY_S)
    assert np.corrcoef(logs[:, :-later].ravel(), logs[:, later:].ravel())[0, 1] == pytest.approx(
        math.exp(-1), abs=0.08
    )
    together = np.corrcoef(logs)
    assert together[0, 1:4].mean() == pytest.approx(0.2**2 / (0.3**2 + 0.2**2), abs=0.1)
    assert abs(together[0, 4:].mean()) < 0.08


@pytest.mark.slow
def test_known_speeds_are_the_same_for_all_sources() -> None:
    settings = GpuSchedulingSettings(jobs=60)
    nominal, *others = (run_episode(name, settings, 3) for name in PREDICTED)
    for other in others:
        assert np.array_equal(nominal.finish_s, other.finish_s)


@pytest.mark.slow
def test_episode_depends_on_seed_only() -> None:
    settings = GpuSchedulingSettings(jobs=60, speeds="hidden", load=1)
    for name in (*PREDICTED, "fifo-first-fit", "mosa"):
        one, other, another = (run_episode(name, settings, seed) for seed in (3, 3, 4))
        assert np.array_equal(one.finish_s, other.finish_s), name
        assert not np.array_equal(one.finish_s, another.finish_s), name
    known = run_episode("fifo-first-fit", settings.model_copy(update={"speeds": "known"}), 3)
    assert np.array_equal(known.jobs.arrival_s, one.jobs.arrival_s)
    assert np.array_equal(known.jobs.duration_s, one.jobs.duration_s)


@pytest.mark.slow
@pytest.mark.parametrize("job_classes", ["visible", "hidden"])
def test_running_means_find_the_speeds_of_classes(job_classes: str) -> None:
    """Without drift a class on a GPU type has one speed; a user has several classes."""
    quiet = {"machine_drift": 0, "rack_drift": 0, "interference": False}
    settings = hidden(jobs=200, load=1.0, job_classes=job_classes, **quiet)
    episode = build_episode(settings, 2)
    state = run_baseline(settings, episode, BASELINES["predicted-measured-speeds"])
    means = state.user_history[:, cols.MEASURED_LOG :].reshape(len(state.user_history), -1, 2)
    found = 0
    for number, gpu in enumerate(settings.known_gpu_types.values()):
        factors, seen_s = np.log(class_factors(gpu)), means[: len(CLASSES), number, 1]
        long = seen_s > 36_000
        found += int(long.sum())
        # The prior of 600 s at the nominal speed is a sixtieth; machines may take a part.
        if job_classes == "visible" and long.any():
            ratio = means[: len(CLASSES), number, 0][long] / seen_s[long]
            assert ratio == pytest.approx(factors[long], abs=0.15)
    assert found > 3


@pytest.mark.slow
def test_knowing_speeds_shortens_completion_times() -> None:
    settings = GpuSchedulingSettings(speeds="hidden", load=1.0)
    workload = load_workload(settings)
    nominal, measured, process, true = (
        np.mean([run_episode(name, settings, seed, workload).mean_jct_s for seed in range(20, 32)])
        for name in PREDICTED
    )
    assert true < 0.95 * nominal
    assert measured < nominal
    assert true < process < 0.95 * nominal


@pytest.mark.slow
def test_agents_see_nominal_speeds_and_measured_progress() -> None:
    env = GpuSchedulingEnv(speeds="hidden", jobs=60, stragglers=0)
    observations, _ = env.reset(seed=3)
    rng, differs = np.random.default_rng(0), 0
    speed = build_cluster(env.settings).speed
    while env.agents:
        view = observations["ordering"]
        assert view["machines"][:, features.SPEED] == pytest.approx(speed)
        seen = view["history_mask"][0]
        differs += int((np.abs(view["history_y"][0][seen] / speed[seen] - 1) > 0.05).sum())
        observations, *_ = env.step(sample_legal_action(view, rng))
    assert differs > 20


@pytest.mark.slow
def test_environments_at_once_equal_single_ones() -> None:
    values: dict[str, Any] = {"speeds": "hidden", "jobs": 30, "preempt": True}
    single, vector = GpuSchedulingEnv(**values), GpuSchedulingVectorEnv(2, **values)
    observations, _ = single.reset(seed=8)
    batch, _ = vector.reset(seed=[7, 8])
    rng = np.random.default_rng(0)
    for _ in range(60):
        for name, table in observations["ordering"].items():
            assert np.array_equal(table, batch[name][1]), name
        actions = sample_legal_action(observations["ordering"], rng)
        observations, *_ = single.step(actions)
        batch, *_ = vector.step({name: np.stack([one, one]) for name, one in actions.items()})
        if not single.agents:
            break


def test_calibrations_are_chosen_by_speeds(tmp_path: Path) -> None:
    path = kept_in(
        tmp_path,
        {"parameters": {"price": 0.1}},
        {"parameters": {"price": 0.2}, "speeds": "hidden"},
        {"parameters": {"price": 0.3}, "speeds": "hidden", "baseline": "las-true-speeds"},
    )

    def price(name: str, speeds: str) -> float:
        values = {"calibration": path, "speeds": speeds}
        settings = GpuSchedulingSettings.model_validate(values)
        return tuned_baseline(name, settings, load_workload(settings)).parameters["price"]

    for name, known, unknown in (
        ("las-speed-price", 0.1, 0.2),
        ("las-measured-speeds", 0.1, 0.2),
        ("las-true-speeds", 0.1, 0.3),
    ):
        assert (price(name, "known"), price(name, "hidden")) == (known, unknown)


@pytest.mark.parametrize("wrong", [{"speeds": "secret"}, {"machine_drift": -1}, {"drift_hours": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        build_settings(GpuSchedulingSettings, wrong)


def test_known_speeds_need_no_tables() -> None:
    settings = GpuSchedulingSettings(jobs=5)
    state = new_state(settings, *build_episode(settings, 0))
    assert state.factors.shape[1] == cols.CLASS_FACTOR
    assert state.times[cols.NEXT_DRIFT] == cols.NEVER
    assert np.all(state.factors[:, cols.DRIFT] == 1)
