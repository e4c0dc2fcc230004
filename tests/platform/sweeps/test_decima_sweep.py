"""The shipped tiny sweep of Decima, with real training and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.envs.registry import find_system
from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli.main import main
from loadmaster.platform.training.run_folder import read_config


@pytest.mark.slow
def test_tiny_sweep_of_decima(
    root: Path,
    tmp_path: Path,
    ray_session: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root)
    out = tmp_path / "tiny"
    assert main(["tune", "tune_configs/decima/tiny.yaml", "--output", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in found["trials"] if trial["fault"]] == []
    assert len(found["trials"]) == 4
    assert all(trial["value"] > 0 for trial in found["trials"])
    best = found["best"]
    assert best["value"] == min(trial["value"] for trial in found["trials"])
    config = build_settings(
        find_system("decima").load("training").config_class, read_config(out / "best.yaml")
    )
    assert config.environment.workload == "toy"
    assert config.training.epochs == best["parameters"]["training.epochs"]
    rate = config.training.learning_rate.last
    assert rate == best["parameters"]["training.learning_rate.last"]
    saved = list((out / "tune" / best["name"]).glob("checkpoint_*/trainer/rllib_checkpoint.json"))
    assert saved, "the best trial left no checkpoint"
