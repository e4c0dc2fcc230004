"""The registry of environments, their settings, and the cache of compiled functions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from loadmaster.envs.compiled import PACKAGE_ROOT, PackageCacheLocator, cache_folder, cache_root
from loadmaster.envs.dag_scheduling.rollout import run
from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import EnvironmentSpec, environments, find_environment
from loadmaster.envs.settings import Settings, build_settings, parse_assignments

SPECS = pytest.mark.parametrize("spec", environments().values(), ids=lambda spec: spec.name)
DAG, GPU = "dag_scheduling", "gpu_scheduling"


@SPECS
def test_names_and_references_resolve(spec: EnvironmentSpec) -> None:
    assert find_environment(spec.name) is find_environment(spec.gym_id) is spec
    assert (spec.gym_id in gymnasium.registry) != spec.multi_agent
    assert tuple(getattr(spec.make().unwrapped, "possible_agents", ())) == spec.agents
    assert issubclass(spec.settings, Settings)
    assert spec.settings() == spec.settings(), "every setting has a default"
    for records in (spec.baseline_records, spec.workload_records):
        assert records
        for name, record in records.items():
            assert record.name == name
            assert record.summary
            assert "\n" not in record.summary


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'dag_schedulin'; did you mean 'dag_scheduling'\?"):
        find_environment("dag_schedulin")


@pytest.mark.parametrize(
    ("name", "assignments", "problem"),
    [
        (DAG, ["executers=4"], r"'executers'; did you mean 'executors'\?"),
        (DAG, ["executors=0"], "setting executors: "),
        (DAG, ["interarrival_s=.nan"], "setting interarrival_s: "),
        (DAG, ["arrivals=burst"], "setting arrivals: "),
        (DAG, ["executor_classes=[{count: 0}]"], r"setting executor_classes\.0\.count: "),
        (DAG, ["executor_classes=[{count: 3}]", "executors=5"], "executors=5"),
        (DAG, ["workload=tpch-lite"], r"'tpch-lite'; did you mean 'tpch-like'\?"),
        (GPU, ["cluser=small"], "'cluser'; did you mean 'cluster'"),
        (GPU, ["cluster=huge"], "setting cluster: .*'small', 'medium' or 'large'"),
        (GPU, ["load=0"], "setting load: .*greater than 0"),
        (GPU, ["stragglers=-0.1"], "setting stragglers: .*greater than or equal to 0"),
        (GPU, ["machines=[{count: 0, gpus: 8, gpu: T4, cpus: 96}]"], r"machines\.0\.count: "),
        (GPU, ["machines=[{count: 1, gpus: 8, cpus: 96}]"], r"machines\.0\.gpu: Field required"),
        (GPU, ["machines=[{count: 1, gpus: 1, gpu: T5, cpus: 8}]"], "'T5'; did you mean 'T4'"),
        (GPU, ["gpu_types=[{name: X, speed: 1, price_per_hour: -2}]"], "0.price_per_hour: "),
        (GPU, ["load=1", "interarrival_s=5"], "interarrival_s and load"),
        (GPU, ["workload=pai-lite"], "'pai-lite'; did you mean 'pai-like'"),
    ],
)
def test_bad_settings_are_refused_in_one_line(
    name: str, assignments: list[str], problem: str
) -> None:
    with pytest.raises(InputError, match=rf"\A.*{problem}.*\Z"):
        find_environment(name).make(**parse_assignments(assignments))


@pytest.mark.parametrize(
    ("name", "assignments", "derived"),
    [
        (DAG, ["executor_classes=[{count: 3}, {count: 2, memory: 0.5}]"], {"executors": 5}),
        (
            GPU,
            [
                "machines=[{count: 3, gpus: 8, gpu: H100, cpus: 96}]",
                "gpu_types=[{name: H100, speed: 4, price_per_hour: 7}]",
                "data=some/folder",
            ],
            {"data": "some/folder", "load": None},
        ),
    ],
)
def test_dumped_settings_load_again(
    name: str, assignments: list[str], derived: dict[str, Any]
) -> None:
    kind = find_environment(name).settings
    settings = build_settings(kind, parse_assignments(assignments))
    dumped = settings.model_dump(mode="json")
    assert dumped.items() >= derived.items()
    assert build_settings(kind, dumped) == settings


def output_of(code: str) -> str:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_gymnasium_imports_the_package_named_in_an_id() -> None:
    spec = find_environment(DAG)
    made = f"gymnasium.make('loadmaster.envs:{spec.gym_id}')"
    printed = output_of(f"import gymnasium; print({made}.spec.entry_point)")
    assert printed.strip() == spec.entry_point


def test_import_of_envs_loads_no_heavy_library() -> None:
    loaded = output_of("import sys, loadmaster.envs; print(*sys.modules)").split()
    assert {"numba", "torch", "ray", "pandas", "pettingzoo"}.isdisjoint(loaded)


def test_cache_path_follows_the_module_path_within_the_packages(tmp_path: Path) -> None:
    subpath = PackageCacheLocator.get_suitable_cache_subpath
    folder = subpath(str(PACKAGE_ROOT / "envs" / "dag_scheduling" / "rollout.py"))
    assert folder == "dag_scheduling_envs_dag_scheduling"
    assert cache_folder().is_relative_to(cache_root())
    assert Path(run._cache.cache_path) == cache_folder() / folder  # type: ignore[attr-defined]
    ours = {subpath(str(PACKAGE_ROOT / p / "decima" / "network.py")) for p in ("models", "serving")}
    assert len(ours) == 2
    others = {subpath(str(tmp_path / part / "fast" / "loop.py")) for part in "ab"}
    assert len(others) == 2
    assert all(path.startswith("fast_") for path in others)
