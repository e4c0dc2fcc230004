"""Configurations from files: what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.training.run_folder import merged, read_config


def test_reads_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("# mine\nseed: 3\ntraining:\n  iterations: 5\n")
    assert read_config(file) == {"seed": 3, "training": {"iterations": 5}}
    file.write_text("# nothing but a comment\n")
    assert read_config(file) == {}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"seed: 3\ntraining: {iterations: 5\n", "mine.yaml:3: "),
        (b"seed: 3\n\tjobs: 4\n", "mine.yaml:2: found character"),
        (b"- 3\n- 4\n", "mine.yaml: a list; expected settings as key: value"),
        (b"just words\n", "mine.yaml: a str; expected"),
        (b"\xff\xfe\x00\x01", "mine.yaml is not text"),
        (b"seed: !!python/object/apply:os.getcwd []\n", "mine.yaml:1: could not determine"),
    ],
)
def test_faults_name_file_and_line(content: bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_config(file)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: No such file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        read_config(tmp_path)


def test_one_tree_over_another() -> None:
    below = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merged(below, {"a": {"c": {"d": 4, "f": 5}}}) == {
        "a": {"b": 1, "c": {"d": 4, "f": 5}},
        "e": 3,
    }
    assert merged(below, {"a": 7, "e": {"g": 8}}) == {"a": 7, "e": {"g": 8}}
    assert below == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}  # untouched
