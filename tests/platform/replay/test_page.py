"""Parts of the replay page that all environments share."""

import re
from importlib.resources import files

import pytest

from loadmaster.envs.registry import systems
from loadmaster.platform.replay.adapters import UNITS, Unit, find_replay_adapter, unit_of
from loadmaster.platform.replay.page import _content
from loadmaster.serving.console.page_bundle import bundle_modules

FOLDER = files("loadmaster.platform.replay")
ENVIRONMENTS = sorted({system.environment for system in systems().values() if system.has("replay")})


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_script_finds_every_element_that_it_names(environment: str) -> None:
    """Charts and other ids are in the HTML; the only others are made by the script itself."""
    content = _content(find_replay_adapter(environment))
    script = bundle_modules(FOLDER.joinpath("script"), f"{environment}/main.js")
    ids = set(re.findall(r'\bid="([^"$]+)"', content)) | {"error", "tip"}  # of the frame
    named = set(re.findall(r'byId\("([^"]+)"\)', script))
    if find_replay_adapter(environment).decisions is None:
        named = {name for name in named if not name.startswith("decision")}
    assert named <= ids
    charts = {chart.id for chart in find_replay_adapter(environment).charts}
    assert charts <= ids
    assert all(f'"{chart}"' in script for chart in charts)
    assert len(re.findall(r'\bid="', content)) == len(ids) - 2  # each once
    assert "$" not in content


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_figures_of_a_panel_are_distinct(environment: str) -> None:
    panel = FOLDER.joinpath(f"parts/{environment}/panel.html").read_text(encoding="utf-8")
    figures = re.findall(r'data-figure="([^"]+)"', panel)
    assert figures
    assert len(set(figures)) == len(figures)


def test_unit_has_three_or_more_of_it() -> None:
    assert unit_of(3 * 3600) == Unit(3600, "h")
    assert unit_of(3 * 3600 - 1) == Unit(60, "min")
    assert unit_of(1) == UNITS[-1]
    days = (Unit(3600, "h", (24,)),)
    assert unit_of(1, days) == days[0]
