"""Bundles: bitwise round trip, atomic writes, and refusal of everything damaged or foreign."""

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.envs import registry
from loadmaster.envs.errors import InputError
from loadmaster.models.bundle import build_network, load_bundle, save_bundle
from loadmaster.models.card import model_card
from loadmaster.models.manifest import pretrained_folder, pretrained_policies, read_manifest
from tests.bundles import make_bundle

FILES = {"manifest.json", "weights.safetensors", "README.md"}
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid bundle that tests do not change."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "good", environment={"executors": 12})


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def edit(folder: Path, change: Change) -> None:
    file = folder / "manifest.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def save(folder: Path, **changes: Any) -> Path:
    """Save an untrained network; `changes` are arguments of save_bundle."""
    values = {"name": folder.name, "system": "decima", "network": {}, "trained": {}, **changes}
    if "weights" not in values:
        values["weights"] = build_network("decima", values["network"]).state_dict()
    save_bundle(folder, **values)
    return folder


def put_weights(folder: Path, content: bytes) -> None:
    """Replace the weights, with their digest in the manifest."""
    (folder / "weights.safetensors").write_bytes(content)
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit(folder, lambda record: record.update(weights=facts))


def refused(folder: Path) -> str:
    """The reason of the refusal: one printable line."""
    with pytest.raises(InputError) as caught:
        load_bundle(folder)
    reason = str(caught.value)
    assert reason.isprintable()
    assert len(reason) < 700
    return reason


def test_round_trip_is_bitwise(tmp_path: Path) -> None:
    torch.manual_seed(1)
    settings = {"width": 5, "graph": False}
    state = build_network("decima", settings).state_dict()
    # Subnormal, minus zero, nearly the largest.
    state["score_stage.0.bias"][:3] = torch.tensor([1e-45, -0.0, 3.4e38])
    folder = tmp_path / "deep" / "down" / "mine"
    trained = {"environment": {"data": Path("/traces")}, "seeds": (1, 2), "date": "2026-01-02"}
    results = {"validation": float("nan"), "mean": np.float32(0.5), 3: torch.tensor(2), "f": 1 / 3}
    save(folder, network=settings, weights=state, trained=trained, results=results)
    loaded = load_bundle(folder)
    assert (loaded.name, loaded.system, loaded.network) == ("mine", "decima", settings)
    environment = {"data": "/traces"}
    assert loaded.trained == {"environment": environment, "seeds": [1, 2], "date": "2026-01-02"}
    assert loaded.results == {"validation": None, "mean": 0.5, "3": 2, "f": 1 / 3}
    assert loaded.size == (folder / "weights.safetensors").stat().st_size
    assert vars(read_manifest(folder)).items() <= vars(loaded).items()
    for found in (loaded.weights, loaded.build().state_dict()):
        assert found.keys() == state.keys()
        for name, tensor in state.items():
            assert found[name].numpy().tobytes() == tensor.numpy().tobytes()
    with pytest.raises(InputError, match="expected 'das'"):
        loaded.build("das")
    assert {file.name for file in folder.iterdir()} == FILES
    assert {entry.name for entry in folder.parent.iterdir()} == {"mine"}


def test_only_a_bundle_is_replaced_and_only_on_request(copy: Path, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in copy.iterdir()}
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "notes.txt").touch()
    for place in ("copy", "precious", "precious/notes.txt"):
        with pytest.raises(InputError, match="exists already"):
            save(tmp_path / place)
    with pytest.raises(InputError, match="only one of those is replaced"):
        save(tmp_path / "precious", replace=True)
    assert {file: file.read_bytes() for file in copy.iterdir()} == before
    for name in ("newer", "newest"):
        assert load_bundle(save(copy, name=name, replace=True)).name == name
    save(tmp_path / "first", replace=True)
    assert {entry.name for entry in tmp_path.iterdir()} == {"copy", "first", "precious"}


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_failed_write_leaves_the_old_bundle(
    fails: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail(first: Any, *target: Path) -> Path:
        if fails == "rename" and not first.name.endswith(".partial"):
            return rename(first, *target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if fails == "fsync" else Path, fails, fail)
    for folder in (copy, tmp_path / "a" / "b" / "c"):
        with pytest.raises(InputError, match=r"cannot write the bundle .*: No space left"):
            save(folder, replace=True)
    assert load_bundle(copy).name == "good"
    assert {entry.name for entry in tmp_path.iterdir()} == {"copy"}


def test_invalid_names_and_weights_are_not_saved(tmp_path: Path) -> None:
    for name in ("", "a/b", "-x", ".x", " x", "a\nb", "\x1b[31m", "x" * 101):
        with pytest.raises(InputError, match="cannot name a bundle"):
            save(tmp_path / "b", name=name)
    weights = build_network("decima", {}).state_dict()
    weights["score_stage.0.bias"].fill_(torch.nan)
    with pytest.raises(InputError, match="not finite"):
        save(tmp_path / "b", weights=weights)
    assert list(tmp_path.iterdir()) == []


EDITS: dict[str, tuple[Change, str]] = {
    "another program's": (lambda r: r.pop("kind"), "describes no loadmaster policy"),
    "newer": (lambda r: r.update(format=2, loadmaster="7.1.0"), "by loadmaster 7.1.0 in bundle fo"),
    "newer, and hostile": (lambda r: r.update(format=9, loadmaster="\x1b[2J" * 99), "upgrade it"),
    "format true": (lambda r: r.update(format=True), "expected a format number"),
    "no version": (lambda r: r.pop("loadmaster"), "expected a format number"),
    "no name": (lambda r: r.pop("name"), "expected text under 'name'"),
    "name with a colour": (lambda r: r.update(name="\x1b[31mred"), "cannot name a bundle"),
    "no network": (lambda r: r.pop("network"), "expected a mapping under 'network'"),
    "trained a list": (lambda r: r.update(trained=[]), "expected a mapping under 'trained'"),
    "no digest": (lambda r: r["weights"].pop("sha256"), "expected the sha256"),
    "size as text": (lambda r: r["weights"].update(bytes="9"), "expected the sha256"),
    "unknown system": (lambda r: r.update(system="decimo"), "did you mean 'decima'"),
    "hostile system": (lambda r: r.update(system="\x1b[31m"), "unknown system"),
    "unknown setting": (lambda r: r["network"].update(widht=8), "did you mean 'width'"),
    "another network": (lambda r: r["network"].update(width=9), "expected (9, 16) float32"),
    "fewer parts": (lambda r: r["network"].update(limits=False), "has the surplus 'score_limit"),
    "giant network": (lambda r: r["network"].update(width=10**7), "expected ("),
    "impossible network": (lambda r: r["network"].update(width=10**18), "no possible network"),
}


@pytest.mark.parametrize(("change", "expected"), EDITS.values(), ids=EDITS)
def test_changed_manifest_is_refused(change: Change, expected: str, copy: Path) -> None:
    edit(copy, change)
    assert expected in refused(copy)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", "\x00\xff", '{"kind": "loadmaster-policy", "format": 1e999}',
     '{"kind": NaN}', "[" * 100_000, '{"format": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_malformed_manifest_is_refused(text: str, copy: Path) -> None:
    (copy / "manifest.json").write_bytes(text.encode("latin-1"))
    assert "manifest.json" in refused(copy)


def test_paths_without_a_bundle_are_refused(copy: Path, tmp_path: Path) -> None:
    assert "does not exist; expected" in refused(tmp_path / "nowhere")
    assert "is not a folder; expected" in refused(copy / "README.md")
    assert "has no manifest.json" in refused(tmp_path)
    run = tmp_path / "run"
    make_bundle(run / "best")
    (run / "manifest.json").write_text('{"system": "decima"}')
    assert f"this run has {run}/best" in refused(run)


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
def test_huge_files_pipes_and_folders_are_refused(name: str, copy: Path) -> None:
    os.truncate(copy / name, 1 << 40)  # sparse
    assert "has 1,099,511,627,776 bytes; expected at most" in refused(copy)
    for make in (os.mkfifo, os.mkdir):
        shutil.move(copy / name, copy.parent / make.__name__)
        make(copy / name)
        assert "is no plain file" in refused(copy)


def test_weights_of_another_network_are_refused(copy: Path) -> None:
    name = "score_stage.0.bias"
    good = (copy / "weights.safetensors").read_bytes()
    for change, expected in (
        (lambda w: w.pop(name), f"lacks '{name}'"),
        (lambda w: w.update(alien=torch.zeros(1)), "has the surplus 'alien'"),
        (lambda w: w.update({name: torch.zeros(3)}), f"'{name}' is (3,) float32; expected (32,)"),
        (lambda w: w.update({name: w[name].half()}), f"'{name}' is (32,) float16; expected (32,)"),
        (lambda w: w[name].fill_(torch.inf), f"'{name}' has weights that are not finite"),
        (lambda w: w[name][3:4].fill_(torch.nan), f"'{name}' has weights that are not finite"),
    ):
        weights = safetensors.torch.load(good)
        change(weights)
        put_weights(copy, safetensors.torch.save(weights))
        assert expected in refused(copy)


def test_damaged_weights_and_other_formats_are_refused(copy: Path) -> None:
    file = copy / "weights.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    assert f"has {len(content) - 100:,} bytes; expected the {len(content):,}" in refused(copy)
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "is damaged; expected the sha256" in refused(copy)
    for other in (b"", b"\x00" * 8, b"\xff" * 64, pickle.dumps({"weights": [1.0]})):
        put_weights(copy, other)
        assert "is malformed; expected safetensors" in refused(copy)
    file.unlink()
    assert "cannot read" in refused(copy)


def test_loading_uses_no_pickle(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.delattr(name)
    assert load_bundle(copy).name == "good"


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), file=st.sampled_from(sorted(FILES - {"README.md"})), signed=st.booleans())
def test_flipped_bytes_are_refused_or_have_no_effect(
    data: st.DataObject, file: str, signed: bool, whole: Path, copy: Path
) -> None:
    """`signed`: with the digest of the changed weights, which are then finite or refused."""
    content = bytearray((whole / file).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")  # of the weights
    end = data.draw(st.sampled_from([16, min(header, len(content)), len(content)]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    for name in FILES:
        shutil.copy(whole / name, copy / name)
    if signed and file == "weights.safetensors":
        put_weights(copy, bytes(content))
    else:
        (copy / file).write_bytes(content)
    try:
        loaded = load_bundle(copy)
    except InputError:
        return
    good = load_bundle(whole).weights
    for name, tensor in loaded.build().state_dict().items():
        assert torch.isfinite(tensor).all()
        assert torch.equal(tensor, good[name]) or (signed and file == "weights.safetensors")


def test_entry_points_add_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("linear_package")
    package.__spec__ = ModuleSpec("linear_package", None)
    package.build_network = lambda values: torch.nn.Linear(int(values["inputs"]), 1)
    package.trained_on = lambda manifest: "nothing in particular"
    package.SYSTEM = registry.System("linear", "", "adds", package="linear_package")
    monkeypatch.setitem(sys.modules, "linear_package", package)
    entry = EntryPoint("linear", "linear_package:SYSTEM", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    weights = torch.nn.Linear(3, 1).state_dict()
    folder = save(tmp_path / "b", system="linear", network={"inputs": 3}, weights=weights)
    assert torch.equal(load_bundle(folder).build().state_dict()["weight"], weights["weight"])
    assert "nothing in particular" in (folder / "README.md").read_text()


def test_card_of_a_reward_has_its_difference_in_the_same_unit(tmp_path: Path) -> None:
    entry = {
        "setting": "clarknet-like, small-1", "metric": "reward", "mean": 0.0512,
        "mean_ci95": [0.047, 0.0561], "best_baseline": "static", "baseline": 0.0321,
        "difference": 0.0191, "difference_ci95": [0.011, 0.028], "seeds": "0 to 19",
    }  # fmt: skip
    card = (save(tmp_path / "b", results={"evaluations": [entry]}) / "README.md").read_text()
    mean, difference = "0.051 [0.047, 0.056]", "+0.019 [+0.011, +0.028]"
    assert f"| reward | {mean} | static | 0.032 | {difference} | 0 to 19 |" in card


def test_card_has_the_values_of_the_manifest(tmp_path: Path) -> None:
    entry = {
        "setting": "tpch-like, 20 jobs at once | <b>", "metric": "jct, s", "mean": 88.04,
        "mean_ci95": [80.0, 96.12], "best_baseline": "weighted-fair", "baseline": 112.7,
        "difference_percent": -21.84, "difference_percent_ci95": [-25, -18.04], "seeds": "0 to 19",
    }  # fmt: skip
    trained = {
        "environment": {"arrivals": "poisson", "interarrival_s": 15.0},
        "command": "loadmaster train", "machine": {"cores": 2}, "notes": ["Only for a Monday."],
    }  # fmt: skip
    results = {"validation": 91.25, "evaluations": [entry]}
    card = (save(tmp_path / "stream", trained=trained, results=results) / "README.md").read_text()
    for line in (
        "# stream",
        "tpch-like, 201 jobs, one every 15 s on average, 50 executors, objective jct",
        "| `interarrival_s` | 15 |",
        "loadmaster train\n",
        "- machine cores: 2",
        "- validation: 91.25",
        "| tpch-like, 20 jobs at once \\| &lt;b> | jct, s | 88.0 [80.0, 96.1] | weighted-fair "
        "| 112.7 | -21.8% [-25.0, -18.0] | 0 to 19 |",
        "- Only for a Monday.",
    ):
        assert line in card, line
    assert "None recorded" not in card
    assert "None recorded" in (save(tmp_path / "b") / "README.md").read_text()


@pytest.mark.parametrize("name", pretrained_policies())
def test_cards_of_shipped_bundles_are_up_to_date(name: str) -> None:
    folder = pretrained_folder() / name
    manifest = read_manifest(folder)
    card = model_card(manifest, registry.find_system(manifest.system).load("trained_on")(manifest))
    assert (folder / "README.md").read_text() == card
