"""Evaluation in pod scaling: the environment's adapter."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from loadmaster.envs.pod_scaling.baselines import BASELINES
from loadmaster.envs.pod_scaling.calibration import tuned_baseline, tuned_for, untuned_baselines
from loadmaster.envs.pod_scaling.clairvoyant import POLICY as CLAIRVOYANT
from loadmaster.envs.pod_scaling.clairvoyant import run_clairvoyant
from loadmaster.envs.pod_scaling.describe import changed_settings, describe_episode
from loadmaster.envs.pod_scaling.episode import EpisodeResult, Setup, build_setup
from loadmaster.envs.pod_scaling.metrics import EPISODE_METRICS
from loadmaster.envs.pod_scaling.rollout import run_episode
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.pod_scaling.workloads import WORKLOADS
from loadmaster.envs.settings import build_settings
from loadmaster.envs.traces import find_workload
from loadmaster.platform.evaluation import adapters


def settings_from(values: Mapping[str, Any]) -> PodScalingSettings:
    settings = build_settings(PodScalingSettings, values)
    find_workload(WORKLOADS, settings.workload)
    return settings


def prepare(settings: PodScalingSettings) -> adapters.EvaluationSetup:
    setup = build_setup(settings)
    return adapters.EvaluationSetup(
        settings=settings,
        workload=settings.workload,
        conditions=describe_episode(settings, len(setup.applications)),
        metrics=EPISODE_METRICS,
        run=lambda policy, seed: run(policy, settings, setup, seed),
        notes=tuple(notes(settings, setup)),
        parameters=tuned_parameters(settings, tuned_for(settings, setup)),
        oracles=frozenset({CLAIRVOYANT}),
        bank=setup,
    )


def run(policy: str, settings: PodScalingSettings, setup: Setup, seed: int) -> EpisodeResult:
    """Run a tuned rule, or the bound."""
    if policy == CLAIRVOYANT:
        return run_clairvoyant(settings, setup, seed)
    return run_episode(policy, settings, seed, setup)


def notes(settings: PodScalingSettings, setup: Setup) -> Iterator[str]:
    """On the load, and on rules without parameters for these applications."""
    if setup.load.description:
        yield setup.load.description
    if untuned := untuned_baselines(settings, setup):
        command = f"loadmaster calibrate pod_scaling --set application={settings.application}"
        yield f"not tuned for {settings.application}: {', '.join(untuned)}; see `{command}`"


def tuned_parameters(settings: PodScalingSettings, application: str) -> dict[str, str]:
    """The parameters of tuned rules in words; in a set, one application may have its own."""
    words = {}
    for name, published in BASELINES.items():
        rule = tuned_baseline(name, settings, application)
        if rule != published:
            words[name] = ", ".join(f"{key} {value:g}" for key, value in rule.parameters.items())
    return words


def folder_name(settings: PodScalingSettings) -> str:
    own = [f"{name}-{value}" for name, value in changed_settings(settings) if name != "application"]
    return adapters.folder_name_of(["pod_scaling", settings.application, settings.workload, *own])


EVALUATION = adapters.EnvironmentAdapter(
    environment="pod_scaling",
    baselines=tuple(BASELINES),
    settings=settings_from,
    folder_name=folder_name,
    prepare=prepare,
    references=(CLAIRVOYANT,),
    is_compiled=partial(adapters.loop_is_compiled, "pod_scaling"),
)
