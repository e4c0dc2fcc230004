"""Replay: what is drawn, exact repetition, checkpoints, memory, and kill -9 while it is written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.platform.rl.replay import LEAST_RESERVE, Layout, Position, Replay

LAYOUT = Layout(observation=2, action=1, integers={"application": "int16"})


def episode(first: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, actions and rewards whose values name the transition."""
    numbers = np.arange(first, first + steps, dtype=np.float32)
    return np.stack([numbers, -numbers], 1), 10 * numbers[:, None], 100 * numbers


def append(replay: Replay, first: int, steps: int, truncated: bool, application: int = 0) -> None:
    last = np.array([first + steps, -first - steps], np.float32) if truncated else None
    replay.append(*episode(first, steps), last, application=application)


def filled(folder: Path, capacity: int = 1000) -> Replay:
    replay = Replay.create(folder / "replay", LAYOUT, capacity)
    append(replay, 0, 5, truncated=True, application=3)
    append(replay, 1000, 3, truncated=False, application=-7)
    return replay


def test_every_transition_is_drawn_alike_with_its_next_observation(tmp_path: Path) -> None:
    found = filled(tmp_path).draw((200, 40), seed=1)
    numbers = found.observations[..., 0].ravel()
    names, counts = np.unique(numbers, return_counts=True)
    assert names.tolist() == [0, 1, 2, 3, 4, 1000, 1001, 1002]  # never a final observation
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)
    assert np.array_equal(found.actions[..., 0].ravel(), 10 * numbers)
    assert np.array_equal(found.rewards.ravel(), 100 * numbers)
    assert np.array_equal(found.observations[..., 1].ravel(), -numbers)
    assert np.array_equal(found.terminated.ravel(), numbers == 1002)
    going = found.terminated.ravel() == 0
    assert np.array_equal(found.next_observations[..., 0].ravel()[going], numbers[going] + 1)
    expected = np.where(numbers >= 1000, -7, 3)
    assert np.array_equal(found.integers["application"].ravel(), expected)


def test_draws_repeat_exactly(tmp_path: Path) -> None:
    replay = filled(tmp_path)
    one, again, other = (replay.draw((64,), seed) for seed in (5, 5, 6))
    assert np.array_equal(one.observations, again.observations)
    assert not np.array_equal(one.observations, other.observations)


def test_ring_keeps_the_latest_rows(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path / "replay", LAYOUT, 50)
    assert replay.slots == 50 + LEAST_RESERVE
    for first in range(0, 100_000, 10):  # past the end of the files
        append(replay, first, 10, truncated=True)
    assert replay.length == 50
    drawn = replay.draw((2000,), seed=1)
    numbers = drawn.observations[:, 0]
    # 50 rows are four and a half episodes of eleven rows.
    assert np.unique(numbers).tolist() == list(range(99_955 - 1, 100_000))[-45:]
    assert np.array_equal(drawn.next_observations[:, 0], numbers + 1)


def test_restored_replay_ignores_later_rows(tmp_path: Path) -> None:
    replay = filled(tmp_path)
    position = replay.save()
    before = replay.draw((64,), seed=9)
    append(replay, 5000, 40, truncated=True)
    restored = Replay.restore(replay.folder, LAYOUT, 1000, Position(*position))
    assert restored is not None
    assert (restored.rows, restored.length) == (9, 9)
    assert np.array_equal(restored.draw((64,), seed=9).observations, before.observations)
    append(restored, 7000, 2, truncated=False)
    assert set(restored.draw((500,), seed=1).observations[:, 0]) == {
        *(0, 1, 2, 3, 4, 1000, 1001, 1002, 7000, 7001)
    }


def test_copy_has_the_rows_in_use_alone(tmp_path: Path) -> None:
    replay = filled(tmp_path)
    replay.write_copy(tmp_path / "copy")
    assert sum(file.stat().st_size for file in (tmp_path / "copy").iterdir()) < 2000
    Replay.read_copy(tmp_path / "copy", tmp_path / "again", LAYOUT, 1000)
    again = Replay.restore(tmp_path / "again", LAYOUT, 1000, replay.position)
    assert again is not None
    assert again.slots == replay.slots
    one, other = replay.draw((64,), seed=3), again.draw((64,), seed=3)
    for mine, theirs in zip(one[:5], other[:5], strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(one.integers["application"], other.integers["application"])
    with pytest.raises(InputError, match="capacity"):
        Replay.read_copy(tmp_path / "copy", tmp_path / "third", LAYOUT, 10)


def test_rows_of_a_checkpoint_are_not_replaced(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path / "replay", LAYOUT, 100)
    for first in range(0, 200, 20):
        append(replay, first, 20, truncated=False)
    old = replay.save()
    wanted = replay.draw((64,), seed=2).observations
    for first in range(0, LEAST_RESERVE - 20, 20):
        append(replay, first, 20, truncated=False)
    with pytest.raises(InputError, match=r"checkpoints\.every"):
        append(replay, 0, 20, truncated=False)
    restored = Replay.restore(replay.folder, LAYOUT, 100, old)
    assert restored is not None
    assert np.array_equal(restored.draw((64,), seed=2).observations, wanted)
    replay.save()
    for first in range(0, 200, 20):
        append(replay, first, 20, truncated=False)
    with pytest.raises(InputError, match="expected a later checkpoint"):
        Replay.restore(replay.folder, LAYOUT, 100, old)


def test_refusals(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path / "replay", LAYOUT, 10)
    with pytest.raises(InputError, match="empty"):
        replay.draw((64,), seed=1)
    with pytest.raises(InputError, match="11 rows"):
        append(replay, 0, 10, truncated=True)
    append(replay, 0, 9, truncated=True)
    position = replay.save()
    other = Position("another", 10)
    assert Replay.restore(replay.folder, LAYOUT, 10, other) is None
    assert Replay.restore(tmp_path / "nowhere", LAYOUT, 10, position) is None
    with pytest.raises(InputError, match="capacity 10; expected 20"):
        Replay.restore(replay.folder, LAYOUT, 20, position)
    with pytest.raises(InputError, match="layout"):
        Replay.restore(replay.folder, Layout(3, 1), 10, position)
    with pytest.raises(InputError, match="has 10 rows"):
        Replay.restore(replay.folder, LAYOUT, 10, Position(position.replay, 11))
    (replay.folder / "replay.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        Replay.restore(replay.folder, LAYOUT, 10, position)


WRITER = """
import sys
from pathlib import Path
from tests.platform.rl.test_replay import LAYOUT, append
from loadmaster.platform.rl.replay import Replay

replay, first = Replay.create(Path("replay"), LAYOUT, 5000), 0
while True:
    append(replay, first, 300, truncated=True)
    first += 300
    if first % 3000 == 0:
        name, rows = replay.save()
        Path("next").write_text(f"{name} {rows} {first}")
        Path("next").rename("position")
"""


def test_killed_writer_loses_no_row_of_a_checkpoint(here: Path) -> None:
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and writer.poll() is None:
            # Later than the files are long: the ring has wrapped.
            if Path("position").exists() and int(Path("position").read_text().split()[1]) > 80_000:
                break
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
    finally:
        writer.kill()
        writer.wait()
    name, rows, numbers = Path("position").read_text().split()
    assert int(rows) > 80_000
    replay = Replay.restore(Path("replay"), LAYOUT, 5000, Position(name, int(rows)))
    assert replay is not None
    drawn = replay.draw((20_000,), seed=1)
    found = drawn.observations[:, 0]
    assert found.max() == int(numbers) - 1
    assert found.min() == int(numbers) - 4983  # 5,000 rows have 17 final observations
    assert np.array_equal(drawn.next_observations[:, 0], found + 1)
    assert np.array_equal(drawn.rewards, 100 * found)
    assert np.array_equal(drawn.actions[:, 0], 10 * found)


def test_a_million_transitions_take_150_mb(tmp_path: Path) -> None:
    """On disk what is written becomes resident: the files' size is the bound."""
    layout = Layout(observation=11, action=3, integers={"application": "int16"})
    replay = Replay.create(tmp_path / "replay", layout, 1_010_000)
    size = sum(file.stat().st_size for file in replay.folder.iterdir())
    assert size < 150e6
