"""The files of an installed wheel, as its RECORD names them."""

from __future__ import annotations

from importlib.metadata import Distribution, distributions
from pathlib import Path

from loadmaster.envs.errors import InputError

NOT_OF_THE_WHEEL = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")  # pip's own notes


def installed_files(house: Path) -> dict[str, bytes]:
    """By their names in the wheel; `house` is the folder `loadmaster` of the installation."""
    found = _distribution(house)
    files = {}
    for entry in found.files or ():
        if ".." in entry.parts or "__pycache__" in entry.parts:
            continue  # the command, which pip writes anew, and compiled modules
        if entry.parent.name.endswith(".dist-info") and entry.name in NOT_OF_THE_WHEEL:
            continue
        try:
            files[entry.as_posix()] = Path(str(found.locate_file(entry))).read_bytes()
        except OSError as fault:
            raise InputError(
                f"this installation is damaged: {entry} cannot be read ({fault.strerror}); "
                "install loadmaster again"
            ) from None
    return files


def _distribution(house: Path) -> Distribution:
    """The one whose modules lie in that folder: several may be in reach."""
    here = house / "serving" / "jobs" / "installed.py"
    for found in distributions(name="loadmaster", path=[str(house.parent)]):
        for entry in found.files or ():
            if entry.name == here.name and Path(str(found.locate_file(entry))).resolve() == here:
                return found
    raise InputError(
        f"no wheel can be made of the modules in {str(house)!r}: no installed package lists them; "
        "expected a checkout of the project, or an installed wheel"
    )
