"""The folder of traces, and reading of bounded CSV files with declared columns."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs import traces
from loadmaster.envs.errors import InputError
from loadmaster.envs.traces import CsvTable, read_csv, trace_path


def table(tmp_path: Path, content: str | bytes, header_optional: bool = False) -> CsvTable:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_csv(path, ("a", "b"), header_optional=header_optional)


def test_folder_of_traces_comes_from_setting_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    with pytest.raises(InputError, match="--set data=FOLDER or in LOADMASTER_DATA"):
        trace_path("tpch", None)
    with pytest.raises(InputError, match=r"\Adata: no file or folder .*nowhere"):
        trace_path("tpch", tmp_path / "nowhere")
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"\ALOADMASTER_DATA: no file or folder .*nowhere"):
        trace_path("tpch", None)
    assert trace_path("tpch", tmp_path) == tmp_path
    monkeypatch.setenv("LOADMASTER_DATA", str(tmp_path))
    assert trace_path("tpch", None) == tmp_path


def test_declared_columns_are_found_by_name(tmp_path: Path) -> None:
    read = table(tmp_path, 'b,other,a\r\n1, x,"y, z"\r\n2.5,,w')
    assert len(read) == 2
    assert read.text("a") == ["y, z", "w"]
    assert read.numbers("b").tolist() == [1, 2.5]
    assert read.lines.tolist() == [2, 3]


def test_header_may_be_optional(tmp_path: Path) -> None:
    assert table(tmp_path, "1,2\n3,4\n", header_optional=True).text("b") == ["2", "4"]
    assert table(tmp_path, "b,a\n3,4\n", header_optional=True).text("b") == ["3"]
    assert len(table(tmp_path, "", header_optional=True)) == 0
    assert len(table(tmp_path, "a,b")) == len(table(tmp_path, "a,b\n")) == 0


def test_selected_rows_keep_their_line_numbers(tmp_path: Path) -> None:
    read = table(tmp_path, "a,b\nx,1\ny,oops\nz,-3\n").select(np.array([True, False, True]))
    assert read.text("a") == ["x", "z"]
    with pytest.raises(InputError, match="line 4: b '-3'; expected a number of 0 or more"):
        read.numbers("b")
    assert read.numbers("b", least=None).tolist() == [1, -3]


def test_numbers_are_read_as_python_reads_them(tmp_path: Path) -> None:
    read = table(tmp_path, "a,b\n 1e3 ,\n1_0,2.0\n0.1,3\n")
    assert read.numbers("a").tolist() == [1000, 10, 0.1]
    assert read.numbers("b", blank=7).tolist() == [7, 2, 3]
    with pytest.raises(InputError, match="line 2: b ''"):
        read.numbers("b")
    with pytest.raises(InputError, match=r"line 4: a .* whole number"):
        read.whole_numbers("a")
    for value in ("nan", "inf", "-1", "soon"):
        with pytest.raises(InputError, match=f"t.csv, line 3: b '{value}'; expected"):
            table(tmp_path, f"a,b\nx,1\ny,{value}\n").whole_numbers("b")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,c\n1,2\n", "no column 'b'"),
        ("", "no column 'a'"),
        ("a,b\n1,2\n3\n", "line 3: 1 fields; expected 2"),
        ("a,b\n1,2,3\n", "line 2: 3 fields; expected 2"),
        ("a,b\n\n1,2\n", "line 2: 0 fields; expected 2"),
        ("a,b\n1,2\r\n\r\n", "line 3: 0 fields; expected 2"),
        (b"a,b\n1,\xe9\n", "damaged"),
        (b"\xe9,b\n", "damaged"),
    ],
)
def test_malformed_files_are_refused_in_one_line(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    with pytest.raises(InputError, match=rf"\A.*{problem}.*\Z"):
        table(tmp_path, content)


def test_damaged_archives_and_large_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv.gz"
    for content in (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-12], b"not compressed"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"t\.csv\.gz: .*damaged"):
            read_csv(path, ("a", "b"))
    monkeypatch.setattr(traces, "CSV_MAX_BYTES", 1000)
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1000))
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        read_csv(path, ("a", "b"))
