"""`loadmaster retrain`: the files it writes, its comparison, and resuming."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from loadmaster.models.bundle import load_bundle
from loadmaster.models.manifest import read_manifest
from loadmaster.platform.cli.main import main
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.training import loop
from loadmaster.platform.training.retraining import finetune_config
from loadmaster.serving.policies.comparison import read_comparison
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli

pytestmark = pytest.mark.slow
TOY = {"workload": "toy", "jobs": 5, "executors": 3}
QUICK: dict[str, Any] = {
    "rollouts.sequences": 2,
    "rollouts.per_sequence": 4,
    "validation.sequences": 6,
    "validation.every": 2,
    "training.learning_rate": "{first: 0.01, last: 0.01}",
}


def arguments(start: Path, output: Path, **changed: Any) -> list[str]:
    values = {**{f"environment.{name}": value for name, value in TOY.items()}, **QUICK, **changed}
    given = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    command = f"retrain decima --from {start} --output {output} --iterations 8 --minutes 5"
    return [*command.split(), "--seeds", "24", *given]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained bundle."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "bad", seed=1)


@pytest.fixture(scope="module")
def retrained(bad: Path, ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("retrained") / "one"
    assert main(arguments(bad, output)) == 0
    return output


def test_retrain_writes_bundle_and_result(retrained: Path, bad: Path) -> None:
    assert {path.name for path in retrained.iterdir()} == {
        "request.json", "run", "bundle", "verdict.json",
    }  # fmt: skip
    assert not (retrained / "run" / "checkpoints").exists()
    result = read_comparison(retrained)
    assert result.serving.version == read_manifest(bad).sha256[:12]
    assert result.candidate.name == "bad-retrained"
    assert result.candidate.version == load_bundle(retrained / "bundle").sha256[:12]
    assert result.candidate.folder == str(retrained / "bundle")
    assert result.environment == TOY
    # Beyond the seeds of training and validation.
    assert result.first_seed == 900_000_000 + QUICK["validation.sequences"]
    assert result.better
    assert (result.candidate.mean or math.inf) < (result.serving.mean or 0)
    assert (result.ci95[0] or 0) <= (result.difference_percent or 0) <= (result.ci95[1] or 0) < 0


def test_result_equals_that_of_evaluate(
    retrained: Path, bad: Path, tmp_path: Path, cli: Cli
) -> None:
    result = read_comparison(retrained)
    given = [part for name, value in TOY.items() for part in ("--set", f"{name}={value}")]
    policies = ["--policy", str(bad), "--policy", str(retrained / "bundle")]
    seeds = ["--first-seed", str(result.first_seed), "--seeds", str(result.sequences)]
    command = ["evaluate", "decima", *policies, *seeds, *given, "--output", str(tmp_path)]
    found = cli.json(shlex.join(command))
    difference = found["learned_differences"]["bad-retrained"]["bad"]["jct"]
    assert difference["percent"] == result.difference_percent
    assert difference["percent_ci95"] == list(result.ci95)
    assert found["policies"]["bad"]["jct"]["mean"] == result.serving.mean


def test_second_call_prints_the_result_only(
    retrained: Path, bad: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(loop, "launch", lambda *_: pytest.fail("trained again"))
    before = {path: path.stat().st_mtime_ns for path in retrained.rglob("*")}
    assert cli.json(shlex.join(arguments(bad, retrained)))["better"] is True
    assert {path: path.stat().st_mtime_ns for path in retrained.rglob("*")} == before


def test_killed_retraining_resumes(
    retrained: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in training, then in the comparison; the result is the same."""
    output, checkpoint = tmp_path / "one", loop.checkpoint
    command = arguments(bad, output, **{"checkpoints.every": 2})

    def save_and_die(trainer: Any, folder: Any) -> None:
        checkpoint(trainer, folder)
        assert trainer.iteration < 4

    monkeypatch.setattr(loop, "checkpoint", save_and_die)
    with pytest.raises(AssertionError):
        main(command)
    monkeypatch.undo()
    assert not (output / "bundle").exists()
    assert (output / "run" / "checkpoints").exists()
    monkeypatch.setattr(
        "loadmaster.platform.evaluation.comparison.compare_bundles", lambda *_: 1 // 0
    )
    with pytest.raises(ZeroDivisionError):
        main(command)
    monkeypatch.undo()
    assert (output / "bundle").exists()
    assert main(command) == 0
    assert len(json.loads((output / "run" / "manifest.json").read_text())["resumed"]) == 1
    assert read_comparison(output).candidate.version == read_comparison(retrained).candidate.version


def test_killed_before_the_first_checkpoint_starts_anew(
    retrained: Path, bad: Path, tmp_path: Path
) -> None:
    shutil.copytree(retrained, output := tmp_path / "one")
    (output / "verdict.json").unlink()
    shutil.rmtree(output / "bundle")
    shutil.rmtree(output / "run")
    (output / "run" / "checkpoints").mkdir(parents=True)
    assert main(arguments(bad, output)) == 0
    assert read_comparison(output).better


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("--from das-small", "is a policy of 'das', not 'decima'"),
        ("--from nobody", "unknown policy 'nobody'"),
        ("--seeds 0", "--seeds is 0"),
        ("--iterations 0", "training.iterations"),
        ("--set environment.jbs=3", "environment.jobs"),
        ("--set environment.executors=9", "other settings"),
        ("--seeds 25", "other sequences"),
        ("--output .", "holds something else"),
    ],
)
def test_misuse_is_one_line(
    changed: str, words: str, retrained: Path, bad: Path, tmp_path: Path, cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert words in cli.error(f"{shlex.join(arguments(bad, retrained))} {changed}")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["decima-stream", "decima-batch", "das-small", "das-large"])
def test_pretrained_policy_keeps_its_training_settings(name: str) -> None:
    from loadmaster.platform.cli.train import new_config

    found = find_policy(name)
    manifest = found.manifest
    values = finetune_config(manifest, found.folder, {"environment": {"workload": "toy"}})
    config = new_config(found.system.load("training"), values)  # the weights fit the network
    own = manifest.trained["config"]
    assert config.training.method == own["training"]["method"]
    rate = config.training.learning_rate
    assert (rate.last, rate.iterations) == (own["training"]["learning_rate"]["last"], 0)
    assert (config.training.weight_filter, config.rollouts.workers) == ((), 0)
    environment = config.environment.model_dump(mode="json", exclude_defaults=True)  # type: ignore[attr-defined]
    assert environment == {**manifest.trained["environment"], "workload": "toy"}
