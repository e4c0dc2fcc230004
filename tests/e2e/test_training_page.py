"""docs/training.md says what is so: its settings are the defaults, its system trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.platform.cli.train import train
from loadmaster.platform.systems.decima.training import DecimaTraining


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "training.md").read_text(encoding="utf-8")


def block(page: str, language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_settings_are_the_defaults(page: str) -> None:
    """Where this fails a default has changed, or there is a new setting: write it there too."""
    shown: dict[str, Any] = yaml.safe_load(block(page, "yaml"))
    defaults = DecimaTraining().model_dump(mode="json", exclude={"environment"})
    for group, values in defaults.items():
        assert shown.get(group) == values, f"docs/training.md, settings of {group}"
    assert list(shown) == list(defaults)
    for group in ("rollouts", "training", "network"):
        assert list(shown[group]) == list(defaults[group])  # in the same order


def test_its_options_exist(page: str) -> None:
    options = {"--help", "--json"} | {
        f"--{name.replace('_', '-')}" for name in train.__annotations__ if name != "return"
    }
    for command in re.findall(r"^loadmaster train .*$", page, re.MULTILINE):
        for option in re.findall(r"(--[a-z]+)", command.partition("#")[0]):
            assert option in options | {"--set"}, command


def test_the_system_it_shows_trains(page: str, tmp_path: Path, ray_session: None) -> None:
    """As a package of somebody else's would be installed."""
    import ray

    (tmp_path / "tolls.py").write_text(block(page, "python"))
    metadata = tmp_path / "tolls-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tolls\nVersion: 0.1\n")
    groups = tomllib.loads(block(page, "toml"))["project"]["entry-points"]
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    rate = "training.learning_rate={first: 0.05, last: 0.05}"
    iterations = ["--set", "training.iterations=15", "--set", "validation.every=5", "--set", rate]
    address = ray.get_runtime_context().gcs_address
    # Without workers: those of this Ray were started without the package.
    command = ["train", "tolls", "--workers", "0", "--address", address, "--json", *iterations]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("loadmaster")), *command],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["metric"] == "cost"
    assert found["best"]["value"] < min(found["baselines"]["keep-left"], found["untrained"])
    assert (tmp_path / found["run"] / "best" / "weights.safetensors").is_file()
