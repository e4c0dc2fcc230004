"""docs/das.md says what is so: its settings are the defaults, its configurations train."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.envs.settings import build_settings, over_defaults
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.systems.das.training import DasTraining, check
from loadmaster.platform.training.run_folder import read_config
from loadmaster.platform.training.tracking import flattened


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "das.md").read_text(encoding="utf-8")


def table(page: str, header: str) -> dict[str, Any]:
    """Settings and their defaults, where a row may have several of them."""
    _, found, rest = page.partition(f"\n| {header} | default |")
    assert found
    shown: dict[str, Any] = {}
    for row in rest.partition("\n\n")[0].splitlines()[2:]:
        names, values = row.split("|")[1:3]
        told = [yaml.safe_load(each.partition(":")[0].strip(" `")) for each in values.split(",")]
        shown |= dict(zip(re.findall(r"`(.*?)`", names), told, strict=True))
    return shown


def test_the_networks_settings_are_the_defaults(page: str) -> None:
    assert table(page, "network") == DasSettings().model_dump()


def test_what_training_sets_is_so(page: str) -> None:
    defaults = flattened(DasTraining().model_dump(mode="json"))
    shown = table(page, "what else `train das` sets")
    assert shown == {name: defaults[name] for name in shown}


def test_the_configurations_it_names_are_of_training(page: str, root: Path) -> None:
    named = re.findall(r"--config (\S+)", page)
    assert [Path(each).name for each in named] == ["opening.yaml", "mappo.yaml"]
    for each in named:
        check(build_settings(DasTraining, over_defaults(DasTraining(), read_config(root / each))))
