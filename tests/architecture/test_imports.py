"""Imports between modules: their direction, and that they form no circle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, Module, read_modules


def forbidden_imports(module: Module) -> list[str]:
    """Imports of an upper layer, of a package by its bare name, and of torch or Ray in envs."""
    found = []
    for name in module.contents.imports:
        top, *rest = name.split(".")
        if top == "loadmaster" and rest and rest[0] in PACKAGES[module.layer + 1 :]:
            found.append(f"{name}: imports an upper layer")
        if top in ("envs", "models", "serving") or (
            top == "platform" and rest and rest[0] in ("cli", "evaluation", "replay", "bench")
        ):
            found.append(f"{name}: bare name; expected loadmaster.{name}")
        if module.layer == 0 and top in ("torch", "torch_geometric", "ray"):
            found.append(f"{name}: not allowed in envs")
    return found


def import_cycle(modules: Mapping[str, Module]) -> list[str]:
    """Names of modules that import each other in a circle, imports for type checks included."""
    graph = {
        name: {target for target in _targets(module.contents.imports, modules) if target != name}
        for name, module in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _targets(imports: Iterable[str], modules: Mapping[str, Module]) -> Iterable[str]:
    for name in imports:
        parent = name.rpartition(".")[0]
        if name in modules:
            yield name
        elif parent in modules:
            yield parent


def test_imports_go_one_way(root: Path) -> None:
    modules = read_modules(root)
    assert len(modules) > 100, "no modules found: wrong folder"
    broken = {name: found for name, m in modules.items() if (found := forbidden_imports(m))}
    assert broken == {}


def test_no_import_circle(root: Path) -> None:
    assert import_cycle(read_modules(root)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("loadmaster.envs.registry", "import loadmaster.platform.systems"),
        ("loadmaster.envs.registry", "from loadmaster import models"),
        ("loadmaster.models.gnn", "def later():\n    from loadmaster.serving import guard"),
        ("loadmaster.serving.decisions.guard", "from ...platform import systems"),
        ("loadmaster.envs.registry", "from .. import platform"),
        ("loadmaster.envs.dag_scheduling.env", "from ...serving.guard import Guard"),
        ("loadmaster.envs.compiled", "if True:\n    import torch.nn as nn"),
        ("loadmaster.envs.compiled", "from ray import remote"),
        ("loadmaster.platform.systems", "from envs.registry import environments"),
        ("loadmaster.platform.systems", "import models"),
        ("loadmaster.platform.systems", "from platform.cli import main"),
        ("loadmaster.envs.registry", "import_module('loadmaster.platform.systems')"),
        ("loadmaster.envs.registry", "importlib.import_module('torch')"),
    ],
)
def test_planted_import_is_found(module: str, source: str) -> None:
    assert len(forbidden_imports(Module(module, source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("loadmaster.platform.ray.health", "import platform, torch\nfrom platform import machine"),
        ("loadmaster.platform.cli.list", "from loadmaster.envs.registry import environments"),
        ("loadmaster.serving.decisions.guard", "from ...models import bundle\nimport ray"),
        ("loadmaster.envs.dag_scheduling.env", "from .jobs import Job\nfrom . import jobs"),
    ],
)
def test_allowed_import_passes(module: str, source: str) -> None:
    assert forbidden_imports(Module(module, source)) == []


def test_relative_import_of_a_package_is_resolved() -> None:
    package = Module("loadmaster.envs", "from .. import platform", is_package=True)
    assert len(forbidden_imports(package)) == 1
    assert forbidden_imports(Module("loadmaster.envs", "from . import platform", True)) == []


@pytest.mark.parametrize(
    "closing",
    [
        "from loadmaster.envs.a import x",
        "from loadmaster.envs import a",
        "if TYPE_CHECKING:\n    from loadmaster.envs.a import x",
        "def later():\n    from loadmaster.envs.a import x",
    ],
)
def test_planted_circle_is_found(closing: str) -> None:
    a = Module("loadmaster.envs.a", "from loadmaster.envs.b import y")
    modules = {"loadmaster.envs.a": a, "loadmaster.envs.b": Module("loadmaster.envs.b", closing)}
    assert set(import_cycle(modules)) == set(modules)
    assert (
        import_cycle({**modules, "loadmaster.envs.b": Module("loadmaster.envs.b", "y = 1")}) == []
    )
