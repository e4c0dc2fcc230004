"""The registry of environments and their registration with Gymnasium."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import EnvironmentSpec, environments, find_environment
from loadmaster.envs.settings import Settings

SPECS = pytest.mark.parametrize("spec", environments().values(), ids=lambda spec: spec.name)


@SPECS
def test_found_by_name_and_by_id(spec: EnvironmentSpec) -> None:
    assert find_environment(spec.name) is spec
    assert find_environment(spec.gym_id) is spec


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'dag_schedulin'; did you mean 'dag_scheduling'\?"):
        find_environment("dag_schedulin")


@SPECS
def test_references_resolve(spec: EnvironmentSpec) -> None:
    assert issubclass(spec.settings, Settings)
    assert spec.settings() == spec.settings(), "every setting has a default"
    for records in (spec.baseline_records, spec.workload_records):
        assert records
        for name, record in records.items():
            assert record.name == name
            assert record.summary
            assert "\n" not in record.summary


@SPECS
def test_registry_makes_single_and_vector_environments(spec: EnvironmentSpec) -> None:
    assert (spec.gym_id in gymnasium.registry) != spec.multi_agent
    single, vector = spec.make().unwrapped, spec.make_vec(2).unwrapped
    assert type(single).__name__ == spec.entry_point.partition(":")[2]
    assert type(vector).__name__ == spec.vector_entry_point.partition(":")[2]
    assert tuple(getattr(single, "possible_agents", ())) == spec.agents


def output_of(code: str) -> str:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_gymnasium_imports_the_package_named_in_an_id() -> None:
    spec = find_environment("dag_scheduling")
    made = f"gymnasium.make('loadmaster.envs:{spec.gym_id}')"
    printed = output_of(f"import gymnasium; print({made}.spec.entry_point)")
    assert printed.strip() == spec.entry_point


def test_import_of_envs_loads_no_heavy_library() -> None:
    loaded = output_of("import sys, loadmaster.envs; print(*sys.modules)").split()
    assert {"numba", "torch", "ray", "pandas", "pettingzoo"}.isdisjoint(loaded)
