"""YAML files read with the line of every key, so that an error names file, line and key."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError

Keys = tuple[str | int, ...]  # from the top: ("space", "training", "clip"); numbers within lists

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
    """A file's mapping as plain values, and the line of every key.

    `a.b: 1` and `a: {b: 1}` are the same; both are found under ("a", "b").
    """

    name: str  # as the user gave it
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Keys, int] = field(default_factory=dict)

    def where(self, keys: Keys) -> str:
        """`file:line` of the key, or of the nearest one around it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.name}:{self.lines.get(keys, 1)}"

    def fault(self, keys: Keys, message: str) -> InputError:
        return InputError(f"{self.where(keys)}: {dotted(keys)}: {message}")


def dotted(keys: Keys) -> str:
    return ".".join(str(key) for key in keys)


def read_document(path: Path) -> Document:
    """Read the mapping in a YAML file; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a YAML file") from None
    except OSError as fault:
        raise InputError(f"{path}: {fault.strerror}; expected a YAML file") from None
    return parse_document(text, str(path))


def parse_document(text: str, name: str) -> Document:
    """Parse the mapping in a YAML text; `name` stands for it in errors."""
    document = Document(name, text)
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise InputError(f"{name}:1: expected keys and values, such as `seed: 3`")
        if node is not None:
            document.values = _Reader(document).mapping(node, ())
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{name}:{line}: not YAML: {fault.problem or fault.context}") from None
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        character = f"character #{fault.character:04x} is not allowed"
        raise InputError(f"{name}:{line}: not YAML: {character}") from None
    except RecursionError:
        raise InputError(f"{name}:1: nested too deeply") from None
    return document


class _Reader:
    """Converts nodes to plain values and notes lines."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values: dict[int, Any] = {}  # by node, for aliases
        self.open: set[int] = set()  # nodes that are being converted
        self.latest: dict[Keys, int] = {}  # `document.lines` has the first line of a key
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, keys: Keys) -> Any:
        if id(node) in self.open:
            raise self.document.fault(keys, "the value contains itself")
        if id(node) not in self.values:
            self.open.add(id(node))
            self.values[id(node)] = self._convert(node, keys)
            self.open.remove(id(node))
            return self.values[id(node)]
        return copy.deepcopy(self.values[id(node)])

    def _convert(self, node: yaml.Node, keys: Keys) -> Any:
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            raise self.document.fault(keys, f"cannot read the tag {node.tag!r}")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            found = []
            for place, item in enumerate(node.value):
                self.document.lines[*keys, place] = item.start_mark.line + 1
                found.append(self.value(item, (*keys, place)))
            return found
        try:
            return self.constructor.construct_object(node)
        except (ValueError, KeyError):  # the 30th of February, or `!!int many`
            raise self.document.fault(keys, f"cannot read {node.value!r}") from None

    def mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        found: dict[str, Any] = {}
        literal: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or not all(key_node.value.split(".")):
                raise InputError(f"{self.document.name}:{line}: expected a word as the key")
            *outer, last = key_node.value.split(".")
            branch, path = found, keys
            for part in outer:
                path = (*path, part)
                self._note_line(path, line)
                branch = branch.setdefault(part, {})
                if not isinstance(branch, dict):
                    raise self._duplicate(path)
            path = (*path, last)
            self._note_line(path, line)
            if key_node.value in literal:
                raise self._duplicate(path)
            literal.add(key_node.value)
            self._merge(branch, last, self.value(value_node, path), path)
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

    def _note_line(self, keys: Keys, line: int) -> None:
        self.latest[keys] = line
        self.document.lines.setdefault(keys, line)

    def _duplicate(self, keys: Keys) -> InputError:
        first, again = self.document.lines[keys], self.latest[keys]
        return InputError(
            f"{self.document.name}:{again}: {dotted(keys)}: given twice, first on line {first}"
        )
