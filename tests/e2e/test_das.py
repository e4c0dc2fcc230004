"""Train, export and evaluate DAS by commands."""

from pathlib import Path

import pytest

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.models.bundle import load_bundle
from tests.platform.cli.one_line import Cli

pytestmark = pytest.mark.slow

SETTINGS = {
    "environment.jobs": 20,
    "environment.max_queue": 12,
    "network.width": 16,
    "network.heads": 2,
    "network.layers": 1,
    "rollouts.sequences": 2,
    "rollouts.per_sequence": 2,
    "training.iterations": 2,
    "validation.every": 1,
    "validation.sequences": 3,
    "validation.first_seed": 5,
}


def test_trained_bundle_is_evaluated_beside_baselines(
    ray_session: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Cli(capsys)
    monkeypatch.chdir(tmp_path)
    given = " ".join(f"--set {name}={value}" for name, value in SETTINGS.items())
    cli(f"train das --workers 0 --output run {given}")
    exported = cli.json("export run mine --which last")
    bundle = load_bundle(tmp_path / "mine")
    assert (bundle.system, bundle.name, bundle.sha256) == ("das", "mine", exported["sha256"])
    # Preemption is a default of DAS's training, not of the environment.
    assert bundle.trained["environment"] == {"jobs": 20, "max_queue": 12, "preempt": True}
    record = cli.json(
        "evaluate das --policy mine --against all --set jobs=20 --seeds 3 --first-seed 5 "
        "--output evaluated --explain 1"
    )
    assert set(record["policies"]) == {"mine", *BASELINES}
    # The sequences of the run's validation.
    mean_jct_s = record["policies"]["mine"]["jct"]["mean"]
    assert abs(mean_jct_s / bundle.results["validation"] - 1) < 1e-6
    assert record["best_baseline"] in BASELINES
