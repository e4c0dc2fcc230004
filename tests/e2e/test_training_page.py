"""docs/training.md matches the code: settings, options, and a system of another package."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from loadmaster.platform.cli.train import train
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.config import BaseLearning, OffPolicyTraining


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "training.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def block(page: str, language: str) -> str:
    (found,) = blocks(page, language)
    return found


def test_settings_are_the_defaults(page: str) -> None:
    shown = yaml.safe_load(blocks(page, "yaml")[0])
    defaults = DecimaTraining().model_dump(mode="json", exclude={"environment"})
    assert shown == defaults
    assert list(shown) == list(defaults)
    for group in ("rollouts", "training", "network"):
        assert list(shown[group]) == list(defaults[group])  # in the same order


def test_off_policy_settings_are_the_defaults(page: str) -> None:
    shown = yaml.safe_load(blocks(page, "yaml")[1])
    shared = set(BaseLearning.model_fields)
    config = OffPolicyTraining()
    assert shown["rollouts"] == config.rollouts.model_dump()
    assert shown["training"] == config.training.model_dump(exclude=shared)
    assert list(shown["training"]) == list(config.training.model_dump(exclude=shared))


def test_options_exist(page: str) -> None:
    names = {name.replace("_", "-") for name in train.__annotations__ if name != "return"}
    for command in re.findall(r"^loadmaster train .*$", page, re.MULTILINE):
        used = set(re.findall(r"--([a-z]+)", command.partition("#")[0]))
        assert used <= names | {"help", "json", "set"}, command


@pytest.mark.slow
def test_system_of_another_package_trains(page: str, tmp_path: Path, ray_session: None) -> None:
    import ray

    (tmp_path / "tolls.py").write_text(block(page, "python"))
    metadata = tmp_path / "tolls-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tolls\nVersion: 0.1\n")
    groups = tomllib.loads(block(page, "toml"))["project"]["entry-points"]
    with (metadata / "entry_points.txt").open("w") as file:
        for group, entries in groups.items():
            file.write(f"[{group}]\n")
            file.writelines(f"{name} = {value}\n" for name, value in entries.items())
    address = ray.get_runtime_context().gcs_address
    # Without workers: those of this Ray were started without the package.
    command = [str(Path(sys.executable).with_name("loadmaster")), "train", "tolls", "--json"]
    command += ["--workers", "0", "--address", address, "--set", "training.iterations=15"]
    command += ["--set", "validation.every=5"]
    command += ["--set", "training.learning_rate={first: 0.05, last: 0.05}"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["metric"] == "return"
    assert found["best"]["value"] > max(found["baselines"]["keep-left"], found["untrained"])
    assert (tmp_path / found["run"] / "best" / "weights.safetensors").is_file()
