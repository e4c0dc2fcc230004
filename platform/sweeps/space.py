"""The search space of a sweep: settings with a value or a distribution.

training.clip: {uniform: [0.1, 0.3]}             any number in the range
training.gradient_clip: {loguniform: [0.1, 10]}  uniform in the logarithm
rollouts.keep: {quniform: [0.2, 1.0, 0.2]}       a multiple of the third
rollouts.per_sequence: {randint: [2, 8]}         a whole number, both ends included
training.method: {choice: [ppo, reinforce]}      one of these, of any type
training.epochs: 3                               fixed

Variants, under a key of their own, are names of several settings at once; a trial has one of them.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.settings import over_defaults, record_in
from loadmaster.platform.training.config import BaseConfig, merged

Path = tuple[str, ...]  # of a setting: ("training", "clip")


@dataclass(frozen=True)
class Leaf:
    """A setting with a value or a distribution, and where it was given."""

    path: Path
    value: Any
    where: str  # "file:line", or the option it came from

    def fault(self, message: str) -> InputError:
        joint = " " if self.where.startswith("--") else ": "
        return InputError(f"{self.where}{joint}{'.'.join(self.path)}: {message}")


def leaves(
    kind: type[BaseModel],
    values: Mapping[str, Any],
    where: Callable[[Path], str],
    is_leaf: Callable[[Any], bool] = lambda value: False,
    path: Path = (),
) -> Iterator[Leaf]:
    """Every value in the nested mapping, checked to be a setting of `kind`.

    A mapping is a group where `kind` has a group, unless `is_leaf` is true of it.
    """
    for key, value in values.items():
        leaf = Leaf((*path, key), value, where((*path, key)))
        if path and key not in kind.model_fields and is_leaf({key: value}):
            yield Leaf(path, {key: value}, leaf.where)  # a distribution of the whole group
            continue
        if key not in kind.model_fields:
            group = f"setting of {'.'.join(path)}" if path else "setting"
            raise leaf.fault(str(unknown_name(group, key, kind.model_fields)))
        inner = record_in(kind.model_fields[key].annotation)  # an optional group is one too
        if inner is not None and isinstance(value, Mapping) and not is_leaf(value):
            yield from leaves(inner, value, where, is_leaf, leaf.path)
        else:
            yield leaf


def nested(values: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """A nested mapping with each value at its path."""
    tree: dict[str, Any] = {}
    for path, value in values:
        for key in reversed(path):
            value = {key: value}
        tree = merged(tree, value)
    return tree


def first_error(kind: type[BaseModel], values: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Setting and message of the first error in a configuration; None if it is valid."""
    try:
        kind.model_validate(values)
    except ValidationError as fault:
        first = fault.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "int_from_float":
            message = "expected a whole number: randint or choice"
        if first["type"] == "model_type":
            message = f"is a group of settings; expected one of them, or a mapping ({message})"
        return tuple(str(part) for part in first["loc"]), message
    return None


KINDS = {  # arguments
    "uniform": "a, b",
    "loguniform": "a, b",
    "quniform": "a, b, step",
    "randint": "a, b",
    "choice": "a, b, ..",
}
VARIANT = "variant"  # kind and name of the dimension whose values are names of variants
DIGITS = 4  # of drawn numbers, so that best.yaml has exactly the values used


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched, or the variants."""

    leaf: Leaf
    kind: str
    arguments: tuple[Any, ...]
    variants: Mapping[str, tuple[Leaf, ...]] = field(default_factory=dict)  # settings of each

    @property
    def name(self) -> str:
        return ".".join(self.leaf.path)

    @property
    def numeric(self) -> bool:
        return self.kind not in ("choice", VARIANT)

    @property
    def paths(self) -> list[Path]:
        """The settings that it sets; a choice between mappings may set several."""
        if self.kind == VARIANT:
            return [leaf.path for leaves in self.variants.values() for leaf in leaves]
        mappings = [value for value in self.arguments if isinstance(value, dict) and value]
        if self.kind != "choice" or len(mappings) < len(self.arguments):
            return [self.leaf.path]
        return [(*self.leaf.path, key) for mapping in mappings for key in mapping]

    def assignments(self, value: Any) -> list[tuple[Path, Any]]:
        """Settings and their values in a trial with this value."""
        if self.kind == VARIANT:
            return [(leaf.path, leaf.value) for leaf in self.variants[value]]
        return [(self.leaf.path, value)]

    def probes(self) -> tuple[Any, ...]:
        """Values to validate: the choices, or both ends and one between."""
        if not self.numeric:
            return self.arguments
        low, high, *step = self.arguments
        if self.kind == "randint":
            return (low, high)
        return (low, self.settle(low + (step[0] if step else 0.382 * (high - low))), high)

    def settle(self, drawn: Any) -> Any:
        """The drawn value clipped to the range and rounded."""
        if not self.numeric:
            return drawn
        low, high = self.arguments[:2]
        inside = min(max(drawn, low), high)
        if self.kind == "randint":
            return round(inside)
        if self.kind == "quniform":
            step = self.arguments[2]
            inside = round(inside / step) * step
            if all(isinstance(argument, int) for argument in self.arguments):
                return inside
        return min(max(float(f"{inside:.{DIGITS}g}"), low), high)

    def domain(self) -> Any:
        """Ray Tune's distribution."""
        from ray import tune

        if not self.numeric:
            return tune.choice(list(self.arguments))
        if self.kind == "randint":
            low, high = self.arguments
            return tune.randint(low, high + 1)
        return getattr(tune, self.kind)(*self.arguments)


@dataclass(frozen=True)
class Space:
    """Configurations of one system: fixed settings and searched ones."""

    kind: type[BaseConfig]
    fixed: tuple[Leaf, ...]
    dimensions: tuple[Dimension, ...]

    def settle(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Drawn values by setting, clipped and rounded."""
        return {d.name: d.settle(drawn[d.name]) for d in self.dimensions}

    def config(self, drawn: Mapping[str, Any]) -> BaseConfig:
        """The configuration of one trial."""
        return self.kind.model_validate(self.values(self.assignments(drawn)))

    def assignments(self, drawn: Mapping[str, Any]) -> list[tuple[Path, Any]]:
        """Searched settings and their values in one trial."""
        settled = self.settle(drawn)
        return [pair for d in self.dimensions for pair in d.assignments(settled[d.name])]

    @property
    def combinations(self) -> int:
        """Number of trials in a grid."""
        return math.prod(len(dimension.arguments) for dimension in self.dimensions)

    def check(self) -> None:
        """Raise InputError for values that are invalid alone or with those of another dimension."""
        if found := first_error(self.kind, self.values()):
            path, message = found
            raise _nearest(self.fixed, path).fault(message)
        for dimension in self.dimensions:
            for value in dimension.probes():
                if found := first_error(self.kind, self.values(dimension.assignments(value))):
                    raise dimension.leaf.fault(f"may become {in_words(value)}: {found[1]}")
        for one, other in itertools.combinations(self.dimensions, 2):
            for a, b in itertools.product(one.probes(), other.probes()):
                both = [*one.assignments(a), *other.assignments(b)]
                if found := first_error(self.kind, self.values(both)):
                    case = f"may become {in_words(b)} while {one.name} is {in_words(a)}"
                    raise other.leaf.fault(f"{case}: {found[1]}")

    def most(self, path: Path) -> float:
        """Highest possible value of a numeric setting."""
        drawn = (d.assignments(value) for d in self.dimensions for value in d.probes())
        found: list[Any] = [self.kind.model_validate(self.values(one)) for one in ([], *drawn)]
        return max(float(reduce(getattr, path, config)) for config in found)

    def values(self, drawn: Iterable[tuple[Path, Any]] = ()) -> dict[str, Any]:
        """Fixed and drawn values over the defaults, nested."""
        given = nested([*((leaf.path, leaf.value) for leaf in self.fixed), *drawn])
        return over_defaults(self.kind(), given)


def is_distribution(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in KINDS


def dimension(leaf: Leaf) -> Dimension:
    """Parse the distribution of a leaf."""
    ((kind, arguments),) = leaf.value.items()
    if not isinstance(arguments, list) or not arguments:
        raise leaf.fault(f"{kind} takes a list; expected {_form(kind)}")
    if kind == "choice":
        return Dimension(leaf, kind, tuple(arguments))
    numbers = [a for a in arguments if isinstance(a, int | float) and not isinstance(a, bool)]
    if len(numbers) != len(arguments) or not all(math.isfinite(n) for n in numbers):
        raise leaf.fault(f"{kind} takes numbers, not {arguments}; expected {_form(kind)}")
    if len(numbers) != len(KINDS[kind].split(",")):
        raise leaf.fault(f"{kind} takes [{KINDS[kind]}], not {arguments}")
    low, high = numbers[:2]
    if not low < high:
        raise leaf.fault(f"the range {arguments} is empty; expected the lower end first")
    if kind == "loguniform" and low <= 0:
        raise leaf.fault(f"loguniform from {low} is impossible; expected more than 0")
    if kind == "randint" and not all(isinstance(n, int) for n in numbers):
        raise leaf.fault(f"randint takes whole numbers, not {arguments}")
    if kind == "quniform":
        step = numbers[2]
        if not 0 < step <= high - low or not all(_divides(step, end) for end in (low, high)):
            raise leaf.fault(f"expected both ends of {arguments} to be multiples of the step")
    return Dimension(leaf, kind, tuple(arguments))


def not_a_distribution(leaf: Leaf) -> Exception:
    """The error for a mapping where a value was expected: often a misspelt distribution."""
    word = next(iter(leaf.value), "")
    if len(leaf.value) == 1 and word not in KINDS:
        return leaf.fault(str(unknown_name("distribution", str(word), KINDS)))
    return leaf.fault(f"expected a value, or one of {', '.join(_form(kind) for kind in KINDS)}")


def _nearest(fixed: tuple[Leaf, ...], path: Path) -> Leaf:
    """The leaf that shares most of an error's path."""

    def shared(leaf: Leaf) -> int:
        pairs = zip(leaf.path, path, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(fixed, key=shared)


def _divides(step: float, number: float) -> bool:
    return math.isclose(number / step, round(number / step), abs_tol=1e-9)


def _form(kind: str) -> str:
    return f"{{{kind}: [{KINDS[kind]}]}}"


def in_words(value: Any) -> str:
    """A value as written in a sweep file."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, dict | list):
        return yaml.safe_dump(value, default_flow_style=True, width=1000).strip()
    return str(value)
