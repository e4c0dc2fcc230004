"""Builds a wheel of this installation for a cluster.

Code is shipped as a wheel and not as a folder: on a worker's sys.path the folder `platform/` would
hide the standard library's module of that name, and Ray would fail. The wheel requires no
libraries: pip, which Ray runs for it on every node, would install them a second time.
"""

import base64
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

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_binary_file

PROJECT = "pyproject.toml"
TIMEOUT_S = 300.0  # of a build, or of git
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
PIP_FILES = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")  # not in a wheel
ON_THE_NODES = "cluster"  # the extra that lists the libraries a node must have
EXTRA = f'extra == "{ON_THE_NODES}"'
TAGS = "py3-none-any"
KEPT = 8  # wheels in the cache, by latest use
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # constant, so that equal contents give equal bytes

Files = Mapping[str, bytes]  # name in the wheel -> content


def installed_files(package: Path) -> dict[str, bytes]:
    """Files of an installed wheel by name; `package` is its folder `loadmaster`."""
    found = _distribution(package)
    files = {}
    for entry in found.files or ():
        if ".." in entry.parts or "__pycache__" in entry.parts:
            continue  # the command, which pip creates, and compiled modules
        if entry.parent.name.endswith(".dist-info") and entry.name in PIP_FILES:
            continue
        try:
            files[entry.as_posix()] = Path(str(found.locate_file(entry))).read_bytes()
        except OSError as fault:
            reason = f"{entry} cannot be read ({fault.strerror}); install loadmaster again"
            raise InputError(f"this installation is damaged: {reason}") from None
    return files


def _distribution(package: Path) -> Distribution:
    """Find the distribution whose modules are in that folder."""
    here = package / "serving" / "jobs" / Path(__file__).name
    for found in distributions(name="loadmaster", path=[str(package.parent)]):
        for entry in found.files or ():
            if entry.name == here.name and Path(str(found.locate_file(entry))).resolve() == here:
                return found
    raise InputError(
        f"cannot make a wheel of {str(package)!r}: no installed package lists its modules; "
        "expected a checkout of the project, or an installed wheel"
    )


def is_checkout(folder: Path) -> bool:
    """Whether the folder is this project's source tree, not an installation."""
    return (folder / PROJECT).is_file() and _project(folder)["project"].get("name") == "loadmaster"


def sources(root: Path) -> dict[str, bytes]:
    """Files that setuptools needs, by path: packages, project file, readme, licence.

    Files that git ignores are left out; untracked modules are included.
    """
    project = _project(root)
    folders = project["tool"]["setuptools"]["package-dir"].values()
    extra = [project["project"].get("readme"), *project["project"].get("license-files", ())]
    parts = [PROJECT, *(name for name in extra if name), *folders]
    names = _git_files(root, parts) or _all_files(root, parts)
    return {name: (root / name).read_bytes() for name in names if (root / name).is_file()}


def build(files: Files) -> dict[str, bytes]:
    """Contents of a wheel built in a copy of the files, as setuptools writes to its folder."""
    with tempfile.TemporaryDirectory(prefix="lm-wheel-") as scratch:
        copy, dist = Path(scratch) / "loadmaster", Path(scratch) / "dist"
        for name, content in files.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)
        dist.mkdir()
        try:
            # -P keeps the copy, which contains platform/, off sys.path.
            command = [sys.executable, "-P", "-c", BUILD, str(dist)]
            done = subprocess.run(
                command, cwd=copy, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise InputError(f"this checkout cannot be built as a wheel: {fault}") from None
        built = list(dist.glob("*.whl"))
        if done.returncode or len(built) != 1:
            *_, reason = ["no output of setuptools", *done.stderr.strip().splitlines()]
            if "No module named 'setuptools'" in reason:
                reason = "setuptools is not installed; expected `pip install 'setuptools>=77'`"
            raise InputError(f"this checkout cannot be built as a wheel: {reason}")
        with zipfile.ZipFile(built[0]) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _project(root: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as fault:
        raise InputError(f"{root / PROJECT}: {fault}; expected TOML") from None


def _git_files(root: Path, parts: list[str]) -> list[str]:
    """Files that git does not ignore; none without git or outside of a repository."""
    kinds = ("--cached", "--others", "--exclude-standard")
    try:
        command = ["git", "-C", str(root), "ls-files", "-z", *kinds, "--", *parts]
        listed = subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    names = sorted(filter(None, listed.split("\0")))
    return names if PROJECT in names else []


def _all_files(root: Path, parts: list[str]) -> list[str]:
    found = [file for part in parts for file in (root / part, *(root / part).rglob("*"))]
    return sorted(
        str(file.relative_to(root))
        for file in found
        if file.is_file() and "__pycache__" not in file.parts
    )


def wheel(root: Path | None = None, cache: Path | None = None) -> Path:
    """Return the wheel of an installation, from the cache if it has one of the same files.

    `root` is the folder of the four packages; by default that of this module. The name contains a
    digest, as Ray identifies wheels by name.
    """
    root = root or Path(__file__).resolve().parents[2]
    folder = cache or _own_cache()
    checkout = is_checkout(root)
    files = sources(root) if checkout else installed_files(root)
    digest = digest_of(files)
    for known in folder.glob(f"loadmaster-*-0_{digest}-{TAGS}.whl"):
        os.utime(known)
        return known
    content = without_requirements(build(files) if checkout else files)
    version = BytesParser().parsebytes(content[metadata_name(content)])["Version"]
    path = folder / f"loadmaster-{version}-0_{digest}-{TAGS}.whl"
    _write(content, path)
    _delete_old(folder)
    return path


def _own_cache() -> Path:
    from loadmaster.envs.compiled import cache_root  # late: numba takes most of a second

    return cache_root() / "wheels"


def digest_of(files: Files) -> str:
    """Digest of names and contents, in any order."""
    lines = (f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def without_requirements(files: Files) -> dict[str, bytes]:
    """Move the wheel's requirements to an extra that is not installed.

    `loadmaster doctor` reads there which versions a node must have.
    """
    name = metadata_name(files)
    metadata = BytesParser().parsebytes(files[name])
    requirements = metadata.get_all("Requires-Dist") or []
    del metadata["Requires-Dist"], metadata["Provides-Extra"]
    metadata["Provides-Extra"] = ON_THE_NODES
    for line in requirements:
        requirement, _, marker = line.partition(";")
        if EXTRA in marker or "extra ==" not in marker:
            other = marker.replace(f"and {EXTRA}", "").replace(EXTRA, "").strip()
            both = f"{other} and {EXTRA}" if other else EXTRA
            metadata["Requires-Dist"] = f"{requirement.strip()}; {both}"
    record = name.replace("METADATA", "RECORD")
    changed = {name: content for name, content in files.items() if name != record}
    changed[name] = _encode(metadata)
    changed[record] = _record(changed, record)
    return changed


def metadata_name(files: Iterable[str]) -> str:
    """Name of the metadata file among the names of a wheel's files."""
    for name in files:
        if name.endswith(".dist-info/METADATA") and name.count("/") == 1:
            return name
    raise InputError("this installation has no metadata; install loadmaster again")


def _encode(metadata: Message) -> bytes:
    """Encode metadata without folding long lines."""
    head = "".join(f"{name}: {value}\n" for name, value in metadata.items())
    description: Any = metadata.get_payload(decode=True)
    return b"%b\n%b" % (head.encode("utf-8", "surrogateescape"), description)


def _record(files: Files, own_name: str) -> bytes:
    lines = []
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    return ("\n".join([*lines, f"{own_name},,"]) + "\n").encode()


def _write(files: Files, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            atomic_binary_file(path, "the wheel") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, content in files.items():
                entry = zipfile.ZipInfo(name, ZIP_EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, content)
    except (OSError, InputError) as fault:
        expected = "set LOADMASTER_CACHE to a writable folder"
        raise InputError(f"cannot write the wheel {str(path)!r}: {fault}; {expected}") from None


def _delete_old(folder: Path) -> None:
    found = sorted(folder.glob("loadmaster-*.whl"), key=lambda file: file.stat().st_mtime)
    for old in found[:-KEPT]:
        old.unlink(missing_ok=True)
