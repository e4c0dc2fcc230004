"""Compilation of hot loops with numba, cached on disk, and random bits for compiled code.

Numba invalidates a cached function by the age of its own source file, and so misses edits in
functions it calls from other modules. The cache folder is therefore named after a digest of all
sources with compiled code: `envs`, `models`, `platform/rl` and `platform/systems`. The location of
the sources does not count, so a job on a cluster finds what an earlier job compiled.
"""

import hashlib
import math
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba import config
from numba.core.caching import UserProvidedCacheLocator
from numba.extending import overload
from numpy.typing import NDArray

_STEP = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment, bits of the golden ratio
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)
_UNIT = 2.0**-53
_OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True,
}  # fmt: skip

Ints = NDArray[np.int64]  # a table of compiled code
Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE_ROOT = Path(__file__).resolve().parents[1]  # holds the four packages, also in a wheel


def cache_root() -> Path:
    """Return `loadmaster` in LOADMASTER_CACHE, XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("LOADMASTER_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "loadmaster"


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Return the folder of functions compiled from exactly these sources."""
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in ("envs", "models", "platform/rl", "platform/systems"):
        for source in sorted((PACKAGE_ROOT / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return cache_root() / "compiled" / digest.hexdigest()[:16]


class PackageCacheLocator(UserProvidedCacheLocator):
    """Cache location by a module's path within the packages instead of its path on disk."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        module = Path(py_file).resolve()
        if not module.is_relative_to(PACKAGE_ROOT):
            return str(super().get_suitable_cache_subpath(py_file))
        return "_".join([module.parent.name, *module.parent.relative_to(PACKAGE_ROOT).parts])


def compiled(function: Function) -> Function:
    """Compile at first call; later processes load the result from disk.

    `_nrt=False` compiles without reference counts: compiled code may not allocate, and all tables
    are arguments. It runs ten times faster, since counting references to a dozen tables costs more
    than the functions themselves.
    """
    return _compile(function)


def njit_internal(function: Function) -> Function:
    """Compile without a Python wrapper, for callers in compiled code: half the compile time."""
    return _compile(function, no_cpython_wrapper=True)


def njit_inline(function: Function) -> Function:
    """Inline into the caller, for functions called in one place; saves optimising them twice."""
    return _compile(function, inline="always")


def njit_reduction(function: Function) -> Function:
    """Let the compiler reorder floating-point sums, without which it cannot vectorise them."""
    return _compile(function, no_cpython_wrapper=True, fastmath={"reassoc", "contract"})


def njit_fused(function: Function) -> Function:
    """Let the compiler round a product and a sum once, where the processor has that operation."""
    return _compile(function, no_cpython_wrapper=True, fastmath={"contract"})


def compiled_overload(of: Callable[..., Any]) -> Callable[[Function], Function]:
    """Register a function that gets the types of the arguments of `of` and returns code or None.

    In compiled code, calls of `of` run the code that is returned for the types at hand.
    """
    # `strict` would forbid annotations.
    options = {**_OPTIONS, "no_cpython_wrapper": True}
    register: Callable[[Function], Function] = overload(of, jit_options=options, strict=False)
    return register


def _compile(function: Function, **options: Any) -> Function:
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR = str(cache_folder())
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{PackageCacheLocator.__name__}"
    try:
        fast: Function = numba.njit(cache=True, **_OPTIONS, **options)(function)
        return fast
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before


@njit_internal
def splitmix64(key: int | np.int64 | np.uint64, count: int) -> np.uint64:
    """Return 64 random bits that depend only on `key` and `count` (splitmix64's finaliser).

    Without a generator, the same jobs get the same draws under every policy, and a copied state
    needs no generator state.
    """
    x = np.uint64(key) + (np.uint64(count) + np.uint64(1)) * _STEP
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@njit_internal
def uniform(key: int | np.int64 | np.uint64, count: int) -> float:
    """A number in (0, 1) that depends on both arguments only."""
    return float((np.float64(splitmix64(key, count) >> _S11) + 0.5) * _UNIT)


@njit_internal
def normal(key: int | np.uint64, count: int) -> float:
    """A standard normal number (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(uniform(key, 2 * count)))
    return radius * math.cos(2.0 * math.pi * uniform(key, 2 * count + 1))
