"""Logs of AWARE's applications: episodes under a rule as transitions in Parquet.

An observation is the features of a control step (`models/aware/features.py`), with all estimates of
the application so far. A rule has no margins that an actor set, so actions are zeros: the rule's
margins. Rewards are the environment's. The bounds of plans are part of the units, since limits and
replicas are places between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from loadmaster.envs.pod_scaling.calibration import tuned_baseline
from loadmaster.envs.pod_scaling.episode import Setup
from loadmaster.envs.pod_scaling.observation import STATE_COLUMNS
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.estimates import new_estimates
from loadmaster.models.aware.features import ESTIMATED
from loadmaster.models.aware.logged import LoggedEpisode, record_rule
from loadmaster.models.aware.settings import MARGINS
from loadmaster.platform.rl.transition_files import (
    load_transitions,
    read_episodes,
    transition_writer,
)
from loadmaster.platform.rl.transitions import Description, Episode, Quantity


def log_description(settings: PodScalingSettings) -> Description:
    """Columns of a log with these bounds."""
    bounds = {
        "cpu limit": f"from {settings.min_cpu_m:g} to {settings.max_cpu_m:g} m, logarithmic",
        "memory limit": (
            f"from {settings.min_memory_mib:g} to {settings.max_memory_mib:g} MiB, logarithmic"
        ),
        "replicas": f"from {settings.min_replicas} to {settings.max_replicas}, logarithmic",
    }
    observed = (Quantity(name, bounds.get(name, "")) for name in STATE_COLUMNS)
    estimated = (Quantity(f"estimated {name}") for name in ESTIMATED)
    margins = (Quantity(name, "of the reach") for name in MARGINS)
    return Description("aware", (*observed, *estimated), tuple(margins))


def write_log(
    path: Path, settings: PodScalingSettings, setup: Setup, rule: str, seeds: Iterable[int]
) -> list[float]:
    """Record the episodes of `seeds` under a tuned rule; returns their rewards.

    `setup` has one application, whose estimates are kept from episode to episode.
    """
    (application,) = setup.applications
    baseline, estimates = tuned_baseline(rule, settings, application.name), new_estimates()
    rewards = []
    with transition_writer(path, log_description(settings)) as writer:
        for number, seed in enumerate(seeds):
            logged = record_rule(baseline, settings, setup, seed, estimates)
            rewards.append(logged.reward)
            writer.write(
                Episode(
                    observations=logged.features,
                    actions=np.zeros((len(logged.rewards), len(MARGINS)), np.float32),
                    rewards=logged.rewards,
                    application=application.name,
                    number=number,
                )
            )
    return rewards


def read_log(path: Path, settings: PodScalingSettings) -> tuple[str, list[LoggedEpisode]]:
    """The application of a log, and its episodes, the oldest first.

    Raises InputError if the file is not a log of one application within the bounds of `settings`.
    """
    expected = log_description(settings)
    checked = load_transitions(path, expected=expected, one_application=True)
    return checked.applications[0], list(_logged(path))


def _logged(path: Path) -> Iterator[LoggedEpisode]:
    for episode in read_episodes(path):
        yield LoggedEpisode(episode.observations, episode.rewards)
