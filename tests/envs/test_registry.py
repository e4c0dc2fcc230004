"""The registry of environments, and what Gymnasium knows of it."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import EnvironmentSpec, environments, find_environment
from loadmaster.envs.settings import Settings

ALL = environments().values()
SPECS = pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
SINGLE_AGENT = pytest.mark.parametrize(
    "spec", [spec for spec in ALL if not spec.multi_agent], ids=lambda spec: spec.name
)
MULTI_AGENT = pytest.mark.parametrize(
    "spec", [spec for spec in ALL if spec.multi_agent], ids=lambda spec: spec.name
)


@SPECS
def test_found_by_name_and_by_id(spec: EnvironmentSpec) -> None:
    assert find_environment(spec.name) is spec
    assert find_environment(spec.gym_id) is spec


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'dag_schedulin'; did you mean 'dag_scheduling'\?"):
        find_environment("dag_schedulin")


@SPECS
def test_references_lead_somewhere(spec: EnvironmentSpec) -> None:
    assert issubclass(spec.settings, Settings)
    assert spec.settings() == spec.settings(), "every setting has a default"
    for records in (spec.baseline_records, spec.workload_records):
        assert records
        for name, record in records.items():
            assert record.name == name
            assert record.summary
            assert "\n" not in record.summary
    assert list(spec.baselines) == list(spec.baseline_records)
    assert list(spec.workloads) == list(spec.workload_records)


@SINGLE_AGENT
def test_gymnasium_makes_it(spec: EnvironmentSpec) -> None:
    environment = gymnasium.make(spec.gym_id)
    observation, _ = environment.reset(seed=1)
    assert environment.observation_space.contains(observation)
    environment.close()


@SINGLE_AGENT
def test_gymnasium_makes_many_at_once(spec: EnvironmentSpec) -> None:
    environments = gymnasium.make_vec(spec.gym_id, num_envs=2)
    assert type(environments.unwrapped).__name__ == spec.vector_entry_point.partition(":")[2]
    observations, _ = environments.reset(seed=1)
    assert environments.observation_space.contains(observations)
    environments.close()


@SINGLE_AGENT
def test_gymnasium_imports_us_by_the_id(spec: EnvironmentSpec) -> None:
    """In a process that never heard of us, `module:id` is enough."""
    made = f"gymnasium.make('loadmaster.envs:{spec.gym_id}')"
    code = f"import gymnasium; print({made}.spec.entry_point)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == spec.entry_point


@MULTI_AGENT
def test_the_registry_makes_what_gymnasium_cannot(spec: EnvironmentSpec) -> None:
    assert spec.gym_id not in gymnasium.registry
    environment = spec.make()
    assert type(environment).__name__ == spec.entry_point.partition(":")[2]
    assert tuple(environment.possible_agents) == spec.agents
    observations, _ = environment.reset(seed=1)
    for agent in spec.agents:
        assert environment.observation_space(agent).contains(observations[agent])
    environments = spec.make_vec(2)
    assert type(environments).__name__ == spec.vector_entry_point.partition(":")[2]
    assert environments.observation_space.contains(environments.reset(seed=1)[0])


def test_importing_the_ground_floor_stays_light() -> None:
    code = "import sys, loadmaster.envs; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numba", "torch", "ray", "pandas", "pettingzoo"} & set(done.stdout.split()) == set()
