"""Bundles that are promoted: unusable ones are refused, and nothing changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.serving import toy
from tests.serving.conftest import Start
from tests.serving.http.test_bad_requests import assert_refused


def bad_bundles(folder: Path) -> list[str]:
    """Names and folders that are not usable bundles."""
    made = folder / "bad"
    made.mkdir()
    weights = toy.make_bundle(folder / "valid", "other", extra=3) / "weights.safetensors"
    manifest = json.loads((folder / "valid" / "manifest.json").read_text())

    def bundle(name: str, manifest: Any = None) -> Path:
        (made / name).mkdir()
        if manifest is not None:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            (made / name / "manifest.json").write_text(text)
        return made / name

    def with_weights(**changes: Any) -> dict[str, Any]:
        return {**manifest, "weights": {**manifest["weights"], **changes}}

    os.mkfifo(made / "pipe")
    (made / "loop").symlink_to(made / "loop")
    (made / "file").write_text("x")
    os.mkfifo(bundle("manifest is a pipe") / "manifest.json")
    (bundle("manifest is zeros") / "manifest.json").symlink_to("/dev/zero")
    (bundle("manifest is a folder") / "manifest.json").mkdir()
    (bundle("manifest is passwd") / "manifest.json").symlink_to("/etc/passwd")
    bundle("nested manifest", "[" * 1_000_000)
    bundle("long manifest", " " * (5 << 20))
    bundle("incomplete manifest", {"kind": "loadmaster-policy"})
    bundle("no weights", manifest)
    os.mkfifo(bundle("weights are a pipe", manifest) / "weights.safetensors")
    (bundle("weights are zeros", manifest) / "weights.safetensors").symlink_to("/dev/zero")
    huge = bundle("huge weights", with_weights(bytes=1 << 40)) / "weights.safetensors"
    with huge.open("wb") as sparse:
        sparse.truncate(1 << 40)
    bundle("digest is a path", with_weights(sha256="../" * 21 + "x"))
    wrong = bundle("wrong digest", with_weights(sha256="0" * 64))
    (wrong / "weights.safetensors").write_bytes(weights.read_bytes())
    names = ["", " ", ".", "..", "../..", "~", "-", "/", "/dev/zero", "/dev/stdin", "/proc/self",
             "/etc/passwd", "a\0b", "/a\0b", "x" * 1000, "/" + "x" * 999, "../" * 300,
             "decima-sream", "<script>", "toy\n", "//", "file:///etc", "é" * 500]  # fmt: skip
    return names + [str(one) for one in made.iterdir()]


def test_bad_bundles_are_refused_and_nothing_is_stored(start: Start) -> None:
    here = start()
    kept = here.folder / "kept"
    before = here.status(), sorted(kept.rglob("*"))
    for bundle in bad_bundles(here.folder):
        for to in ("serving", "shadow"):
            body = {"bundle": bundle, "to": to}
            answer = assert_refused(here, "POST", "/v1/toy/promote", body, 422, "bundle")
            assert "root:" not in answer.json["error"]  # no content of files
    after = here.status(), sorted(kept.rglob("*"))
    assert {**after[0], "log": 0} == {**before[0], "log": 0}
    assert after[1] == before[1]
    assert here.decide()["source"] == "policy"


def test_a_bundle_without_permission_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start()
    closed = here.folder / "closed"
    is_file = Path.is_file

    def denied(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    body = {"bundle": str(closed)}
    assert_refused(here, "POST", "/v1/toy/promote", body, 422, "bundle", "Permission denied")


def test_a_link_to_a_bundle_is_accepted(start: Start) -> None:
    here = start()
    better = toy.make_bundle(here.folder / "better", "better", extra=1)
    (here.folder / "link").symlink_to(better)
    answer = here.request("POST", "/v1/toy/promote", {"bundle": str(here.folder / "link")})
    assert answer.json["policies"]["serving"]["name"] == "better"
