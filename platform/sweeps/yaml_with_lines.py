"""YAML that knows where it was written, so that a fault names the file, the line and the key."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError

Keys = tuple[str | int, ...]  # from the top: ("space", "training", "clip"); numbers within lists


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as the number it is meant to be; YAML 1.1 wants 1.0e-3."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z"),
    list("-+0123456789"),
)


_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass
class Document:
    """A file's contents as plain values, and the line of every key.

    `a.b: 1` and `a: {b: 1}` are the same; either way the value is found under ("a", "b").
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
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a YAML file") from None
    except OSError as fault:
        raise InputError(f"{path}: {fault.strerror}; expected a YAML file") from None
    document = Document(str(path), text)
    try:
        node = yaml.compose(text, Loader=_Loader)
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path}:1: expected keys and values, such as `system: decima`")
        document.values = _Reading(document).mapping(node, ())
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{path}:{line}: not YAML: {fault.problem or fault.context}") from None
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        character = f"the character #{fault.character:04x}"
        raise InputError(f"{path}:{line}: not YAML: {character} may not be in it") from None
    except RecursionError:
        raise InputError(f"{path}:1: nested too deeply") from None
    return document


class _Reading:
    """From nodes to plain values, noting lines on the way."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.seen: set[int] = set()
        self.latest: dict[Keys, int] = {}  # where a document has the line of the first
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, keys: Keys) -> Any:
        if id(node) in self.seen:  # which also keeps a value from holding itself
            raise self.document.fault(keys, "aliases (*name) are not read; write the value out")
        self.seen.add(id(node))
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN:
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
                self._note(path, line)
                branch = branch.setdefault(part, {})
                if not isinstance(branch, dict):
                    raise self._twice(path)
            path = (*path, last)
            self._note(path, line)
            if key_node.value in literal:
                raise self._twice(path)
            literal.add(key_node.value)
            self._merge(branch, last, self.value(value_node, path), path)
        return found

    def _merge(self, into: dict[str, Any], key: str, value: Any, keys: Keys) -> None:
        """`a.b: 1` and `a: {c: 2}` may stand side by side, but no value may be given twice."""
        if key not in into:
            into[key] = value
            return
        if not (isinstance(into[key], dict) and isinstance(value, dict)):
            raise self._twice(keys)
        for inner, inner_value in value.items():
            self._merge(into[key], inner, inner_value, (*keys, inner))

    def _note(self, keys: Keys, line: int) -> None:
        self.latest[keys] = line
        self.document.lines.setdefault(keys, line)

    def _twice(self, keys: Keys) -> InputError:
        first, again = self.document.lines[keys], self.latest[keys]
        return InputError(
            f"{self.document.name}:{again}: {dotted(keys)}: given twice, first on line {first}"
        )
