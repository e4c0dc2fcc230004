"""How this project compiles its hot loops: numba, without the interpreter lock, cached on disk.

Numba decides whether a cached function is stale by the age of its own source file alone, so a
change in a function it calls from another module would go unnoticed. We therefore keep the cache
in a folder named after a digest of all sources that compiled code calls across modules, those of
`envs` and `models`: any edit there starts a fresh one.
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

Function = TypeVar("Function", bound=Callable[..., Any])


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Where compiled functions of exactly these sources are kept."""
    digest = hashlib.sha256(numba.__version__.encode())
    house = Path(__file__).parents[1]  # the folders stand side by side, here as in a wheel
    for floor in ("envs", "models"):
        for source in sorted((house / floor).rglob("*.py")):
            digest.update(source.read_bytes())
    root = os.environ.get("LOADMASTER_CACHE") or os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root else Path.home() / ".cache"
    return base / "loadmaster" / "compiled" / digest.hexdigest()[:16]


def compiled(function: Function) -> Function:
    """Compile at first call; later processes load the result from disk.

    `_nrt=False` compiles without reference counts. Every table then must come from outside, and
    compiled code may not allocate; for that it runs ten times faster, since counting references
    to a dozen tables at every call costs far more than what our functions do.
    """
    return _compile(function)


def inner(function: Function) -> Function:
    """The same for what only compiled code calls: no door for Python, half the time to compile."""
    return _compile(function, no_cpython_wrapper=True)


def part(function: Function) -> Function:
    """For what one compiled function calls in one place: a part of it with a name of its own.

    It is compiled within its caller. Apart, it would be optimised twice: alone, and in there.
    """
    return _compile(function, inline="always")


def _compile(function: Function, **options: Any) -> Function:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder())
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
        config.CACHE_DIR = before
