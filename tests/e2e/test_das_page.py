"""docs/das.md matches the code: its settings are the defaults, its configurations are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.envs.settings import build_settings, over_defaults
from loadmaster.models.das.settings import DasSettings
from loadmaster.platform.systems.das.training import DasTraining, check
from loadmaster.platform.training.config import flattened
from loadmaster.platform.training.run_folder import read_config


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "das.md").read_text(encoding="utf-8")


def table(page: str, header: str) -> dict[str, Any]:
    """Return settings and defaults of a table whose rows may hold several of them."""
    rows = page.partition(f"\n| {header} | default |")[2].partition("\n\n")[0].splitlines()[2:]
    shown: dict[str, Any] = {}
    for row in rows:
        names, values = row.split("|")[1:3]
        defaults = [yaml.safe_load(one.partition(":")[0].strip(" `")) for one in values.split(",")]
        shown |= dict(zip(re.findall(r"`(.*?)`", names), defaults, strict=True))
    assert shown
    return shown


def test_settings_are_the_defaults(page: str) -> None:
    assert table(page, "network") == DasSettings().model_dump()
    defaults = flattened(DasTraining().model_dump(mode="json"))
    assert table(page, "what else `train das` sets").items() <= defaults.items()


def test_named_configurations_are_valid(page: str, root: Path) -> None:
    named = re.findall(r"--config (\S+)", page)
    assert [Path(each).name for each in named] == ["general.yaml", "opening.yaml", "mappo.yaml"]
    for each in named:
        values = read_config(root / each)
        if "mixture" in values:  # traces are not shipped
            values["mixture"] = [one for one in values["mixture"] if "workload" not in one]
        check(build_settings(DasTraining, over_defaults(DasTraining(), values)))
