"""What training must know of a system. The rest of this package knows no system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.platform.training.config import TrainingConfig


@dataclass(frozen=True)
class Recipe:
    """How a system is trained."""

    system: str
    config_class: type[TrainingConfig]
    metric: Callable[[Any], str]  # config -> what validation measures, in words; lower is better
    algorithm: Callable[[Any], Any]  # config -> RLlib's AlgorithmConfig, ready to build
    baselines: Callable[[Any, Sequence[int]], dict[str, float]]  # the metric of each, on seeds
    network: Callable[[Any], dict[str, Any]]  # config -> what a bundle says of the network
    check: Callable[[Any], None]  # config -> an InputError for what cannot run, before it does
    compile: Callable[[Any], None]  # once in this process, so that workers find it done
