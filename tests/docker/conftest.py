"""The parsed files of docker/."""

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml


class Instruction(NamedTuple):
    """An instruction of a Dockerfile, continued lines joined."""

    stage: str
    word: str
    rest: str


class Dockerfile:
    """A parsed Dockerfile without heredocs; the only escapes are those at line ends."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        joined = "\n".join(lines).replace("\\\n", " ")
        self.instructions: list[Instruction] = []
        self.parents: dict[str, str] = {}  # stage -> image or other stage
        stage = ""
        for line in filter(str.strip, joined.splitlines()):
            word, rest = line.split(maxsplit=1)
            if word == "FROM":
                parent, _, stage = rest.split()
                self.parents[stage] = parent
            self.instructions.append(Instruction(stage, word, " ".join(rest.split())))

    def lineage(self, target: str) -> list[str]:
        """Stages of a target's image, first one first."""
        found: list[str] = []
        while target in self.parents:
            found.insert(0, target)
            target = self.parents[target]
        return found

    def all(self, word: str, target: str | None = None) -> list[str]:
        stages = self.parents if target is None else self.lineage(target)
        return [i.rest for i in self.instructions if i.word == word and i.stage in stages]


@pytest.fixture(scope="session")
def docker(root: Path) -> Path:
    return root / "docker"


@pytest.fixture(scope="session")
def dockerfile(docker: Path) -> Dockerfile:
    return Dockerfile((docker / "Dockerfile").read_text())


@pytest.fixture(scope="session")
def compose(docker: Path) -> Any:
    return yaml.safe_load((docker / "compose.yaml").read_text())


@pytest.fixture(scope="session")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def pins(root: Path) -> dict[str, str]:
    """Versions of constraints.txt by normalised name."""
    lines = (root / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}
