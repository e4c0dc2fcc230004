"""Folders of systems hold the fixed file names; modules have a readable size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from loadmaster.envs.registry import SYSTEMS, System
from tests.architecture.layers import draw
from tests.architecture.source_tree import Module, read_modules

FILES = {
    "envs/{environment}": (
        *("__init__ env vector_env settings state simulator observation actions rewards").split(),
        *("snapshot metrics describe baselines/__init__ workloads/__init__").split(),
    ),
    "models/{system}": "__init__ settings network module policy explain".split(),
    "serving/systems/{system}": "__init__ system schema snapshot rules examples".split(),
    "platform/systems/{system}": "__init__ training rollout evaluation replay bench".split(),
}
LONGEST, SHORT = 400, 40  # lines
MOST_SHORT = 9


def missing_files(root: Path, systems: Sequence[System]) -> list[str]:
    """Fixed files of the systems' folders that do not exist."""
    paths = [
        f"{folder}/{name}.py".format(environment=system.environment, system=system.name)
        for system in systems
        for folder, names in FILES.items()
        for name in names
    ]
    return [path for path in paths if not (root / path).is_file()]


def too_long(modules: Mapping[str, Module]) -> list[str]:
    return [name for name, module in modules.items() if module.lines > LONGEST]


def too_short(modules: Mapping[str, Module]) -> list[str]:
    return [n for n, m in modules.items() if m.lines < SHORT and not m.is_package]


def test_every_system_has_the_fixed_files(root: Path) -> None:
    assert SYSTEMS
    assert missing_files(root, SYSTEMS) == []


def test_planted_system_without_files_is_found(root: Path) -> None:
    planted = System("planted", "planted_scaling", "has no files")
    assert len(missing_files(root, [planted])) == sum(map(len, FILES.values()))


def test_modules_have_a_readable_size(root: Path) -> None:
    modules = read_modules(root)
    assert len(modules) > 100, "no modules found: wrong folder"
    assert too_long(modules) == []
    assert len(too_short(modules)) <= MOST_SHORT, too_short(modules)


@pytest.mark.parametrize(("lines", "long", "short"), [(39, 0, 1), (40, 0, 0), (401, 1, 0)])
def test_planted_sizes_are_found(lines: int, long: int, short: int) -> None:
    planted = {"loadmaster.envs.a": Module("loadmaster.envs.a", "x = 1\n" * lines)}
    assert (len(too_long(planted)), len(too_short(planted))) == (long, short)


def test_picture_of_the_layers_is_up_to_date(root: Path) -> None:
    """`python -m tests.architecture.layers` draws it anew."""
    drawn = (root / "docs" / "images" / "layers.svg").read_text(encoding="utf-8")
    assert drawn == draw(read_modules(root))
