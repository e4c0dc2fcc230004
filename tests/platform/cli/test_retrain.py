"""`loadmaster retrain`: the files it writes, its comparison, and resuming."""

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
from loadmaster.platform.evaluation import comparison
from loadmaster.platform.systems.bundle_ref import find_policy
from loadmaster.platform.training import loop
from loadmaster.platform.training.retraining import finetune_config
from loadmaster.serving.policies.comparison import read_comparison
from tests.bundles import make_bundle
from tests.platform.cli.one_line import Cli, Patch

pytestmark = pytest.mark.slow
TOY = {"workload": "toy", "jobs": 5, "executors": 3}
VALIDATED = 6  # sequences
QUICK = f"""
--set rollouts.sequences=2 --set rollouts.per_sequence=4 --set validation.sequences={VALIDATED}
--set validation.every=2 --set 'training.learning_rate={{first: 0.01, last: 0.01}}'
--iterations 8 --minutes 5 --seeds 24
"""


def assigned(prefix: str = "") -> str:
    return " ".join(f"--set {prefix}{name}={value}" for name, value in TOY.items())


def command(start: Path, output: Path) -> str:
    return f"retrain decima --from {start} --output {output} {assigned('environment.')} {QUICK}"


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained bundle."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "bad", seed=1)


@pytest.fixture(scope="module")
def retrained(bad: Path, ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("retrained") / "one"
    assert main(shlex.split(command(bad, output))) == 0
    return output


def test_retrain_writes_bundle_and_result(retrained: Path, bad: Path) -> None:
    files = {path.name for path in retrained.iterdir()}
    assert files == {"request.json", "run", "bundle", "verdict.json"}
    assert not (retrained / "run" / "checkpoints").exists()
    result = read_comparison(retrained)
    assert result.serving.version == read_manifest(bad).sha256[:12]
    found, bundle = result.candidate, retrained / "bundle"
    assert (found.name, found.folder) == ("bad-retrained", str(bundle))
    assert found.version == load_bundle(bundle).sha256[:12]
    assert result.environment == TOY
    # Beyond the seeds of training and validation.
    assert result.first_seed == 900_000_000 + VALIDATED
    assert result.better
    assert (result.candidate.mean or math.inf) < (result.serving.mean or 0)
    assert (result.ci95[0] or 0) <= (result.difference_percent or 0) <= (result.ci95[1] or 0) < 0


def test_result_is_that_of_evaluate(retrained: Path, bad: Path, tmp_path: Path, cli: Cli) -> None:
    result = read_comparison(retrained)
    found = cli.json(
        f"evaluate decima --policy {bad} --policy {retrained / 'bundle'} {assigned()} "
        f"--first-seed {result.first_seed} --seeds {result.sequences} --output {tmp_path}"
    )
    difference = found["learned_differences"]["bad-retrained"]["bad"]["jct"]
    assert difference["percent"] == result.difference_percent
    assert difference["percent_ci95"] == list(result.ci95)
    assert found["policies"]["bad"]["jct"]["mean"] == result.serving.mean


def test_second_call_prints_the_result_only(
    retrained: Path, bad: Path, monkeypatch: Patch, cli: Cli
) -> None:
    monkeypatch.setattr(loop, "launch", lambda *_: pytest.fail("trained again"))
    before = {path: path.stat().st_mtime_ns for path in retrained.rglob("*")}
    assert cli.json(command(bad, retrained))["better"] is True
    assert {path: path.stat().st_mtime_ns for path in retrained.rglob("*")} == before


def test_killed_retraining_resumes(
    retrained: Path, bad: Path, tmp_path: Path, monkeypatch: Patch, cli: Cli
) -> None:
    """Killed in training, then in the comparison; the result is the same."""
    output, checkpoint = tmp_path / "one", loop.checkpoint
    line = f"{command(bad, output)} --set checkpoints.every=2"

    def save_and_die(trainer: Any, folder: Any) -> None:
        checkpoint(trainer, folder)
        assert trainer.iteration < 4

    monkeypatch.setattr(loop, "checkpoint", save_and_die)
    with pytest.raises(AssertionError):
        cli(line)
    monkeypatch.undo()
    assert not (output / "bundle").exists()
    assert (output / "run" / "checkpoints").exists()
    monkeypatch.setattr(comparison, "compare_bundles", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli(line)
    monkeypatch.undo()
    assert (output / "bundle").exists()
    cli(line)
    assert len(json.loads((output / "run" / "manifest.json").read_text())["resumed"]) == 1
    assert read_comparison(output).candidate.version == read_comparison(retrained).candidate.version


def test_killed_before_the_first_checkpoint_starts_anew(
    retrained: Path, bad: Path, tmp_path: Path, cli: Cli
) -> None:
    output = tmp_path / "one"
    (output / "run" / "checkpoints").mkdir(parents=True)
    shutil.copy(retrained / "request.json", output)
    cli(command(bad, output))
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
    changed: str, words: str, retrained: Path, bad: Path, here: Path, cli: Cli
) -> None:
    (here / "notes.txt").write_text("mine")
    assert words in cli.error(f"{command(bad, retrained)} {changed}")
    assert [path.name for path in here.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["decima-stream", "decima-batch", "das-small", "das-large"])
def test_pretrained_policy_keeps_its_training_settings(name: str) -> None:
    from loadmaster.platform.cli.train import new_config

    found = find_policy(name)
    manifest = found.manifest
    recipe = found.system.load("training")
    values = finetune_config(recipe, manifest, found.folder, {"environment": {"workload": "toy"}})
    config = new_config(recipe, values)  # the weights fit the network
    own = manifest.trained["config"]
    assert config.training.method == own["training"]["method"]
    rate = config.training.learning_rate
    assert (rate.last, rate.iterations) == (own["training"]["learning_rate"]["last"], 0)
    assert (config.training.weight_filter, config.rollouts.workers) == ((), 0)
    environment = config.environment.model_dump(mode="json", exclude_defaults=True)  # type: ignore[attr-defined]
    assert environment == {**manifest.trained["environment"], "workload": "toy"}
