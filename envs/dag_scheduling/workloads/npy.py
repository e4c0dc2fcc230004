"""Reader for untrusted npy files: arrays and plain containers, without code execution.

`numpy.load(allow_pickle=True)` runs whatever a file names. Published profiles are pickles inside
npy files, so they need an unpickler; this one resolves no class or function for the file. The few
names that array pickles use map to stand-ins that keep the numbers.
"""

from __future__ import annotations

import ast
import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

_MAGIC = b"\x93NUMPY"
_HEADER_MAX = 10_000  # numpy's limit for untrusted files


def read_npy(path: Path) -> Any:
    """Return the array in the file; for an array of objects, its single object."""
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise InputError(
            f"{path}: cannot be read ({fault.strerror}); expected an npy file"
        ) from None
    dtype, fortran_order, shape, payload = _split(path, content)
    if dtype == "|O":
        return _unpickle(path, payload)
    kind = _number_type(dtype)
    if kind is None:
        raise InputError(f"{path}: holds elements of type {dtype!r}; expected numbers or objects")
    size = math.prod(shape) * kind.itemsize
    if len(payload) != size:
        raise InputError(f"{path}: {len(payload)} bytes of numbers; expected {size} for {shape}")
    return np.frombuffer(payload, kind).reshape(shape, order="F" if fortran_order else "C")


def _split(path: Path, content: bytes) -> tuple[Any, bool, tuple[int, ...], bytes]:
    """Split into element type, order and shape from the header, and the data after it."""
    major = content[6] if len(content) > 6 else 0
    width = 2 if major == 1 else 4
    start = 8 + width
    if not content.startswith(_MAGIC) or major not in (1, 2, 3) or len(content) < start:
        raise InputError(f"{path}: not an npy file; expected one of version 1, 2 or 3")
    end = start + int.from_bytes(content[8:start], "little")
    try:
        if end - start > _HEADER_MAX or len(content) < end:
            raise ValueError
        header = ast.literal_eval(content[start:end].decode("latin1").strip())
        dtype, shape = header["descr"], header["shape"]
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError
        return dtype, bool(header["fortran_order"]), tuple(shape), content[end:]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise InputError(f"{path}: its npy header is truncated or malformed") from None


def _number_type(code: Any) -> np.dtype[Any] | None:
    """Return the dtype of a plain number type given as text; None for anything else."""
    if not isinstance(code, str) or code.lstrip("<>=|")[:1] not in tuple("biuf"):
        return None
    try:
        return np.dtype(code)
    except TypeError:
        return None


class PlainArray:
    """An array as a pickle described it: its numbers, or the list of its objects."""

    def __init__(self) -> None:
        self.items: NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran_order, data = state
        if isinstance(data, list):
            self.items = data
        else:
            order = "F" if fortran_order else "C"
            self.items = dtype.numbers(data).reshape(shape, order=order)


class _PlainType:
    """An element type as a pickle described it."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._byte_order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._byte_order = state[1]

    def numbers(self, data: bytes | str) -> NDArray[Any]:
        kind = _number_type(self._code)
        if kind is None:
            raise pickle.UnpicklingError(f"elements of type {self._code!r}")
        raw = data.encode("latin1") if isinstance(data, str) else data  # Python 2 wrote str
        return np.frombuffer(raw, np.dtype(self._byte_order + kind.str[1:]))


class _RefusedError(Exception):
    """The file names something that arrays do not need."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Bound methods: a pickle can call them but cannot set attributes on them.
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy.core.multiarray", "_reconstruct":
                return self._array
            case "numpy.core.multiarray", "scalar":
                return self._scalar
            case "numpy", "dtype":
                return self._type
            case "numpy", "ndarray":
                return "ndarray"  # an argument of _reconstruct
            case "_codecs", "encode":
                return self._encode
        raise _RefusedError(f"{module}.{name}")

    def _array(self, *_: Any) -> PlainArray:
        return PlainArray()

    def _type(self, code: str, *_: Any) -> _PlainType:
        return _PlainType(code)

    def _scalar(self, dtype: _PlainType, data: bytes | str) -> Any:
        return dtype.numbers(data)[0].item()

    def _encode(self, text: str, *_: Any) -> bytes:
        return text.encode("latin1")  # how Python 3 writes bytes for Python 2


def _unpickle(path: Path, payload: bytes) -> Any:
    try:
        array = _PlainUnpickler(io.BytesIO(payload), encoding="latin1").load()
    except _RefusedError as refused:
        raise InputError(
            f"{path}: its pickle names {refused}; expected only arrays and plain containers"
        ) from None
    except Exception:  # a damaged pickle can raise any exception
        raise InputError(f"{path}: its pickle is truncated or malformed") from None
    if not isinstance(array, PlainArray) or len(array.items) != 1:
        raise InputError(f"{path}: expected an array that holds one object")
    return array.items[0]
