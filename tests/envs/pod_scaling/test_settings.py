"""Settings, loads and shifts: what they change, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.pod_scaling.describe import describe_episode
from loadmaster.envs.pod_scaling.env import PodScalingEnv
from loadmaster.envs.pod_scaling.episode import build_episode, build_setup
from loadmaster.envs.pod_scaling.settings import WARM_UP_STEPS, PodScalingSettings
from loadmaster.envs.pod_scaling.state import CPU_S, SLO_S
from loadmaster.envs.settings import build_settings, parse_assignments


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ("min_replicas=30", "min_replicas is 30, more than max_replicas 20"),
        ("min_cpu_m=4000", "min_cpu_m is 4000, more than max_cpu_m 2048"),
        ("max_memory_mib=100", "min_memory_mib is 256, more than max_memory_mib 100"),
        ("initial_cpu_m=64", "initial_cpu_m is 64; expected 128 to 2048"),
        ("slo_weight=0.3", "slo_weight: .*greater than or equal to 0.5"),
        ("nodes=20", "nodes is 20, more than max_nodes 10"),
        ("node_cpu_m=100", "no pod fits"),
        ("shift=payload:0@5", "payload is '0'; expected a factor above 0"),
        ("shift=load:middle@5", "load is 'middle'; expected a factor above 0, high or low"),
        ("shift=payload:2", "expected KIND:VALUE@STEP"),
        ("shift=payload:2@100", "after the episode's end; expected less than 100"),
        ("shift=colour:2@5", "shift.0.kind"),
        ("shift=application:matMull@5", "did you mean 'matMul'"),
        ("application=matMull", "did you mean 'matMul'"),
        ("workload=diurnal", "did you mean 'diurnal-like'"),
        ("actions=both", "'continuous' or 'discrete'"),
    ],
)
def test_bad_settings_are_refused_in_one_line(assignment: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as found:
        PodScalingEnv(**parse_assignments([assignment]))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (["2024-01-01 00:00:00,1", "2024-01-01 00:02:00,1"], "line 3: time"),
        (["2024-01-01 00:00:00,-1"], "line 2: requests '-1'"),
        (["2024-01-01 00:00:00,"], "line 2: requests ''"),
    ],
)
def test_bad_counts_are_refused(tmp_path: Path, rows: list[str], fault: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("\n".join(["time,requests", *rows]) + "\n")
    with pytest.raises(InputError, match=fault):
        PodScalingEnv(workload="counts", data=str(path))


def arrivals(seed: int = 0, **values: Any) -> Any:
    """(steps,) requests from the first decision on, and the state."""
    settings = build_settings(PodScalingSettings, values)
    state = build_episode(settings, build_setup(settings), seed).state
    return state.arrivals.reshape(-1, 4).sum(axis=1)[WARM_UP_STEPS:], state


def test_own_counts_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("\n".join(["requests", *(str(100 + n) for n in range(300))]) + "\n")
    counts, state = arrivals(workload="counts", data=str(path), steps=50)
    assert (np.diff(counts) == 1).sum() >= 48
    assert (np.ptp(state.arrivals.reshape(-1, 4), axis=1) <= 1).all(), "spread over the step"


@pytest.mark.parametrize("workload", ["diurnal-like", "bursty-like"])
def test_generated_loads_have_the_mean_of_their_level(workload: str) -> None:
    for load, a_day in (("high", 864_000), ("low", 43_200)):
        mean = np.mean(
            [arrivals(seed, workload=workload, load=load)[0].mean() for seed in range(150)]
        )
        assert 1440 * mean == pytest.approx(a_day, rel=0.15)


def test_bursts_are_burstier() -> None:
    peaks = {}
    for workload in ("diurnal-like", "bursty-like"):
        counts = [arrivals(seed, workload=workload)[0] for seed in range(40)]
        peaks[workload] = np.mean([own.max() / own.mean() for own in counts])
    assert peaks["bursty-like"] > 1.5 * peaks["diurnal-like"]


def test_shifts_change_load_payload_and_application() -> None:
    base, before = arrivals(application="matMul", workload="toy")
    shifts = ["load:low@20", "payload:1.5@40", "application:sleep@60", "load:4@80"]
    counts, state = arrivals(application="matMul", workload="toy", shift=shifts)
    assert base[0] == 600
    assert counts[[0, 19, 20, 79, 80]].tolist() == [600, 600, 30, 30, 120]
    apps = state.apps[state.app_of[WARM_UP_STEPS:]]
    assert apps[[39, 40, 60], CPU_S].tolist() == pytest.approx([0.12, 0.18, 0.0015])
    assert apps[39, SLO_S] == apps[40, SLO_S] == before.apps[0, SLO_S]
    assert apps[60, SLO_S] < apps[40, SLO_S]
    settings = build_settings(PodScalingSettings, {"application": "matMul", "shift": shifts[:2]})
    words = describe_episode(settings, 1)
    assert words.endswith("load low from step 20, payload x1.5 from step 40")
    again = build_settings(PodScalingSettings, settings.model_dump(mode="json"))
    assert again == settings


def test_applications_are_drawn_by_seed() -> None:
    env = PodScalingEnv(application="test")
    names = [env.reset(seed=seed)[1]["application"] for seed in range(30)]
    assert len(set(names)) > 20
    assert names[:5] == [env.reset(seed=seed)[1]["application"] for seed in range(5)]
