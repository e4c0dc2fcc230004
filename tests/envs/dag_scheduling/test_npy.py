"""The npy reader: round trips, refusal of code and of damaged files."""

import contextlib
import io
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.envs.dag_scheduling.workloads.npy import PlainArray, read_npy
from loadmaster.envs.errors import InputError

OBJECT_HEADER = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }"


def npy_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(value), allow_pickle=True)
    return buffer.getvalue()


def object_file(payload: bytes, header: bytes = OBJECT_HEADER) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(3),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(4, dtype=">i4"),
        np.zeros((0, 0)),
        np.array([True, False]),
    ],
)
def test_numeric_arrays_round_trip(tmp_path: Path, matrix: Any) -> None:
    np.save(tmp_path / "a.npy", matrix)
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), matrix, strict=True)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_containers_round_trip(tmp_path: Path, protocol: int) -> None:
    value = {0: {"wave": {5: [1, 2.5], 10: []}, "text": ("a", None, True)}}
    array = np.empty((), object)
    array[()] = value
    (tmp_path / "a.npy").write_bytes(object_file(pickle.dumps(array, protocol)))
    assert read_npy(tmp_path / "a.npy") == value


def test_nested_arrays_and_scalars_become_plain(tmp_path: Path) -> None:
    value = {"list": np.array([3, 4], "i4"), "one": np.float64(2.5), "far": np.array([7], ">i8")}
    (tmp_path / "a.npy").write_bytes(npy_bytes(value))
    read = read_npy(tmp_path / "a.npy")
    assert isinstance(read["list"], PlainArray)
    assert np.asarray(read["list"].items).tolist() == [3, 4]
    assert np.asarray(read["far"].items).tolist() == [7]
    assert read["one"] == 2.5


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (os.system, ["touch ran"], "posix.system"),
        (eval, ["open('ran', 'w')"], "builtins.eval"),
        (subprocess.Popen, [["touch", "ran"]], "subprocess.Popen"),
        (np.fromfile, ["ran"], "fromfile"),
        (getattr, ["ran", "upper"], "builtins.getattr"),
    ],
)
def test_pickle_with_a_call_is_refused_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, arguments: Any, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call, path = Calls(function, *arguments), tmp_path / "evil.npy"
    for content in (npy_bytes({0: [call]}), object_file(pickle.dumps(call))):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"\A{path}.*{named}.*\Z"):
            read_npy(path)
        assert not Path("ran").exists()


GOOD_MATRIX, GOOD_OBJECT = npy_bytes(np.eye(3)), npy_bytes({0: [1, 2, 3]})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"PK\x03\x04 something else",
        b"\x93NUMPY\x09\x00" + GOOD_MATRIX[8:],
        GOOD_MATRIX[:20],
        GOOD_MATRIX[:-1],
        GOOD_MATRIX + b"\x00",
        GOOD_OBJECT[:-3],
        object_file(b""),
        object_file(pickle.dumps([1, 2])),
        object_file(b"", b"{'descr': '|O', 'shape': ()}"),
        object_file(b"", b"[1, 2]"),
        object_file(b"", b"__import__('os').system('true')"),
        object_file(b"", b"{'descr': '|O', 'fortran_order': False, 'shape': (-1,), }"),
        object_file(b"", b"(" * 5000),
        object_file(b"abcd", b"{'descr': '<U1', 'fortran_order': False, 'shape': (1,), }"),
        object_file(b"abcd", b"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }"),
        object_file(b"abcd", b"{'descr': '<i7', 'fortran_order': False, 'shape': (1,), }"),
        object_file(b"abcd", b"{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999,), }"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"\A.*damaged\.npy.*\Z"):
        read_npy(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.npy", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_npy(path)


# Without the two opcodes that store under an index: CPython allocates up to a huge index.
BYTES = st.integers(0, 255).filter(lambda byte: byte not in b"pr")


@pytest.mark.slow
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), good=st.sampled_from([GOOD_MATRIX, GOOD_OBJECT]))
def test_random_damage_gives_a_value_or_an_input_error(
    tmp_path: Path, data: st.DataObject, good: bytes
) -> None:
    content = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(BYTES)
    path = tmp_path / "damaged.npy"
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):  # any other exception fails the test
        read_npy(path)
