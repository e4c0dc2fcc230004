"""This installation as a wheel file, to travel to a cluster.

Code goes there as a wheel and never as a folder: a folder on a worker's sys.path that holds
`platform/` can hide the standard library's module of that name, and Ray dies of it. The nodes have
the libraries already, so the wheel asks for none: pip, which Ray calls for it on every node, would
install them all a second time.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import BytesParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from loadmaster.envs.compiled import cache_root
from loadmaster.envs.errors import InputError

# The files of an installed wheel, as its RECORD names them.


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


# A checkout's files, and the wheel that setuptools makes of them: no network, nothing littered.


PROJECT = "pyproject.toml"
PATIENCE_S = 300.0
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def is_checkout(house: Path) -> bool:
    """Whether the folder is this project's source tree, and not where a wheel was unpacked."""
    return (house / PROJECT).is_file() and _project(house)["project"].get("name") == "loadmaster"


def sources(root: Path) -> dict[str, bytes]:
    """The packages' files and what setuptools asks for, by their path under the root.

    Of these, all that git does not ignore: new modules travel before they are committed. Results
    and the rest of the tree stay at home.
    """
    project = _project(root)
    folders = project["tool"]["setuptools"]["package-dir"].values()
    beside = [project["project"].get("readme"), *project["project"].get("license-files", ())]
    parts = [PROJECT, *(name for name in beside if name), *folders]
    names = _known_to_git(root, parts) or _walked(root, parts)
    return {name: (root / name).read_bytes() for name in names if (root / name).is_file()}


def build(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The contents of the wheel, built in a copy: setuptools leaves its traces where it works."""
    with tempfile.TemporaryDirectory(prefix="lm-wheel-") as scratch:
        copy, dist = Path(scratch) / "loadmaster", Path(scratch) / "dist"
        for name, content in files.items():
            file = copy / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        dist.mkdir()
        try:
            # -P: the copy, which holds platform/, stays off sys.path.
            done = subprocess.run(
                [sys.executable, "-P", "-c", BUILD, str(dist)],
                cwd=copy,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise InputError(f"this checkout cannot be built as a wheel: {fault}") from None
        built = list(dist.glob("*.whl"))
        if done.returncode or len(built) != 1:
            raise InputError(_refusal(done.stderr))
        with zipfile.ZipFile(built[0]) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _refusal(stderr: str) -> str:
    lines = stderr.strip().splitlines() or ["setuptools said nothing"]
    if "No module named 'setuptools'" in lines[-1]:
        return (
            "this checkout cannot be built as a wheel: setuptools is not installed; "
            "expected `pip install 'setuptools>=77'`"
        )
    return f"this checkout cannot be built as a wheel: {lines[-1]}"


def _project(root: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as fault:
        raise InputError(f"{root / PROJECT}: {fault}; expected TOML") from None


def _known_to_git(root: Path, parts: list[str]) -> list[str]:
    """Nothing where there is no git, or the tree is none of its own."""
    kinds = ("--cached", "--others", "--exclude-standard")
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", *kinds, "--", *parts],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    names = sorted(filter(None, answer.stdout.split("\0")))
    return names if PROJECT in names else []


def _walked(root: Path, parts: list[str]) -> list[str]:
    found = [file for part in parts for file in (root / part, *(root / part).rglob("*"))]
    return sorted(
        str(file.relative_to(root))
        for file in found
        if file.is_file() and "__pycache__" not in file.parts
    )


ON_THE_NODES = "cluster"  # the extra under which the wheel names what nodes must have
EXTRA = f'extra == "{ON_THE_NODES}"'
TAGS = "py3-none-any"
KEPT = 8  # wheels in the cache, the latest used
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the earliest a zip file knows: equal contents, equal bytes

Files = Mapping[str, bytes]  # name in the wheel -> content


def wheel(house: Path | None = None, cache: Path | None = None) -> Path:
    """The wheel of this installation, made where the cache has none of exactly these files.

    `house` is the folder that holds the four floors; the one this module stands in unless told.
    Ray takes a wheel that it has under the same name for the same wheel, hence the digest in it.
    """
    house = house or Path(__file__).resolve().parents[2]
    folder = cache or cache_root() / "wheels"
    checkout = is_checkout(house)
    files = sources(house) if checkout else installed_files(house)
    digest = digest_of(files)
    for known in folder.glob(f"loadmaster-*-0_{digest}-{TAGS}.whl"):
        os.utime(known)
        return known
    content = for_a_cluster(build(files) if checkout else files)
    path = folder / f"loadmaster-{version_of(content)}-0_{digest}-{TAGS}.whl"
    _write(content, path)
    _forget_old(folder)
    return path


def digest_of(files: Files) -> str:
    """Of names and contents, in any order."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()[:16]


def for_a_cluster(files: Files) -> dict[str, bytes]:
    """The wheel's files with the libraries under an extra, which nobody asks pip for.

    `loadmaster doctor` still reads there which versions a node has to have.
    """
    changed = {name: content for name, content in files.items() if not _is_record(name)}
    name = metadata_name(files)
    metadata = BytesParser().parsebytes(files[name])
    wanted = metadata.get_all("Requires-Dist") or []
    del metadata["Requires-Dist"], metadata["Provides-Extra"]
    metadata["Provides-Extra"] = ON_THE_NODES
    for line in wanted:
        requirement, _, marker = line.partition(";")
        if EXTRA in marker or "extra ==" not in marker:
            also = marker.replace(f"and {EXTRA}", "").replace(EXTRA, "").strip()
            both = f"{also} and {EXTRA}" if also else EXTRA
            metadata["Requires-Dist"] = f"{requirement.strip()}; {both}"
    changed[name] = _text(metadata)
    record = name.replace("METADATA", "RECORD")
    changed[record] = _record(changed, record)
    return changed


def metadata_name(files: Iterable[str]) -> str:
    for name in files:
        if name.endswith(".dist-info/METADATA") and name.count("/") == 1:
            return name
    raise InputError(
        "loadmaster was installed without its metadata; expected `pip install` of a wheel or of "
        "a checkout"
    )


def version_of(files: Files) -> str:
    return str(BytesParser().parsebytes(files[metadata_name(files)])["Version"])


def _is_record(name: str) -> bool:
    return name.endswith(".dist-info/RECORD")


def _text(metadata: Message) -> bytes:
    """As it was: no line is folded, whatever its length."""
    lines = [f"{name}: {value}" for name, value in metadata.items()]
    return ("\n".join(lines) + f"\n\n{metadata.get_payload()}").encode("utf-8", "surrogateescape")


def _record(files: Files, own_name: str) -> bytes:
    lines = []
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    return ("\n".join([*lines, f"{own_name},,"]) + "\n").encode()


def _write(files: Files, path: Path) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                entry = zipfile.ZipInfo(name, LONG_AGO)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, content)
        scratch.replace(path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise InputError(
            f"cannot write the wheel {str(path)!r}: {fault.strerror}; "
            "set LOADMASTER_CACHE to a folder you may write to"
        ) from None


def _forget_old(folder: Path) -> None:
    found = sorted(folder.glob("loadmaster-*.whl"), key=lambda file: file.stat().st_mtime)
    for old in found[:-KEPT]:
        old.unlink(missing_ok=True)
