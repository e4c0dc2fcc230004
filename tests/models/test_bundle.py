"""Bundles: what was saved is loaded bit for bit, and everything else is refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.envs.errors import InputError
from loadmaster.models import registry as networks
from loadmaster.models.bundle import load_bundle, save_bundle
from loadmaster.models.manifest import read_manifest
from tests.bundles import make_bundle

FILES = {"manifest.json", "weights.safetensors", "README.md"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good bundle. Nobody writes to it."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "good", environment={"executors": 12})


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "manifest.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def put_weights(folder: Path, content: bytes) -> None:
    """Other weights, with a manifest that agrees to them."""
    (folder / "weights.safetensors").write_bytes(content)
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit(folder, lambda record: record.update(weights=facts))


def refused(folder: Path) -> str:
    """Why; in one line of reasonable length."""
    with pytest.raises(InputError) as caught:
        load_bundle(folder)
    reason = str(caught.value)
    assert "\n" not in reason
    assert len(reason) < 700
    assert reason.isprintable()
    return reason


# ------------------------------------------------------------------------------- what is saved


def test_a_round_trip_changes_no_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = networks.find_network("decima").build({"width": 5, "graph": False})
    extreme = torch.tensor([1e-45, -0.0, 3.4e38])  # subnormal, minus zero, nearly the largest
    network.state_dict()["score_stage.0.bias"][:3] = extreme
    folder = tmp_path / "deep" / "down" / "mine"
    trained = {"environment": {"executors": 9}, "seed": 1, "date": "2026-01-02"}
    save_bundle(
        folder,
        name="mine",
        system="decima",
        network={"width": 5, "graph": False},
        weights=network.state_dict(),
        trained=trained,
        results={"validation": 1 / 3},
    )
    loaded = load_bundle(folder)
    assert (loaded.name, loaded.system) == ("mine", "decima")
    assert loaded.network == {"width": 5, "graph": False}
    assert loaded.trained == trained
    assert loaded.results == {"validation": 1 / 3}
    for state in (loaded.weights, loaded.build().state_dict()):
        assert state.keys() == network.state_dict().keys()
        for name, tensor in network.state_dict().items():
            assert state[name].numpy().tobytes() == tensor.numpy().tobytes()
    assert {file.name for file in folder.iterdir()} == FILES
    assert {entry.name for entry in folder.parent.iterdir()} == {"mine"}


def test_figures_that_json_does_not_know_are_written_as_it_can(tmp_path: Path) -> None:
    import numpy as np

    weights = networks.find_network("decima").build({}).state_dict()
    save_bundle(
        tmp_path / "b",
        name="b",
        system="decima",
        network={},
        weights=weights,
        trained={"environment": {"data": Path("/traces")}, "seeds": (1, 2)},
        results={"validation": float("nan"), "mean": np.float32(0.5), 3: torch.tensor(2)},
    )
    loaded = load_bundle(tmp_path / "b")
    assert loaded.trained == {"environment": {"data": "/traces"}, "seeds": [1, 2]}
    assert loaded.results == {"validation": None, "mean": 0.5, "3": 2}


def test_the_manifest_is_read_without_the_weights(whole: Path) -> None:
    manifest, bundle = read_manifest(whole), load_bundle(whole)
    assert manifest.name == bundle.name == "good"
    assert manifest.sha256 == bundle.sha256
    assert manifest.size == (whole / "weights.safetensors").stat().st_size


def test_an_existing_folder_is_never_written_over(copy: Path, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in copy.iterdir()}
    with pytest.raises(InputError, match="exists already"):
        make_bundle(copy)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "notes.txt").touch()
    for place in ("precious", "precious/notes.txt"):
        with pytest.raises(InputError, match="exists already"):
            make_bundle(tmp_path / place)
    assert {file: file.read_bytes() for file in copy.iterdir()} == before


def replace(folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    save_bundle(
        folder,
        name="newer",
        system="decima",
        network={},
        weights=weights or networks.find_network("decima").build({}).state_dict(),
        trained={},
        replace=True,
    )


def test_a_bundle_is_replaced_if_told(copy: Path, tmp_path: Path) -> None:
    for _ in range(2):
        replace(copy)
        assert load_bundle(copy).name == "newer"
    replace(tmp_path / "first")
    assert {entry.name for entry in tmp_path.iterdir()} == {"copy", "first"}
    (tmp_path / "precious").mkdir()
    with pytest.raises(InputError, match="only one of those is replaced"):
        replace(tmp_path / "precious")


def test_a_fault_while_saving_leaves_the_old_one(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=r"cannot write the bundle .*: No space left"):
        replace(copy)
    with pytest.raises(InputError, match="No space left"):
        replace(tmp_path / "a" / "b" / "c")
    assert load_bundle(copy).name == "good"
    assert {entry.name for entry in tmp_path.iterdir()} == {"copy"}


def test_the_old_one_comes_back_if_the_new_one_cannot_take_its_name(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(InputError, match="Input/output error"):
        replace(copy)
    assert load_bundle(copy).name == "good"
    assert {entry.name for entry in tmp_path.iterdir()} == {"copy"}


@pytest.mark.parametrize("name", ["", "a/b", "-x", ".x", " x", "a\nb", "\x1b[31m", "x" * 101])
def test_odd_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot name a bundle"):
        save_bundle(tmp_path / "b", name=name, system="decima", network={}, weights={}, trained={})
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    good = networks.find_network("decima").build({}).state_dict()
    first = next(iter(good))
    spoilt = {**good, first: torch.full_like(good[first], torch.nan)}
    for weights, message in (
        (spoilt, "not finite"),
        ({k: v for k, v in good.items() if k != first}, "lacks"),
        ({**good, first: good[first].double()}, "float64; expected"),
    ):
        with pytest.raises(InputError, match=message):
            replace(tmp_path / "b", weights)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------ what is refused

EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another program's": (lambda r: r.pop("kind"), "describes no loadmaster policy"),
    "newer": (
        lambda r: r.update(format=2, loadmaster="7.1.0"),
        "was written by loadmaster 7.1.0 in bundle format 2; this is loadmaster",
    ),
    "newer, and hostile": (lambda r: r.update(format=9, loadmaster="\x1b[2J" * 99), "upgrade it"),
    "no format": (lambda r: r.pop("format"), "expected a format number"),
    "format as text": (lambda r: r.update(format="1"), "expected a format number"),
    "format true": (lambda r: r.update(format=True), "expected a format number"),
    "no version": (lambda r: r.pop("loadmaster"), "expected a format number"),
    "no name": (lambda r: r.pop("name"), "expected text under 'name'"),
    "name with a colour": (lambda r: r.update(name="\x1b[31mred"), "cannot name a bundle"),
    "no network": (lambda r: r.pop("network"), "expected a mapping under 'network'"),
    "trained a list": (lambda r: r.update(trained=[]), "expected a mapping under 'trained'"),
    "no digest": (lambda r: r["weights"].pop("sha256"), "expected the sha256"),
    "size as text": (lambda r: r["weights"].update(bytes="9"), "expected the sha256"),
    "another digest": (lambda r: r["weights"].update(sha256="0" * 64), "is damaged; expected the"),
    "unknown system": (lambda r: r.update(system="decimo"), "did you mean 'decima'"),
    "hostile system": (lambda r: r.update(system="\x1b[31m"), "unknown system"),
    "unknown setting": (lambda r: r["network"].update(widht=8), "did you mean 'width'"),
    "another network": (
        lambda r: r["network"].update(width=9),
        "is (8, 16) float32; expected (9, 16) float32",
    ),
    "fewer parts": (lambda r: r["network"].update(limits=False), "has the surplus 'score_limit"),
    "giant network": (lambda r: r["network"].update(width=10**7), "expected ("),
    "impossible network": (lambda r: r["network"].update(width=10**18), "no possible network"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_manifest_that_is_refused(name: str, copy: Path) -> None:
    change, expected = EDITS[name]
    edit(copy, change)
    assert expected in refused(copy)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", "\x00\xff", '{"kind": "loadmaster-policy", "format": 1e999}',
     '{"kind": NaN}', "[" * 100_000, '{"format": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_a_manifest_that_is_none(text: str, copy: Path) -> None:
    (copy / "manifest.json").write_bytes(text.encode("latin-1"))
    assert "manifest.json" in refused(copy)


def test_places_that_are_no_bundle(copy: Path, tmp_path: Path) -> None:
    assert "does not exist; expected the folder" in refused(tmp_path / "nowhere")
    assert "is a file, not a folder" in refused(copy / "README.md")
    assert "has no manifest.json" in refused(tmp_path)
    run = tmp_path / "run"
    make_bundle(run / "best")
    (run / "manifest.json").write_text('{"system": "decima"}')
    assert f"this run has {run}/best" in refused(run)


def test_weights_that_are_damaged(copy: Path) -> None:
    file = copy / "weights.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    assert f"has {len(content) - 100:,} bytes; expected the {len(content):,}" in refused(copy)
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "is damaged; expected the sha256" in refused(copy)
    file.unlink()
    assert "has no weights.safetensors" in refused(copy)
    file.mkdir()
    assert "is no plain file" in refused(copy)


def test_a_pipe_does_not_block(copy: Path) -> None:
    for name in ("weights.safetensors", "manifest.json"):
        (copy / name).unlink()
        os.mkfifo(copy / name)
        assert "is no plain file" in refused(copy)


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
def test_a_file_without_end_is_not_read(name: str, copy: Path) -> None:
    os.truncate(copy / name, 1 << 40)  # sparse: it takes no room
    assert "has 1,099,511,627,776 bytes; expected at most" in refused(copy)


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = safetensors.torch.load_file(folder / "weights.safetensors")
    change(weights)
    put_weights(folder, safetensors.torch.save(weights))


def test_weights_that_do_not_fit(copy: Path, whole: Path) -> None:
    name = "score_stage.0.bias"
    for change, expected in (
        (lambda w: w.pop(name), f"lacks '{name}'"),
        (lambda w: w.update(alien=torch.zeros(1)), "has the surplus 'alien'"),
        (lambda w: w.update({name: torch.zeros(3)}), f"'{name}' is (3,) float32; expected (32,)"),
        (lambda w: w.update({name: w[name].half()}), f"'{name}' is (32,) float16; expected (32,)"),
        (lambda w: w[name].fill_(torch.inf), f"'{name}' has weights that are not finite"),
        (lambda w: w[name][3:4].fill_(torch.nan), f"'{name}' has weights that are not finite"),
    ):
        shutil.copytree(whole, copy, dirs_exist_ok=True)
        changed(copy, change)
        assert expected in refused(copy)


def test_weights_that_are_no_safetensors(copy: Path) -> None:
    import pickle

    for content in (b"", b"\x00" * 8, b"\xff" * 64, pickle.dumps({"weights": [1.0]})):
        put_weights(copy, content)
        assert "is malformed; expected safetensors" in refused(copy)


def test_loading_runs_no_pickle(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was opened")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    assert load_bundle(copy).name == "good"


@pytest.fixture(scope="module")
def scratch(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(whole, tmp_path_factory.mktemp("flips") / "b"))


FLIPS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FLIPS
@given(data=st.data(), file=st.sampled_from(["manifest.json", "weights.safetensors"]))
def test_flipped_bytes_are_refused_or_harmless(
    data: st.DataObject, file: str, whole: Path, scratch: Path
) -> None:
    content = bytearray((whole / file).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    for name in FILES:
        shutil.copy(whole / name, scratch / name)
    (scratch / file).write_bytes(content)
    try:
        loaded = load_bundle(scratch)
    except InputError:
        return
    assert content == (whole / file).read_bytes() or file == "manifest.json"
    good = load_bundle(whole).build().state_dict()
    for name, tensor in loaded.build().state_dict().items():
        assert torch.equal(tensor, good[name])


@FLIPS
@given(data=st.data())
def test_flipped_bytes_whose_digest_was_mended(
    data: st.DataObject, whole: Path, scratch: Path
) -> None:
    """What a forger can do: the result is a policy of the same shape, or none."""
    content = bytearray((whole / "weights.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    end = data.draw(st.sampled_from([16, header, len(content)]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    shutil.copy(whole / "manifest.json", scratch / "manifest.json")
    put_weights(scratch, bytes(content))
    try:
        loaded = load_bundle(scratch)
    except InputError:
        return
    for tensor in loaded.build().state_dict().values():
        assert torch.isfinite(tensor).all()


# ------------------------------------------------------------------------------- other families


def test_another_package_adds_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(values: Any) -> torch.nn.Module:
        return torch.nn.Linear(int(values["inputs"]), 1)

    family = networks.NetworkSpec(build, lambda manifest: "nothing in particular")

    class Added:
        name, value = "linear", "elsewhere:FAMILY"

        def load(self) -> Any:
            return family

    broken = EntryPoint("broken", "no_such_package:FAMILY", networks.GROUP)
    wrong = EntryPoint("wrong", "json:dumps", networks.GROUP)
    monkeypatch.setattr(networks, "entry_points", lambda group: [Added(), broken, wrong])
    folder = tmp_path / "b"
    weights = torch.nn.Linear(3, 1).state_dict()
    save_bundle(
        folder, name="b", system="linear", network={"inputs": 3}, weights=weights, trained={}
    )
    assert torch.equal(load_bundle(folder).build().state_dict()["weight"], weights["weight"])
    assert "nothing in particular" in (folder / "README.md").read_text()
    edit(folder, lambda record: record.update(system="broken"))
    assert "no_such_package" in refused(folder)
    edit(folder, lambda record: record.update(system="wrong"))
    assert "json:dumps is no Family" in refused(folder)


# -------------------------------------------------------------------------------- the model card


def test_the_card_tells_what_the_manifest_knows(tmp_path: Path) -> None:
    environment = {"arrivals": "poisson", "interarrival_s": 15.0}
    card = (make_bundle(tmp_path / "stream", environment=environment) / "README.md").read_text()
    for told in (
        "# stream",
        "tpch-like, 201 jobs, one every 15 s on average, 50 executors, objective jct",
        "| `interarrival_s` | 15 |",
        "loadmaster train decima --set training.iterations=3",
        "- seed: 7",
        "- decisions: 1234",
        "- machine cores: 2",
        "- validation: 91.25",
        "## Limits of use",
        "loadmaster replay FOLDER",
    ):
        assert told in card, told


def test_the_card_of_a_policy_with_evaluations(tmp_path: Path) -> None:
    entry = {
        "setting": "tpch-like, 20 jobs at once | <b>", "metric": "jct, s", "mean": 88.04,
        "mean_ci95": [80.0, 96.12], "best_baseline": "weighted-fair", "baseline": 112.7,
        "difference_percent": -21.84, "difference_percent_ci95": [-25.0, -18.04],
        "seeds": "0 to 19",
    }  # fmt: skip
    save_bundle(
        tmp_path / "b",
        name="b",
        system="decima",
        network={},
        weights=networks.find_network("decima").build({}).state_dict(),
        trained={"notes": ["Only for a Monday."]},
        results={"evaluations": [entry]},
    )
    card = (tmp_path / "b" / "README.md").read_text()
    assert (
        "| tpch-like, 20 jobs at once \\| &lt;b> | jct, s | 88.0 [80.0, 96.1] | weighted-fair "
        "| 112.7 | -21.8% [-25.0, -18.0] | 0 to 19 |"
    ) in card
    assert "- Only for a Monday." in card
    assert "None were kept" not in card
