"""Training settings: partly given groups, and what a resumed run may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings, over_defaults, parse_assignments
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.config import TrainingConfig, check_same_run


def from_assignments(*assignments: str) -> DecimaTraining:
    """As `loadmaster train decima --set ...` does."""
    values = over_defaults(DecimaTraining(), parse_assignments(assignments))
    return build_settings(DecimaTraining, values)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("training.entropy.lats=1", "lats'; did you mean 'training.entropy.last'"),
        ("enviroment.jobs=3", "unknown setting 'enviroment'; did you mean 'environment'"),
        ("rollouts.per_sequence=1", "setting rollouts.per_sequence: "),
        ("training.critic.shared_input=true", "setting training.critic: shared_input=true needs"),
        ("training.learning_rate.first=.inf", "setting training.learning_rate.first: "),
    ],
)
def test_invalid_setting_is_named(assignment: str, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        from_assignments(assignment)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_partly_given_group_keeps_its_other_defaults() -> None:
    default = DecimaTraining().training.entropy
    found = from_assignments("training.entropy.last=0.01", "training.learning_rate.last=5e-4")
    assert found.training.entropy == default.model_copy(update={"last": 0.01})
    rate = DecimaTraining().training.learning_rate
    assert found.training.learning_rate == rate.model_copy(update={"last": 5e-4})
    assert found.training.horizon is None
    with pytest.raises(InputError, match=r"setting training\.horizon\.first: Field required"):
        from_assignments("training.horizon.last=100")  # its default has no parts


def test_config_survives_a_round_trip() -> None:
    config = from_assignments("training.method=reinforce", "training.horizon={first: 1, last: 2}")
    assert build_settings(DecimaTraining, config.model_dump(mode="json")) == config


def test_system_adds_groups_and_keeps_setting_names() -> None:
    shared, found = TrainingConfig().model_dump(), DecimaTraining().model_dump()
    assert set(found) == {*shared, "environment", "network"}
    for group in ("rollouts", "training"):
        assert set(found[group]) == set(shared[group])


@pytest.mark.parametrize(
    "changed",
    [
        {"training": {"iterations": 7, "entropy": {"first": 0.1, "last": 0.1}}},
        {"rollouts": {"workers": 8, "per_sequence": 8}, "resources": {"gpus": 1}},
        {"checkpoints": {"every": 1}, "validation": {"every": 1}},
    ],
)
def test_resumed_run_may_change(changed: dict[str, object], tmp_path: Path) -> None:
    check_same_run(DecimaTraining(), build_settings(DecimaTraining, changed), tmp_path)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"seed": 4}, "seed"),
        ({"environment": {"jobs": 9}}, "environment.jobs"),
        ({"network": {"width": 16}}, "network.width"),
        ({"validation": {"sequences": 3}}, "validation.sequences"),
        ({"training": {"warm_start": "elsewhere"}}, "training.warm_start"),
        ({"training": {"weight_filter": ["*"]}}, "training.weight_filter"),
    ],
)
def test_resumed_run_must_keep(changed: dict[str, object], name: str, tmp_path: Path) -> None:
    other = build_settings(DecimaTraining, changed)
    with pytest.raises(InputError, match=rf"setting {name} "):
        check_same_run(DecimaTraining(), other, tmp_path)
