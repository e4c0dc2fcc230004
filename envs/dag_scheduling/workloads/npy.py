"""Reader for untrusted npy files: arrays and plain containers, without code execution.

`numpy.load(allow_pickle=True)` runs whatever a file names. Published profiles are pickles inside
npy files, so they need an unpickler; this one resolves no class or function for the file. The few
names that array pickles use map to stand-ins that keep the numbers.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError

NUMBERS = "biuf"  # kinds of dtypes
_READ_HEADER = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def read_npy(path: Path) -> Any:
    """Return the array in the file; for an array of objects, its single object."""
    try:
        with path.open("rb") as file:
            read_header = _READ_HEADER[npy_format.read_magic(file)]
            shape, fortran_order, dtype = read_header(file)
            payload = file.read()
    except OSError as fault:
        raise InputError(
            f"{path}: cannot be read ({fault.strerror}); expected an npy file"
        ) from None
    except Exception:  # numpy raises any of several for a damaged header
        raise InputError(f"{path}: no valid npy header; expected an npy file") from None
    if dtype.hasobject:
        return _unpickle(path, payload)
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in NUMBERS or min(shape, default=0) < 0 or len(payload) != size:
        raise InputError(
            f"{path}: {len(payload)} bytes of type {dtype.str!r}; expected {size} of numbers"
        )
    return np.frombuffer(payload, dtype).reshape(shape, order="F" if fortran_order else "C")


def _number_type(code: Any) -> np.dtype[Any] | None:
    """Return the dtype of a plain number type given as text; None for anything else."""
    if not isinstance(code, str) or code.lstrip("<>=|")[:1] not in tuple(NUMBERS):
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
