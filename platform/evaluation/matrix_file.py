"""Matrix files: named settings of an environment in which policies are compared or rules tuned."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator

from loadmaster.envs.errors import InputError, unknown_name
from loadmaster.envs.registry import SYSTEMS, environments
from loadmaster.envs.settings import Settings
from loadmaster.platform.training.yaml_with_lines import Document, Keys, read_document

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")  # also a file name
SHIPPED = "shipped"  # instead of a file: the one in the folder of the environment's system
NO_FOLDER = Path(os.devnull) / "traces"  # cannot exist


class NamedSettings(Settings):
    """One entry of the list `settings`."""

    name: str
    group: str = ""  # settings of a group also get a mean of their own
    set: dict[str, Any] = Field(default={})  # settings of the environment, over `base`
    seeds: PositiveInt | None = None  # None: those of the file

    @field_validator("name", "group")
    @classmethod
    def _plain(cls, name: str) -> str:
        if name and not NAME.fullmatch(name):
            raise ValueError("expected at most 60 letters, digits, '.', '_' and '-'")
        return name


class SelectionSeeds(Settings):
    """Sequences on which the best rule of each setting is chosen."""

    seeds: PositiveInt = 20
    first_seed: NonNegativeInt


class MatrixFile(Settings):
    """A matrix file."""

    environment: str
    purpose: str = ""
    seeds: PositiveInt = 20
    first_seed: NonNegativeInt = 0
    select: SelectionSeeds | None = None  # None: the best rule is chosen on the judged sequences
    base: dict[str, Any] = Field(default={})  # settings of the environment, for all entries
    settings: tuple[NamedSettings, ...] = Field(min_length=1)


@dataclass(frozen=True)
class MatrixEntry:
    """A setting to run: its name, the environment's settings and the seeds."""

    name: str
    group: str
    settings: Any
    seeds: tuple[int, ...]
    where: str  # file:line
    selection: tuple[int, ...] = ()  # seeds on which the best rule is chosen; empty: `seeds`


@dataclass(frozen=True)
class Matrix:
    """A matrix file that was read and checked."""

    name: str  # of the file, without its suffix
    purpose: str
    environment: str
    entries: tuple[MatrixEntry, ...]


def read_matrix(
    path: Path,
    environment: str,
    build: Callable[[Mapping[str, Any]], Any],
    *,
    given: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
) -> Matrix:
    """Read a file and build all its settings; an InputError names file, line and setting.

    `given` (--set) holds in every setting; `seeds` and `first_seed` replace those of the file.
    """
    path = _shipped(environment) if str(path) == SHIPPED else path
    document = read_document(path)
    file = _parse(document)
    if file.environment != environment:
        wrong = f"{file.environment!r} is not what is evaluated; expected {environment!r}"
        raise document.fault(("environment",), wrong)
    first = file.first_seed if first_seed is None else first_seed
    entries: dict[str, MatrixEntry] = {}
    for place, one in enumerate(file.settings):
        where = document.where(("settings", place, "name"))
        if one.name in entries:
            before = entries[one.name].where
            raise InputError(f"{where}: the name {one.name!r} is given twice, first at {before}")
        try:
            settings = build({**file.base, **one.set, **(given or {})})
        except InputError as fault:
            raise InputError(f"{where}: {one.name}: {fault}") from None
        own = tuple(range(first, first + (seeds or one.seeds or file.seeds)))
        chosen_on = _selection(file, seeds)
        if set(chosen_on) & set(own):
            wrong = f"the best rule is chosen on sequences {one.name} is judged on; expected others"
            raise document.fault(("select",), wrong)
        entries[one.name] = MatrixEntry(one.name, one.group, settings, own, where, chosen_on)
    return Matrix(path.stem, file.purpose, environment, tuple(entries.values()))


def _selection(file: MatrixFile, most: int | None) -> tuple[int, ...]:
    """Seeds on which the best rule is chosen; `most`, given for a quick look, limits them too."""
    if file.select is None:
        return ()
    count = file.select.seeds if most is None else min(most, file.select.seeds)
    return tuple(range(file.select.first_seed, file.select.first_seed + count))


def _shipped(environment: str) -> Path:
    folder = Path(__file__).resolve().parents[1] / "systems"
    places = {one.environment: folder / one.name / "matrix.yaml" for one in SYSTEMS}
    shipped = {name: place for name, place in places.items() if place.is_file()}
    if environment not in shipped:
        expected = " or ".join(shipped)
        raise InputError(f"no matrix ships for {environment}; expected a file, or {expected}")
    return shipped[environment]


def _parse(document: Document) -> MatrixFile:
    try:
        return MatrixFile.model_validate(document.values)
    except ValidationError as fault:
        first = fault.errors()[0]
        keys: Keys = first["loc"]
        if first["type"] == "extra_forbidden":
            kind: type[Settings] = MatrixFile
            if len(keys) > 1:
                kind = NamedSettings if keys[0] == "settings" else SelectionSeeds
            unknown = unknown_name("key", str(keys[-1]), kind.model_fields)
            raise InputError(f"{document.where(keys)}: {unknown}") from None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            place = "setting" if keys[0] == "settings" and len(keys) > 1 else "matrix file"
            message = f"missing; expected in every {place}"
            if keys[0] == "select":
                message = "missing; expected beside seeds"
        raise document.fault(keys, message) from None


def reads_traces(environment: str, settings: Any) -> bool:
    """Whether the workload needs files: loading it from a folder that does not exist fails."""
    spec = environments().get(environment)
    if spec is None or "data" not in spec.settings.model_fields:
        return False
    workload: Any = spec.workload_records[settings.workload]
    try:
        workload.load(settings.model_copy(update={"data": NO_FOLDER}))
    except InputError:
        return True
    return False


def missing_traces(environment: str, settings: Any) -> str:
    """Why the traces of a workload cannot be read; empty where they can or none are needed."""
    spec = environments().get(environment)
    if spec is None or not reads_traces(environment, settings):
        return ""
    workload: Any = spec.workload_records[settings.workload]
    try:
        workload.load(settings)
    except InputError as fault:
        return str(fault)
    return ""


def traces_folder(environment: str, settings: Any) -> str:
    """The folder that the workload reads; empty where it reads none."""
    if not reads_traces(environment, settings):
        return ""
    return str(settings.data or os.environ.get("LOADMASTER_DATA", ""))
