"""Files of tuned parameters: read, merged, and the nearest entry."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from loadmaster.envs.calibration import TunedEntry, merge_entries, nearest_entry, read_entries
from loadmaster.envs.errors import InputError
from loadmaster.envs.registry import environments


@dataclass(frozen=True)
class Entry(TunedEntry):
    load: float
    gain: float

    @property
    def setting(self) -> tuple[str, float]:
        return self.baseline, round(self.load, 1)


ENTRIES = [Entry("a", 0.2, 1.0), Entry("a", 0.8, 2.0), Entry("b", 0.5, 3.0)]


def test_merge_replaces_the_entry_of_the_same_setting(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(merge_entries(path, ENTRIES[::-1]))
    assert list(read_entries(path, Entry)) == ENTRIES, "sorted by setting"
    path.write_text(merge_entries(path, [Entry("a", 0.84, 9.0)]))
    assert [entry.gain for entry in read_entries(path, Entry)] == [1.0, 9.0, 3.0]
    assert list(json.loads(path.read_text())[0]) == list(asdict(ENTRIES[0]))
    assert merge_entries(tmp_path / "none.json", []) == "[]\n"


@pytest.mark.parametrize(("load", "gain"), [(0.1, 1.0), (0.49, 1.0), (0.5, 1.0), (0.6, 2.0)])
def test_nearest_entry_is_of_the_same_baseline(load: float, gain: float) -> None:
    near = nearest_entry(ENTRIES, "a", lambda entry: round(abs(entry.load - load), 9))
    assert near is not None
    assert near.gain == gain
    assert nearest_entry(ENTRIES, "c", lambda entry: 0) is None


@pytest.mark.parametrize(
    "content", ["[", "3", "{}x", '{"a": 1}', "[3]", '[{"baseline": "a"}]', "[null]"]
)
def test_malformed_file_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(content)
    with pytest.raises(InputError, match="is malformed") as found:
        read_entries(path, Entry)
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_entries(tmp_path / "none.json", Entry)


def test_every_environment_can_be_tuned() -> None:
    for spec in environments().values():
        assert spec.tuning.path.is_file()
        assert {*spec.tuning.tunable} <= {*spec.baselines}
