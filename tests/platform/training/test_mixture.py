"""Mixtures of settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.gpu_scheduling.settings import GpuSchedulingSettings
from loadmaster.models.das.settings import trained_on
from loadmaster.platform.systems.das.training import RECIPE
from loadmaster.platform.training.mixture import Mixture, mixed_settings
from loadmaster.platform.training.retraining import finetune_config


def test_changes_apply_to_what_the_environment_sets() -> None:
    base = GpuSchedulingSettings(preempt=True, jobs=7)
    first, second = mixed_settings(base, [{"load": 0.4}, {"jobs": 9, "cluster": "medium"}])
    assert (first.preempt, first.jobs, first.load, first.cluster) == (True, 7, 0.4, "small")
    assert (second.preempt, second.jobs, second.load, second.cluster) == (True, 9, None, "medium")
    assert mixed_settings(base, []) == (base,)


def test_a_wrong_change_is_named() -> None:
    with pytest.raises(InputError, match="loat"):
        mixed_settings(GpuSchedulingSettings(), [{"loat": 0.4}])


def test_sequences_take_turns_and_the_rule_runs_once_for_each() -> None:
    asked: list[tuple[str, int]] = []

    def cost(member: str, sequence: int) -> float:
        asked.append((member, sequence))
        return float(sequence)

    mixture = Mixture(["a", "b", "c"], cost)
    assert [mixture.member(sequence) for sequence in (3, 4, 5, 6)] == ["a", "b", "c", "a"]
    assert [mixture.relative_cost(4, value) for value in (8.0, 2.0)] == [200.0, 50.0]
    assert mixture.relative_cost(5, 5.0) == 100.0
    assert asked == [("b", 4), ("c", 5)]


def test_bundles_of_a_mixture_say_so_and_leave_it_when_retrained() -> None:
    config = {"environment": {"jobs": 9}, "mixture": [{"load": 0.4}, {"load": 1.2}]}
    manifest: Any = SimpleNamespace(trained={"config": config, **config}, network={})
    assert trained_on(manifest) == "a mixture of 2 settings"
    again = finetune_config(RECIPE, manifest, Path("here"), {})
    assert again["mixture"] == config["mixture"]
    changed = finetune_config(RECIPE, manifest, Path("here"), {"environment": {"load": 0.7}})
    assert "mixture" not in changed
    assert changed["environment"] == {"jobs": 9, "load": 0.7}
