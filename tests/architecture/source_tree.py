"""Parsed sources of the four packages, and what the architecture tests read in them."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("envs", "models", "serving", "platform")  # each may import those before it
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef

Located = tuple[str, int]  # a text and its line


class Contents(NamedTuple):
    """What one walk through a module's tree finds; the tree is not kept."""

    imports: list[str]  # full names, by import_module("...") too
    defined_names: list[Located]  # functions, classes, parameters, variables, attributes of self
    import_aliases: list[Located]
    docstrings: list[Located]  # first lines, with the line of what is documented


@dataclass(frozen=True)
class Module:
    """A Python module: its dotted name, whether it is a package's `__init__`, and its source."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def contents(self) -> Contents:
        found = Contents([], [], [], [])
        for node in ast.walk(ast.parse(self.source)):
            found.imports.extend(self._imports(node))
            found.defined_names.extend(_defined_names(node))
            found.import_aliases.extend(_import_aliases(node))
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                found.docstrings.append((text.partition("\n")[0], getattr(node, "lineno", 1)))
        return found

    @property
    def lines(self) -> int:
        return self.source.count("\n")

    @property
    def layer(self) -> int:
        return PACKAGES.index(self.name.split(".")[1])

    def _imports(self, node: ast.AST) -> Iterator[str]:
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
                func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ):
                yield name


def _defined_names(node: ast.AST) -> Iterator[Located]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, node.lineno
        case ast.arg(arg=name):
            yield name, node.lineno
        case ast.Name(id=name, ctx=ast.Store()):
            yield name, node.lineno
        case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
            yield name, node.lineno
        case ast.Import() | ast.ImportFrom():
            yield from _import_aliases(node)


def _import_aliases(node: ast.AST) -> Iterator[Located]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname, node.lineno) for alias in node.names if alias.asname)


@cache
def read_modules(root: Path, packages: tuple[str, ...] = PACKAGES) -> Mapping[str, Module]:
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
