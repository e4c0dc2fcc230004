"""Training settings: YAML files, partly given groups, and what a resumed run may change."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings, over_defaults, parse_assignments
from loadmaster.platform.bench.pendulum import RECIPE, PendulumTraining
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.config import (
    OffPolicyLearning,
    check_same_run,
    flattened,
    merged,
)
from loadmaster.platform.training.retraining import finetune_config
from loadmaster.platform.training.yaml_with_lines import parse_document, read_document


def from_assignments(*assignments: str) -> DecimaTraining:
    """As `loadmaster train decima --set ...` does."""
    values = over_defaults(DecimaTraining(), parse_assignments(assignments))
    return build_settings(DecimaTraining, values)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("training.entropy.lats=1", "lats'; did you mean 'training.entropy.last'"),
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
    found = from_assignments("training.entropy.last=0.01")
    assert found.training.entropy == default.model_copy(update={"last": 0.01})
    assert found.training.horizon is None
    with pytest.raises(InputError, match=r"setting training\.horizon\.first: Field required"):
        from_assignments("training.horizon.last=100")  # its default has no parts


@pytest.mark.parametrize(
    "changed",
    [
        "training.iterations=7 training.entropy.first=0.1",
        "rollouts.workers=8 rollouts.per_sequence=8 resources.gpus=1",
        "checkpoints.every=1 validation.every=1",
    ],
)
def test_resumed_run_may_change(changed: str, tmp_path: Path) -> None:
    check_same_run(DecimaTraining(), from_assignments(*changed.split()), tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        "seed=4",
        "environment.jobs=9",
        "network.width=16",
        "validation.sequences=3",
        "training.warm_start=elsewhere",
        "training.weight_filter=['*']",
    ],
)
def test_resumed_run_must_keep(changed: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"setting {changed.partition('=')[0]} "):
        check_same_run(DecimaTraining(), from_assignments(changed), tmp_path)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("# mine\nseed: 3\ntraining:\n  clip: 5\n", {"seed": 3, "training": {"clip": 5}}),
        ("# nothing but a comment\n", {}),
        ("a.b: 1\na: {c: 2}\n", {"a": {"b": 1, "c": 2}}),
        ("a: &one {b: 1}\nc: *one\nc.d: 2\n", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        (
            "a: [1e-5, 1E3, 2.5e-3, -1e2, 3, 0.1, 1_000, e5]\n",
            {"a": [1e-5, 1000.0, 0.0025, -100.0, 3, 0.1, 1000, "e5"]},
        ),
    ],
)
def test_values(text: str, values: object, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert read_document(tmp_path / "mine.yaml").values == values


def test_lines_of_keys() -> None:
    document = parse_document("a:\n  b: 1\nc.d:\n  - 2\n  - 3\n", "x.yaml")
    assert document.where(("a", "b")) == "x.yaml:2"
    assert document.where(("c", "d", 1)) == "x.yaml:5"
    assert document.where(("a", "unknown")) == "x.yaml:1"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("system: decima\nspace: {a: [1\n", 3, "not YAML"),
        ("system: decima\n\tspace: 1\n", 2, "found character"),
        ("system: decima\nspace: !tuple [1]\n", 2, "cannot read the tag"),
        ("system: decima\nspace: \x07\n", 2, "#0007"),
        ("system: decima\n---\nspace: 1\n", 2, "another document"),
        ("system: decima\nspace: 2026-02-30\n", 2, "cannot read"),
        ("system: decima\n[1, 2]: 3\n", 2, "a word as the key"),
        ("a: 1\na: 2\n", 2, "first on line 1"),
        ("a: &one {b: *one}\n", 1, "contains itself"),
        ("- system\n", 1, "keys and values"),
        ("a: " + "[" * 1000, 1, "nested too deeply"),
    ],
)
def test_errors_name_file_and_line(text: str, line: int, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"mine.yaml:{line}: ")) as caught:
        parse_document(text, "mine.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merged_trees() -> None:
    below = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    found = merged(below, {"a": {"c": {"d": 4, "f": 5}}})
    assert found == {"a": {"b": 1, "c": {"d": 4, "f": 5}}, "e": 3}
    assert merged(below, {"a": 7, "e": {"g": 8}}) == {"a": 7, "e": {"g": 8}}
    assert below == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}  # unchanged


def test_system_brings_its_own_learning_settings() -> None:
    """Without groups, entropy and schedules; a retraining takes what its settings say."""
    found = build_settings(PendulumTraining, {"training": {"iterations": 3, "noise": 0.1}})
    assert (found.training.iterations, found.training.noise) == (3, 0.1)
    assert RECIPE.learning is OffPolicyLearning
    dumped = flattened(found.model_dump(mode="json"))
    assert not {"training.entropy.first", "rollouts.per_sequence"} & dumped.keys()
    with pytest.raises(InputError, match="entropy"):
        build_settings(PendulumTraining, {"training": {"entropy": {"first": 1, "last": 1}}})
    manifest = SimpleNamespace(trained={"config": found.model_dump(mode="json")}, network={})
    values = finetune_config(RECIPE, manifest, Path("here"), {})  # type: ignore[arg-type]
    retrained = build_settings(PendulumTraining, values)
    assert (retrained.training.warm_up, retrained.training.noise) == (0, 0.1)
    assert retrained.rollouts.workers == 0
