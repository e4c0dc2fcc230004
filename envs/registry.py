"""Which environments there are, and what each has to offer.

An entry holds references, not objects: listing the environments imports none of them, and what an
environment offers is told by its own package alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import gymnasium
import numpy as np

from loadmaster.envs.errors import unknown_name
from loadmaster.envs.settings import Settings


class Named(Protocol):
    """A baseline or a workload, as far as a list of them is concerned."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...


class LegalActionSampler(Protocol):
    """Any action that the observation marks as legal: how a stranger can play an environment."""

    def __call__(self, observation: Any, rng: np.random.Generator) -> Any: ...


@dataclass(frozen=True)
class EnvironmentSpec:
    """One environment. From `entry_point` to `legal_action_at` the fields are references,
    `module:attribute`.

    One with `agents` is multi-agent and has PettingZoo's parallel API: Gymnasium cannot make it.
    Its vector form has that of Gymnasium, with a mapping of agents to actions.
    """

    name: str
    gym_id: str
    summary: str
    entry_point: str
    vector_entry_point: str
    settings_at: str
    baselines_at: str
    workloads_at: str
    legal_action_at: str
    agents: tuple[str, ...] = ()

    @property
    def multi_agent(self) -> bool:
        return bool(self.agents)

    def make(self, **settings: Any) -> Any:
        """The environment: Gymnasium's, or PettingZoo's where it is multi-agent."""
        if self.multi_agent:
            return resolve(self.entry_point)(**settings)
        return gymnasium.make(self.gym_id, **settings)

    def make_vec(self, num_envs: int, **settings: Any) -> Any:
        """`num_envs` of them, stepped together."""
        if self.multi_agent:
            return resolve(self.vector_entry_point)(num_envs, **settings)
        return gymnasium.make_vec(
            self.gym_id, num_envs, vectorization_mode="vector_entry_point", **settings
        )

    @property
    def settings(self) -> type[Settings]:
        kind: type[Settings] = resolve(self.settings_at)
        return kind

    @property
    def baseline_records(self) -> Mapping[str, Named]:
        records: Mapping[str, Named] = resolve(self.baselines_at)
        return records

    @property
    def workload_records(self) -> Mapping[str, Named]:
        records: Mapping[str, Named] = resolve(self.workloads_at)
        return records

    @property
    def sample_legal_action(self) -> LegalActionSampler:
        sampler: LegalActionSampler = resolve(self.legal_action_at)
        return sampler

    @property
    def baselines(self) -> tuple[str, ...]:
        return tuple(self.baseline_records)

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(self.workload_records)


def _built_in(name: str, camel: str, summary: str, agents: tuple[str, ...] = ()) -> EnvironmentSpec:
    """One of ours: their packages are laid out alike."""
    package = f"loadmaster.envs.{name}"
    return EnvironmentSpec(
        name=name,
        gym_id=f"loadmaster/{camel}-v0",
        summary=summary,
        entry_point=f"{package}.env:{camel}Env",
        vector_entry_point=f"{package}.vector_env:{camel}VectorEnv",
        settings_at=f"{package}.settings:{camel}Settings",
        baselines_at=f"{package}.baselines:BASELINES",
        workloads_at=f"{package}.workloads:WORKLOADS",
        legal_action_at=f"{package}.actions:sample_legal_action",
        agents=agents,
    )


_ENVIRONMENTS = (
    _built_in(
        "dag_scheduling",
        "DagScheduling",
        "Spark-like jobs, DAGs of stages, share a pool of executors.",
    ),
    _built_in(
        "gpu_scheduling",
        "GpuScheduling",
        "Distributed training jobs, gangs of instances, share machines with GPUs.",
        agents=("ordering", "placement"),
    ),
)


def environments() -> dict[str, EnvironmentSpec]:
    """Every environment by its name."""
    return {spec.name: spec for spec in _ENVIRONMENTS}


def find_environment(name: str) -> EnvironmentSpec:
    """The environment of that name or id; an InputError suggests the nearest."""
    for spec in _ENVIRONMENTS:
        if name in (spec.name, spec.gym_id):
            return spec
    raise unknown_name("environment", name, environments())


def register_environments() -> None:
    """Tell `gymnasium.make` and `make_vec` of the environments; they import them when asked."""
    for spec in _ENVIRONMENTS:
        if not spec.multi_agent and spec.gym_id not in gymnasium.registry:
            gymnasium.register(
                spec.gym_id,
                entry_point=spec.entry_point,
                vector_entry_point=spec.vector_entry_point,
            )


def resolve(reference: str) -> Any:
    """What "module:object" refers to, imported now."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
