"""Runs at URLs: what is published, resumed, cut off at any write, and lost with its bucket."""

import json
import shutil
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.bundle import build_network, save_bundle
from loadmaster.models.storage import Location, StorageError
from loadmaster.platform.rl.replay import Layout, Replay
from loadmaster.platform.systems.bundle_ref import bundle_of_run, find_policy
from loadmaster.platform.systems.decima.training import DecimaTraining
from loadmaster.platform.training.history import read_histories
from loadmaster.platform.training.run_folder import RunFolder
from tests.object_store import ObjectStore, failing_location

CONFIG = build_settings(DecimaTraining, {"seed": 5, "environment": {"jobs": 4}})
MANIFEST = {"system": "decima", "metric": "jct_s"}
PARTS = ("optimiser", "deep/weights")  # files of a checkpoint


@pytest.fixture(autouse=True)
def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Local copies and cached bundles are in the test's folder."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "tmp"


@pytest.fixture(params=["s3", "memory"])
def location(request: pytest.FixtureRequest, s3: ObjectStore) -> Location:
    place = s3.bucket() if request.param == "s3" else f"memory://{uuid.uuid4()}"
    return Location.of(f"{place}/runs/one")


@cache
def bundle_files(iteration: int) -> dict[str, bytes]:
    """Files of a bundle."""
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "one"
        save_bundle(
            saved,
            name="one",
            system="decima",
            network={},
            weights=build_network("decima", {}).state_dict(),
            trained={"iterations": iteration},
        )
        return {file.name: file.read_bytes() for file in saved.iterdir()}


def train_to(run: RunFolder, iteration: int, kept: int = 2) -> None:
    """Write what the training loop writes at a validation with a checkpoint."""
    rows = [*run.rows(), {"iteration": float(iteration), "validation": 100.0 - iteration}]
    run.write_rows(rows)
    for which in ("last", "best"):
        shutil.rmtree(run.path / which, ignore_errors=True)
        (run.path / which).mkdir()
        for name, content in bundle_files(iteration).items():
            (run.path / which / name).write_bytes(content)
    for part in PARTS:
        file = run.checkpoint_of(iteration) / part
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{part} {iteration}")
    for old in run.checkpoints()[:-kept]:
        shutil.rmtree(old)


def state_of(location: Location) -> tuple[int, ...]:
    """Iterations of the parts of a published run; each part is read whole."""
    run = RunFolder.open(location)
    checkpoints = run.checkpoints()
    for each in checkpoints:
        iteration = int(each.name.removeprefix("iteration-"))
        assert [(each / part).read_text() for part in PARTS] == [f"{p} {iteration}" for p in PARTS]
    numbers = [int(each.name.removeprefix("iteration-")) for each in checkpoints]
    assert run.config(DecimaTraining) == CONFIG
    bundle = [find_policy(f"{location}/best").bundle.trained["iterations"]] if numbers else []
    return *numbers, *bundle


def test_published_run_is_resumed_elsewhere(location: Location, temporary_folders: Path) -> None:
    run = RunFolder.create(location, CONFIG, MANIFEST)
    assert run.place == location
    assert (run.path.name, state_of(location)) == ("one", ())
    for iteration in (0, 4, 8):
        train_to(run, iteration)
        run.publish()
    again = RunFolder.open(location)
    assert again.rows() == run.rows()
    assert again.manifest == run.manifest
    assert state_of(location) == (4, 8, 8)
    with again.released():
        train_to(again, 12)
    assert state_of(location) == (8, 12, 12)
    assert not again.path.exists()
    published = json.loads((location / "manifest.json").read(1 << 20) or b"")["published"]
    assert published["best"].startswith("best/iteration-000012-")
    stored = {"/".join(name.split("/")[:2]) for name in location.files() if name.count("/") > 1}
    assert stored == set(published.values())  # nothing old is left


def test_policy_and_curve_are_read_by_url(location: Location) -> None:
    run = RunFolder.create(location, CONFIG, MANIFEST)
    with pytest.raises(InputError, match="no best policy yet"):
        bundle_of_run(location)
    train_to(run, 3)
    run.publish()
    for spec in (location, location / "best", location / "last"):
        found = find_policy(str(spec))
        assert (found.manifest.trained["iterations"], found.source) == (3, str(spec))
    (history,) = read_histories([f"mine={location}"])
    assert (history.name, history.folder, history.values) == ("mine", location, [97.0])


def test_new_run_is_refused_where_something_is(location: Location, temporary_folders: Path) -> None:
    (location / "config.yaml").write(b"of a start that was killed")
    run = RunFolder.create(location, CONFIG, MANIFEST)
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(location, CONFIG, MANIFEST)
    run.discard()
    assert location.files() == {}
    assert list(temporary_folders.iterdir()) == []
    (location / "notes.txt").write(b"mine")
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(location, CONFIG, MANIFEST)
    with pytest.raises(InputError, match="is not a run"):
        RunFolder.open(location)
    assert location.files() == {"notes.txt": 4}
    assert list(temporary_folders.iterdir()) == []


@pytest.mark.parametrize(
    "published", [{"best": "../../other"}, {"../x": "best/iteration-000001"}, {"best": 3}, ["best"]]
)
def test_manifest_that_names_other_folders_is_refused(published: Any, location: Location) -> None:
    run = RunFolder.create(location, CONFIG, MANIFEST)
    record = {**run.manifest, "published": published}
    (location / "manifest.json").write(json.dumps(record).encode())
    with pytest.raises(InputError, match="damaged"):
        RunFolder.open(location)


@pytest.mark.slow
def test_run_whose_storage_fails_at_any_change_stays_whole() -> None:
    """The connection is lost after each number of changes; then the run is resumed."""
    changes, states = 0, set()
    while True:
        location, handler = failing_location()
        run = RunFolder.create(location, CONFIG, MANIFEST)
        for iteration in (0, 4):
            train_to(run, iteration)
            run.publish()
        train_to(run, 8)
        handler.left = changes
        with suppress(StorageError):
            run.publish()
        assert len(RunFolder.open(run.path).checkpoints()) == 2  # it can be resumed from there
        whole, handler.left = handler.left >= 0, 1 << 30
        states.add(state_of(location))
        again = RunFolder.open(location)
        train_to(again, 8 if again.checkpoints()[-1].name.endswith("4") else 12)
        again.publish()
        published = json.loads((location / "manifest.json").read(1 << 20) or b"")["published"]
        files = [name for name in location.files() if name.startswith(("best/", "checkpoints/"))]
        assert {"/".join(name.split("/")[:2]) for name in files} <= set(published.values())
        assert state_of(location) in ((4, 8, 8), (8, 12, 12))
        if whole:
            break
        changes += 1
    assert states == {(0, 4, 4), (4, 8, 8)}
    assert changes > 10


def test_bucket_that_is_missing_or_vanishes(s3: ObjectStore, temporary_folders: Path) -> None:
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/.*NO_SUCH_BUCKET"):
        RunFolder.create(Location.of("s3://no-such-bucket/one"), CONFIG, MANIFEST)
    assert list(temporary_folders.iterdir()) == []
    bucket = s3.bucket()
    run = RunFolder.create(Location.of(f"{bucket}/one"), CONFIG, MANIFEST)
    train_to(run, 0)
    s3.delete(bucket)
    with pytest.raises(StorageError) as raised, run.released():
        run.publish()
    assert f"{bucket}/one" in str(raised.value)
    assert f"kept in {run.path}" in str(raised.value)
    assert len(RunFolder.open(run.path).checkpoints()) == 1


def test_replay_is_published_with_its_checkpoint() -> None:
    """What was published after the checkpoint's rows does not matter to them."""
    location = Location.of(f"memory://{uuid.uuid4()}/runs/one")
    run = RunFolder.create(location, CONFIG, MANIFEST)
    replay = Replay.create(run.path / "replay", Layout(2, 1), 1000)
    ones = np.ones((20, 2), np.float32)
    positions = []
    for number in (1, 2, 3):
        replay.append(number * ones, ones[:, :1], ones[:, 0], number * ones[0])
        positions.append(replay.save())
        train_to(run, number)
        run.publish()
    fetched = RunFolder.open(location).path / "replay"
    for number, position in enumerate(positions, start=1):
        found = Replay.restore(fetched, Layout(2, 1), 1000, position)
        assert found is not None
        assert set(found.draw((500,), seed=1).observations[:, 0]) == set(range(1, number + 1))
