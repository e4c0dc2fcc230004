"""One way for imports: platform -> serving -> models -> envs. Also the length of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FLOORS = ("envs", "models", "serving", "platform")  # from the ground up
LONGEST = 500  # lines of a module; about 150 is what we aim at


def imported(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Full names of everything `source` imports, anywhere in it, also by import_module("...")."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(origin, names, level):
                base = module.split(".")
                if not is_package:
                    base = base[:-1]
                base = base[: len(base) - (level or 1) + 1] if level else []
                start = ".".join([*base, *([origin] if origin else [])])
                yield from (f"{start}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ):
                yield name


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of `source` that break the rule."""
    height = FLOORS.index(module.split(".")[1])
    found = []
    for name in imported(source, module, is_package):
        top, *rest = name.split(".")
        if top == "loadmaster" and rest and rest[0] in FLOORS[height + 1 :]:
            found.append(f"{name}: an arrow back up")
        if top in ("envs", "models", "serving") or (
            top == "platform" and rest and rest[0] in ("cli", "evaluation", "replay", "bench")
        ):
            found.append(f"{name}: by its bare name; expected loadmaster.{name}")
        if height == 0 and top in ("torch", "torch_geometric", "ray"):
            found.append(f"{name}: not on the ground floor")
    return found


def modules(root: Path) -> list[Path]:
    return [path for floor in FLOORS for path in sorted((root / floor).rglob("*.py"))]


def test_every_module_keeps_the_rule(root: Path) -> None:
    broken = []
    for path in modules(root):
        name = ".".join(("loadmaster", *path.relative_to(root).with_suffix("").parts))
        is_package = path.name == "__init__.py"
        found = offences(path.read_text(), name.removesuffix(".__init__"), is_package)
        broken += [f"{path.relative_to(root)}: {offence}" for offence in found]
    assert broken == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("loadmaster.envs.registry", "import loadmaster.platform.systems.registry"),
        ("loadmaster.envs.registry", "from loadmaster import models"),
        ("loadmaster.models.gnn", "def later():\n    from loadmaster.serving import guard"),
        ("loadmaster.serving.decisions.guard", "from ..platform import systems"),
        ("loadmaster.envs.registry", "from .. import platform"),
        ("loadmaster.envs.dag_scheduling.env", "from ...serving.guard import Guard"),
        ("loadmaster.envs.compiled", "if True:\n    import torch.nn as nn"),
        ("loadmaster.envs.compiled", "from ray import remote"),
        ("loadmaster.platform.systems.registry", "from envs.registry import environments"),
        ("loadmaster.platform.systems.registry", "import models"),
        ("loadmaster.platform.systems.registry", "from platform.cli import main"),
        ("loadmaster.envs.registry", "import_module('loadmaster.platform.systems.registry')"),
        ("loadmaster.envs.registry", "importlib.import_module('torch')"),
    ],
)
def test_the_checker_sees_an_offence(module: str, source: str) -> None:
    assert len(offences(source, module)) == 1


def test_the_checker_knows_packages_from_modules() -> None:
    source = "from . import platform"  # within loadmaster.envs: a module of its own, if it had one
    assert offences(source, "loadmaster.envs", is_package=True) == []
    assert offences("from .. import platform", "loadmaster.envs", is_package=True) == [
        "loadmaster.platform: an arrow back up"
    ]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("loadmaster.platform.ray.health", "import platform, torch\nfrom platform import machine"),
        ("loadmaster.platform.cli.list", "from loadmaster.envs.registry import environments"),
        ("loadmaster.serving.decisions.guard", "from ..models import bundles\nimport ray"),
        ("loadmaster.envs.dag_scheduling.env", "from .jobs import Job\nfrom . import jobs"),
    ],
)
def test_the_checker_lets_the_rest_pass(module: str, source: str) -> None:
    assert offences(source, module) == []


def test_modules_stay_short(root: Path) -> None:
    lengths = {path.relative_to(root): len(path.read_text().splitlines()) for path in modules(root)}
    assert lengths, "no modules were found: the test looks in the wrong place"
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}
