"""Parsed sources of the four packages, and what the architecture tests read in them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("envs", "models", "serving", "platform")  # each may import those before it


@dataclass(frozen=True)
class Module:
    """A Python module: its dotted name, whether it is a package's `__init__`, and its source."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def lines(self) -> int:
        return self.source.count("\n")

    @property
    def layer(self) -> int:
        return PACKAGES.index(self.name.split(".")[1])

    def imports(self) -> Iterator[str]:
        """Full names of everything imported anywhere in the module, by import_module("...") too."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(origin, names, level):
                    base = self.name.split(".")
                    if not self.is_package:
                        base = base[:-1]
                    base = base[: len(base) - (level or 1) + 1] if level else []
                    start = ".".join([*base, *([origin] if origin else [])])
                    yield from (f"{start}.{alias.name}" for alias in names)
                case ast.Call(
                    func=ast.Name("import_module" | "__import__")
                    | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(str(name)), *_],
                ):
                    yield name

    def defined_names(self) -> Iterator[tuple[str, int]]:
        """Every name that the module defines, with its line.

        These are functions, classes, parameters, variables, attributes of self, and import aliases.
        """
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield name, node.lineno
                case ast.ClassDef(name=name):
                    yield name, node.lineno
                case ast.arg(arg=name):
                    yield name, node.lineno
                case ast.Name(id=name, ctx=ast.Store()):
                    yield name, node.lineno
                case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                    yield name, node.lineno
                case ast.Import(names) | ast.ImportFrom(names=names):
                    yield from ((alias.asname, node.lineno) for alias in names if alias.asname)

    def import_aliases(self) -> Iterator[tuple[str, int]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from ((alias.asname, node.lineno) for alias in node.names if alias.asname)

    def docstrings(self) -> Iterator[tuple[str, int]]:
        """First line of every docstring, with the line of what it documents."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(self.tree):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield text.partition("\n")[0], getattr(node, "lineno", 1)


def read_modules(root: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, Module]:
    """Every module below the packages of a checkout, by its dotted name."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = ("loadmaster", *path.relative_to(root).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(name, path.read_text(encoding="utf-8"), is_package)
    return found


def words_of(identifier: str) -> list[str]:
    """Words of an identifier in lower case: `RpcClient` and `rpc_client` are rpc, client."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]
