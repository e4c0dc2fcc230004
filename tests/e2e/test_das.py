"""DAS as a user runs it: trained, exported, and judged on the sequences of the heuristics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.envs.gpu_scheduling.baselines import BASELINES
from loadmaster.models.bundle import load_bundle
from loadmaster.platform.cli.main import main

LOADMASTER = str(Path(sys.executable).with_name("loadmaster"))
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


def trained(cwd: Path) -> None:
    """By the command as a process of its own, on a cluster that somebody else started."""
    import ray

    address = ray.get_runtime_context().gcs_address
    command = ["train", "das", "--workers", "1", "--output", "run", "--address", address]
    given = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [LOADMASTER, *command, *given],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_from_training_to_a_table(
    ray_session: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.chdir(tmp_path)
    trained(tmp_path)
    exported = said("export", "run", "mine", "--which", "last")
    bundle = load_bundle(tmp_path / "mine")
    assert (bundle.system, bundle.name, bundle.sha256) == ("das", "mine", exported["sha256"])
    # It stops running jobs as it did while it learnt, though the environment by itself would not.
    assert bundle.trained["environment"] == {"jobs": 20, "max_queue": 12, "preempt": True}
    record = said(
        "evaluate", "das", "--policy", "mine", "--against", "all", "--set", "jobs=20",
        "--seeds", "3", "--first-seed", "5", "--output", "judged", "--explain", "1",
    )  # fmt: skip
    assert set(record["policies"]) == {"mine", *BASELINES}
    # These are the sequences the run was validated on, and it goes by the same rules here.
    judged = record["policies"]["mine"]["jct"]["mean"]
    assert abs(judged / bundle.results["validation"] - 1) < 1e-6
    assert record["best_baseline"] in BASELINES
