"""Compilation of hot loops with numba: no interpreter lock, results cached on disk.

Numba decides by the age of a function's own source file whether its cached result is stale, so an
edit in a function it calls from another module goes unnoticed. The cache therefore lies in a folder
named after a digest of all sources with compiled code: `envs`, `models`, `platform/rl` and
`platform/systems`. Any edit there starts a new cache. The location of the sources does not count,
so a job on a cluster finds what an earlier job compiled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config
from numba.core.caching import UserProvidedCacheLocator

# Where this project keeps what it can make again.


def cache_root() -> Path:
    """LOADMASTER_CACHE, or what the system says is for caches, or ~/.cache."""
    root = os.environ.get("LOADMASTER_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "loadmaster"


Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE_ROOT = (
    Path(__file__).resolve().parents[1]
)  # the floors stand side by side, here as in a wheel


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Where compiled functions of exactly these sources are kept."""
    digest = hashlib.sha256(numba.__version__.encode())
    for njit_inline in ("envs", "models", "platform/rl", "platform/systems"):
        for source in sorted((PACKAGE_ROOT / njit_inline).rglob("*.py")):
            digest.update(source.read_bytes())
    return cache_root() / "compiled" / digest.hexdigest()[:16]


class PackageCacheLocator(UserProvidedCacheLocator):
    """Numba's place for a function, by its module's path within the house instead of on disk."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        module = Path(py_file).resolve()
        if not module.is_relative_to(PACKAGE_ROOT):
            return str(super().get_suitable_cache_subpath(py_file))
        return "_".join([module.parent.name, *module.parent.relative_to(PACKAGE_ROOT).parts])


def compiled(function: Function) -> Function:
    """Compile at first call; later processes load the result from disk.

    `_nrt=False` compiles without reference counts. Every table then must come from outside, and
    compiled code may not allocate; for that it runs ten times faster, since counting references
    to a dozen tables at every call costs far more than what our functions do.
    """
    return _compile(function)


def njit_internal(function: Function) -> Function:
    """The same for what only compiled code calls: no door for Python, half the time to compile."""
    return _compile(function, no_cpython_wrapper=True)


def njit_inline(function: Function) -> Function:
    """For what one compiled function calls in one place: a part of it with a name of its own.

    It is compiled within its caller. Apart, it would be optimised twice: alone, and in there.
    """
    return _compile(function, inline="always")


def _compile(function: Function, **options: Any) -> Function:
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR = str(cache_folder())
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{PackageCacheLocator.__name__}"
    try:
        fast: Function = numba.njit(
            cache=True,
            nogil=True,
            error_model="numpy",
            _nrt=False,
            no_cfunc_wrapper=True,
            **options,
        )(function)
        return fast
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
