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
import zipfile
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

from loadmaster.envs.cache import cache_root
from loadmaster.envs.errors import InputError
from loadmaster.serving.jobs.checkout import build, is_checkout, sources
from loadmaster.serving.jobs.installed import installed_files

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
