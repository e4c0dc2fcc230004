"""Callers that have used a valid token before, kept over restarts of the service.

While an address is being limited for wrong tokens, tokens that were valid there before still work.
If a restart forgot them, one client with wrong tokens behind a shared proxy would lock out all
others. A caller is a digest of address and token digest: the file names neither.
"""

import hashlib
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from loadmaster.envs.errors import InputError
from loadmaster.models.files import atomic_write
from loadmaster.models.manifest import read_bounded

log = logging.getLogger(__name__)

MAX_CALLERS = 4096  # the least recent ones go
MAX_FILE_BYTES = 1 << 20
CALLER = re.compile(r"[0-9a-f]{32}")


class KnownCallers:
    """The callers of a service, the most recent last. Without a file they are kept in memory.

    The control process has the file; gateways report new callers to it.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._callers: OrderedDict[str, None] = OrderedDict.fromkeys(_read(file) if file else ())
        self._is_saved = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._callers)

    def knows(self, address: str, digest: bytes) -> bool:
        """Whether that token, given by its digest, was valid at that address before."""
        caller = _caller(address, digest)
        if caller not in self._callers:
            return False
        self._callers.move_to_end(caller)
        return True

    def add(self, address: str, digest: bytes) -> None:
        self._callers[_caller(address, digest)] = None
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        self._is_saved = False

    def merge(self, callers: Iterable[str]) -> None:
        """Add the callers of another process, which has checked them."""
        for caller in callers:
            self._is_saved = self._is_saved and caller in self._callers
            self._callers[caller] = None
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)

    def unsaved(self) -> list[str] | None:
        """The callers if there are new ones since the last call; else None."""
        if self._is_saved:
            return None
        self._is_saved = True
        return list(self._callers)

    def save(self, callers: list[str]) -> None:
        """Write the file; may run in another thread. A fault is logged: requests go on."""
        assert self._file is not None
        try:
            with atomic_write(self._file, sync=True, private=True) as file:
                file.write(json.dumps(callers).encode())
        except OSError as fault:
            self._is_saved = False
            log.warning("cannot write %s: %s", self._file, fault.strerror)


@lru_cache(maxsize=MAX_CALLERS)
def _caller(address: str, digest: bytes) -> str:
    return hashlib.sha256(address.encode() + digest).hexdigest()[:32]


def _read(file: Path) -> list[str]:
    """The callers in a file; none if it is missing or damaged."""
    if not file.exists():
        return []
    try:
        found = json.loads(read_bounded(file, MAX_FILE_BYTES))
    except (InputError, ValueError, RecursionError) as fault:
        log.warning("%s cannot be read (%s); callers start anew", file, fault)
        return []
    found = found if isinstance(found, list) else []
    return [one for one in found if isinstance(one, str) and CALLER.fullmatch(one)][-MAX_CALLERS:]
