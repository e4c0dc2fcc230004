"""Declared dependencies: what the packages import, and what the client needs."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.source_tree import Module, read_modules


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project(root: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def declared(root: Path) -> set[str]:
    """Distributions that an installation with every extra for users asks for."""
    table = project(root)
    extras = [lines for name, lines in table["optional-dependencies"].items() if name != "dev"]
    lines = [*table["dependencies"], *(line for extra in extras for line in extra)]
    return {normalised(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines}


def undeclared(module: Module, known: set[str]) -> set[str]:
    """Top-level packages that the module imports and no known distribution provides."""
    tops = {name.split(".")[0] for name in module.contents.imports}
    outside = tops - set(sys.stdlib_module_names) - {"loadmaster"}
    return {top for top in outside if not distributions().get(top, {normalised(top)}) & known}


@cache
def distributions() -> dict[str, set[str]]:
    """Distributions that provide each top-level package."""
    provided = {"mlflow": ["mlflow-skinny"], **packages_distributions()}  # an extra, not in dev
    return {top: {normalised(name) for name in names} for top, names in provided.items()}


@pytest.mark.slow
def test_every_import_is_declared(root: Path) -> None:
    known = declared(root)
    assert {"ray", "torch", "fastapi", "uvicorn"} <= known
    missing = {
        m.name: found for m in read_modules(root).values() if (found := undeclared(m, known))
    }
    assert missing == {}


def test_planted_import_is_found() -> None:
    planted = Module("loadmaster.envs.a", "import numpy\nfrom hypothesis import given")
    assert undeclared(planted, {"numpy"}) == {"hypothesis"}


@pytest.mark.parametrize("name", ["numba", "uvicorn", "ray", "torch"])
def test_dependencies_on_internals_have_an_upper_bound(root: Path, name: str) -> None:
    """These are used beyond their stable API, so a new minor version needs a look first."""
    table = project(root)
    extras = table["optional-dependencies"].values()
    lines = [*table["dependencies"], *(line for extra in extras for line in extra)]
    bounded = [line for line in lines if re.match(rf"{name}[\[<>=]", line)]
    assert bounded
    assert all("<" in line for line in bounded)


def test_client_is_the_same_version_and_needs_nothing(root: Path) -> None:
    file = root / "serving" / "client" / "pyproject.toml"
    client = tomllib.loads(file.read_text())["project"]
    assert client["version"] == project(root)["version"]
    assert client.get("dependencies", []) == []
    outside = {
        name
        for module in read_modules(root, ("serving/client",)).values()
        for name in (found.split(".")[0] for found in module.contents.imports)
        if name not in sys.stdlib_module_names and not name.startswith("loadmaster")
    }
    assert outside == set()
