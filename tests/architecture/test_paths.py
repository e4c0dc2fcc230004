"""docs/architecture.md lists the files that three operations really enter."""

import re
from pathlib import Path

import pytest

from tests.architecture.paths import PATHS

pytestmark = pytest.mark.slow
HEADINGS = {
    "decide": "A decision over HTTP",
    "training": "A training iteration",
    "evaluate": "An evaluation",
}


def listed_files(page: str, heading: str) -> list[str]:
    """First column of the tables below a heading."""
    section = page.split(f"### {heading}\n")[1]
    section = re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([^`]+\.py)`", section, re.MULTILINE)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.usefixtures("ray_session")
def test_documented_path_is_the_traced_one(root: Path, name: str) -> None:
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = listed_files(page, HEADINGS[name])
    assert sorted(listed) == sorted(PATHS[name]())
