"""Transitions in Parquet: round trips, memory of row groups, export of a replay, bad files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.models.ddpg.settings import CONTEXT_ID
from loadmaster.platform.rl.replay import Layout, Replay
from loadmaster.platform.rl.transition_files import (
    METADATA,
    ROW_GROUP,
    export_transitions,
    load_transitions,
    read_description,
    read_episodes,
    transition_writer,
)
from loadmaster.platform.rl.transitions import Description, Episode, Quantity, Transitions

DESCRIPTION = Description(
    "pods", (Quantity("cpu", "cores"), Quantity("load", "1/s")), (Quantity("replicas"),)
)


def episode(number: int, steps: int = 5, application: str = "web", end: bool = False) -> Episode:
    """An episode whose numbers name the transition; `end`: it terminated."""
    rng = np.random.default_rng([number, steps])
    return Episode(
        observations=rng.standard_normal((steps + (not end), 2)).astype(np.float32),
        actions=rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
        rewards=rng.standard_normal(steps),
        application=application,
        number=number,
        first_step=number,
    )


def written(folder: Path, *episodes: Episode, description: Description = DESCRIPTION) -> Path:
    path = folder / "log.parquet"
    with transition_writer(path, description) as writer:
        for each in episodes:
            writer.write(each)
    return path


def test_episodes_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = [episode(0), episode(1, 3, end=True), episode(2, 1), episode(0, 4, "batch")]
    path = written(tmp_path, *given)
    assert read_description(path) == DESCRIPTION
    for found, wanted in zip(read_episodes(path), given, strict=True):
        for mine, other in zip(found, wanted, strict=True):
            assert np.array_equal(mine, other) if isinstance(other, np.ndarray) else mine == other


def test_transitions_have_next_observations_ends_and_steps(tmp_path: Path) -> None:
    one, two = episode(0, 3), episode(1, 2, "batch", end=True)
    found = load_transitions(written(tmp_path, one, two), expected=DESCRIPTION)
    assert len(found) == 5
    assert found.applications == ("batch", "web")
    assert found.application.tolist() == [1, 1, 1, 0, 0]
    assert found.episodes.tolist() == [0, 0, 0, 1, 1]
    assert found.steps.tolist() == [0, 1, 2, 1, 2]
    assert found.terminated.tolist() == [False, False, False, False, True]
    assert np.array_equal(found.next_observations[:3], one.observations[1:])
    assert np.array_equal(found.next_observations[3], two.observations[1])
    assert found.starts.tolist() == [0, 3, 5]
    assert found.mean_reward == pytest.approx((one.rewards.mean() + two.rewards.mean()) / 2)
    alone = load_transitions(tmp_path / "log.parquet", application="web", one_application=True)
    assert np.array_equal(alone.rewards, one.rewards)


def test_minibatches_are_drawn_by_seed() -> None:
    log = Transitions.of_episodes([episode(0, 50)], DESCRIPTION)
    found = log.draw((4, 8), seed=3)
    assert found.observations.shape == (4, 8, 2)
    assert np.array_equal(found.rewards, log.draw((4, 8), seed=3).rewards)
    rows = log.draw_rows((4, 8), seed=3)
    assert np.array_equal(found.next_observations, log.next_observations[rows])


def test_row_groups_are_bounded_and_episodes_may_cross_them(tmp_path: Path) -> None:
    given = [episode(number, ROW_GROUP // 2 + 7) for number in range(4)]
    path = written(tmp_path, *given)
    groups = pq.ParquetFile(path).metadata
    assert groups.num_row_groups > 1
    sizes = [groups.row_group(place).num_rows for place in range(groups.num_row_groups)]
    assert max(sizes) <= ROW_GROUP
    found = list(read_episodes(path))
    for mine, other in zip(found, given, strict=True):
        assert np.array_equal(mine.rewards, other.rewards)


def test_contexts_travel_with_the_transitions(tmp_path: Path) -> None:
    contexts = np.arange(15, dtype=np.float32).reshape(5, 3)
    wide = replace(DESCRIPTION, context=3)
    path = written(tmp_path, episode(0)._replace(contexts=contexts), description=wide)
    found = load_transitions(path)
    assert found.description == wide
    assert np.array_equal(found.contexts, contexts)  # type: ignore[arg-type]
    rows = found.draw((7,), seed=0).integers[CONTEXT_ID]
    assert rows.shape == (7,)


def test_replay_is_exported_without_the_episode_that_was_cut(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path / "replay", Layout(2, 1, {CONTEXT_ID: "int32"}), capacity=14)
    given = [episode(number, 4, end=number == 1) for number in range(3)]  # 5 + 4 + 5 rows
    names, contexts = ("a", "b", "c"), np.eye(3, dtype=np.float32)
    wide = replace(DESCRIPTION, context=3)
    path = tmp_path / "log.parquet"

    for number, each in enumerate(given):
        last = None if each.terminated else each.observations[4]
        replay.append(
            each.observations[:4], each.actions, each.rewards, last, **{CONTEXT_ID: number}
        )
    found = exported(replay, path, wide, names, contexts)
    assert [each.application for each in found] == ["a", "b", "c"]
    for mine, other in zip(found, given, strict=True):
        assert np.array_equal(mine.observations, other.observations)
        assert np.allclose(mine.rewards, other.rewards)  # stored in float32
        assert mine.contexts is not None
    extra = episode(7, 2, end=True)
    replay.append(extra.observations, extra.actions, extra.rewards, None, **{CONTEXT_ID: 0})
    found = exported(replay, path, wide, names, contexts)
    assert [each.application for each in found] == ["b", "c", "a"]


def exported(
    replay: Replay,
    path: Path,
    description: Description,
    names: tuple[str, ...],
    contexts: np.ndarray,
) -> list[Episode]:
    export_transitions(replay, path, description, names, contexts)
    return list(read_episodes(path))


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    bad = episode(0)._replace(rewards=np.full(5, np.nan))
    with pytest.raises(InputError, match="not finite"):
        written(tmp_path, episode(1), bad)
    with pytest.raises(InputError, match="at least one episode"):
        written(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"observations": np.zeros((5, 3), np.float32)}, "shape"),
        ({"observations": np.zeros((7, 2), np.float32)}, "final observation"),
        ({"actions": np.full((5, 1), 1.5, np.float32)}, "1.5"),
        ({"actions": np.full((5, 1), np.inf, np.float32)}, "not finite"),
        ({"contexts": np.zeros((5, 2), np.float32)}, "contexts"),
        ({"rewards": np.zeros(0), "actions": np.zeros((0, 1), np.float32)}, "at least one"),
    ],
)
def test_bad_episode_is_refused(change: dict[str, np.ndarray], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        episode(0)._replace(**change).check(DESCRIPTION)


Change = Callable[[pa.Table], pa.Table]


def with_column(name: str, values: list[object]) -> Change:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        kind = table.schema.field(name).with_nullable(True)
        return table.set_column(place, kind, pa.array(values, kind.type))

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda table: table.drop_columns(["reward"]), "no column 'reward'"),
        (lambda table: table.replace_schema_metadata({}), "no metadata"),
        (lambda table: table.replace_schema_metadata({METADATA: b"{"}), "damaged"),
        (lambda table: table.slice(0, 0), "no rows"),
        (lambda table: table.slice(0, 2), "proper end"),
        (lambda table: table.take([0, 2, 1, 3, 4, 5]), "step 2 follows 0"),
        (lambda table: table.take([0, 1, 2, 3, 4, 5, 5]), "step 3 follows 3"),
        (lambda table: table.take([4, 5, 0, 1, 2, 3, 4, 5]), "consecutive rows"),
        (with_column("step", [0, 1, 1, 0, 1, None]), "empty places"),
        (with_column("reward", [0.0, None, None, 0.0, 0.0, None]), "empty places"),
        (with_column("reward", [0.0, float("nan"), None, 0.0, 0.0, None]), "not finite"),
        (with_column("observation", [[0.0, None]] * 6), "empty numbers"),
        (with_column("observation", [[0.0, float("inf")]] * 6), "not finite"),
        (
            lambda table: table.set_column(2, "step", pa.array([0.0] * 6)),
            "column 'step' of .* is double; expected int32",
        ),
    ],
)
def test_bad_file_is_refused_in_one_line(tmp_path: Path, change: Change, fault: str) -> None:
    path = written(tmp_path, episode(0, 2), episode(1, 2))
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(InputError, match=fault) as raised:
        load_transitions(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        (replace(DESCRIPTION, system="jobs"), "system 'pods'; expected 'jobs'"),
        (replace(DESCRIPTION, observation=DESCRIPTION.observation[:1]), "expected 1"),
        (
            replace(DESCRIPTION, observation=(Quantity("cpu", "%"), Quantity("load", "1/s"))),
            "'cpu' in 'cores'; expected 'cpu' in '%'",
        ),
        (replace(DESCRIPTION, context=2), "expected 2"),
    ],
)
def test_other_columns_than_expected_are_refused(
    tmp_path: Path, expected: Description, fault: str
) -> None:
    path = written(tmp_path, episode(0))
    with pytest.raises(InputError, match=fault):
        load_transitions(path, expected=expected)


def test_several_applications_are_refused_where_one_is_expected(tmp_path: Path) -> None:
    path = written(tmp_path, episode(0), episode(0, application="batch"))
    with pytest.raises(InputError, match="2 applications"):
        load_transitions(path, one_application=True)
    with pytest.raises(InputError, match="no transitions"):
        load_transitions(path, application="other")


def test_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_transitions(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(InputError, match="not a Parquet file"):
        load_transitions(tmp_path / "text.parquet")
