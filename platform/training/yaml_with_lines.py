"""YAML files read with the line of every key, so that an error names file, line and key."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import read_bounded

Keys = tuple[str | int, ...]  # from the top: ("space", "training", "clip"); numbers within lists

LARGEST = 1 << 20  # bytes of a file
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number; YAML 1.1 requires 1.0e-3."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z"),
    list("-+0123456789"),
)


@dataclass
class Document:
    """A file's mapping as plain values, and the lines of every key.

    `a.b: 1` and `a: {b: 1}` are the same; both are found under ("a", "b").
    """

    name: str  # as the user gave it
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Keys, list[int]] = field(default_factory=dict)

    def where(self, keys: Keys) -> str:
        """`file:line` of the key, or of the nearest one around it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.name}:{self.lines.get(keys, [1])[0]}"

    def fault(self, keys: Keys, message: str) -> InputError:
        return InputError(f"{self.where(keys)}: {dotted(keys)}: {message}")

    def value_of(self, node: yaml.Node, keys: Keys) -> Any:
        """Convert a node to plain values and note its lines."""
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            raise self.fault(keys, f"cannot read the tag {node.tag!r}")
        if isinstance(node, yaml.MappingNode):
            return self.mapping_of(node, keys)
        if isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self.lines[*keys, place] = [item.start_mark.line + 1]
            return [self.value_of(item, (*keys, place)) for place, item in enumerate(node.value)]
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, KeyError):  # the 30th of February, or `!!int many`
            raise self.fault(keys, f"cannot read {node.value!r}") from None

    def mapping_of(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        found: dict[str, Any] = {}
        literal: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or not all(key_node.value.split(".")):
                raise InputError(f"{self.name}:{line}: expected a word as the key")
            *outer, last = key_node.value.split(".")
            branch, path = found, keys
            for part in outer:
                path = (*path, part)
                self.lines.setdefault(path, []).append(line)
                branch = branch.setdefault(part, {})
                if not isinstance(branch, dict):
                    raise self._duplicate(path)
            path = (*path, last)
            self.lines.setdefault(path, []).append(line)
            if key_node.value in literal:
                raise self._duplicate(path)
            literal.add(key_node.value)
            self._merge(branch, last, self.value_of(value_node, path), path)
        return found

    def _merge(self, into: dict[str, Any], key: str, value: Any, keys: Keys) -> None:
        """Join `a.b: 1` and `a: {c: 2}`; a value given twice is an error."""
        if key not in into:
            into[key] = value
            return
        if not (isinstance(into[key], dict) and isinstance(value, dict)):
            raise self._duplicate(keys)
        for inner, inner_value in value.items():
            self._merge(into[key], inner, inner_value, (*keys, inner))

    def _duplicate(self, keys: Keys) -> InputError:
        first, *_, again = self.lines[keys]
        message = f"{dotted(keys)}: given twice, first on line {first}"
        return InputError(f"{self.name}:{again}: {message}")


def dotted(keys: Keys) -> str:
    return ".".join(str(key) for key in keys)


def read_document(path: Path) -> Document:
    """Read the mapping in a YAML file; an empty file is an empty mapping."""
    try:
        return parse_document(read_bounded(path, LARGEST).decode(), str(path))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a YAML file") from None


def parse_document(text: str, name: str) -> Document:
    """Parse the mapping in a YAML text; `name` stands for it in errors."""
    document = Document(name, text)
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise InputError(f"{name}:1: expected keys and values, such as `seed: 3`")
        if node is not None:
            document.values = document.mapping_of(node, ())
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{name}:{line}: not YAML: {fault.problem or fault.context}") from None
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        character = f"character #{fault.character:04x} is not allowed"
        raise InputError(f"{name}:{line}: not YAML: {character}") from None
    except RecursionError:
        raise InputError(f"{name}:1: nested too deeply, or a value contains itself") from None
    return document
