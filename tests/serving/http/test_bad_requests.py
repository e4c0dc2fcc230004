"""Bodies without end, routes that are none, bundles from strange places: refused likewise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loadmaster.serving.settings import LimitSettings
from tests.serving import toy
from tests.serving.conftest import Here, Start
from tests.serving.refusals import refused, state_of

LARGEST = LimitSettings().largest_bytes
BOM = b"\xef\xbb\xbf"


# Sizes, kinds and ends of bodies.


@pytest.mark.parametrize("route", ["decide", "feedback", "pause", "promote"])
@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "application/json"),
        ({"Content-Type": "x" * 5000}, 415, "application/json"),
        ({"Content-Type": "<script>"}, 415, "application/json"),
        ({"Content-Encoding": "gzip"}, 415, "content encoding 'gzip'"),
        ({"Content-Length": str(LARGEST + 1)}, 413, "too large"),
        ({"Content-Length": "9" * 5000}, 413, "too large"),
    ],
)
def test_bodies_of_another_kind(
    everything: Here, route: str, headers: dict[str, str], status: int, says: str
) -> None:
    assert refused(
        lambda: everything.ask("POST", f"/v1/toy/{route}", b"{}", headers=headers),
        status,
        None,
        says,
    )


@pytest.mark.parametrize("told", ["", "-1", "x", "²", "1e3", "0x10", "5"])
def test_what_a_body_says_of_its_length_is_not_trusted(everything: Here, told: str) -> None:
    body = {"state": state_of(everything, "toy")}
    answered = everything.ask("POST", "/v1/toy/decide", body, headers={"Content-Length": told})
    assert answered.status == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_bodies_of_the_right_kind(everything: Here, kind: str) -> None:
    body = {"state": state_of(everything, "toy")}
    answered = everything.ask("POST", "/v1/toy/decide", body, headers={"Content-Type": kind})
    assert answered.status == 200


@pytest.mark.parametrize("told", [{}, {"Content-Length": "12"}])
def test_a_body_that_goes_on_and_on(start: Start, told: dict[str, str]) -> None:
    here = start(limits={"largest_bytes": 1000})
    body = b'{"state": "' + b"x" * 100_000 + b'"}'
    assert refused(
        lambda: here.ask("POST", "/v1/toy/decide", body, headers=told, parts=1000),
        413,
        None,
        "expected at most 1,000 bytes",
    )


def test_a_body_that_does_not_come(start: Start) -> None:
    here = start(limits={"body_s": 0.05})
    body = b'{"state": '
    assert refused(
        lambda: here.ask("POST", "/v1/toy/decide", body, stalls=True), 408, None, "0.05 s"
    )
    assert here.decide()["source"] == "policy"


def test_a_body_in_many_parts(start: Start) -> None:
    body = {"state": {"load": 42, "replicas": 3}}
    assert start().ask("POST", "/v1/toy/decide", body, parts=40).status == 200


# Routes.


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/v1/tyo/decide", 404, "did you mean 'toy'?"),
        ("POST", "/v1/" + "x" * 5000 + "/decide", 404, "unknown system"),
        ("GET", "/v1/<script>alert(1)</script>/status", 404, "no such route"),
        ("GET", "/v1/<script>/status", 404, "unknown system"),
        ("GET", "/v1/../status", 404, "unknown system"),
        ("GET", "/v1/systems/status", 404, "unknown system"),
        ("GET", "/", 404, "no such route: /"),
        ("GET", "/v1", 404, "no such route"),
        ("GET", "/healthz/", 404, "no such route"),
        ("GET", "/v1/toy/status/", 404, "no such route"),
        ("POST", "/v1/toy/destroy", 404, "no such route"),
        ("GET", "/" + "x" * 5000, 404, "no such route"),
        ("GET", "/v1/toy/decide", 405, "GET is not answered"),
        ("POST", "/v1/toy/status", 405, "POST is not answered"),
        ("PUT", "/v1/toy/pause", 405, "PUT is not answered"),
        ("DELETE", "/v1/systems", 405, "DELETE is not answered"),
        ("OPTIONS", "/v1/toy/decide", 405, "OPTIONS is not answered"),
        ("TRACE", "/healthz", 405, "TRACE is not answered"),
        ("X" * 500, "/healthz", 405, "is not answered"),
    ],
)
def test_routes_that_are_none(
    everything: Here, method: str, path: str, status: int, says: str
) -> None:
    answered = refused(lambda: everything.ask(method, path), status, None, says)
    assert "location" not in answered.headers
    if status == 405:
        wanted = {"POST"} if path.endswith(("decide", "pause")) else {"GET", "HEAD"}
        assert set(answered.headers["allow"].split(", ")) == wanted


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/console", "/v1/toy/status"])
def test_heads_without_bodies(everything: Here, path: str) -> None:
    assert everything.ask("HEAD", path).status == 200


@pytest.mark.parametrize("host", ["[", "]:x", "a b", "\x7f", "x" * 5000])
def test_hosts_that_are_none(everything: Here, host: str) -> None:
    assert refused(
        lambda: everything.ask("GET", "/nowhere", headers={"Host": host}), 404, None, "no such"
    )
    assert refused(lambda: everything.ask("GET", "/v1/systems", headers={"Host": host}), 403)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=-1", "limit"),
        ("limit=1e2", "limit"),
        ("limit=%C2%B2", "limit"),
        ("limit=", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("limit=%FF%00", "limit"),
    ],
)
def test_queries_that_are_wrong(everything: Here, query: str, field: str) -> None:
    assert refused(
        lambda: everything.ask("GET", f"/v1/toy/decisions?{query}"), 422, field, "1 to 200"
    )


def test_unknown_examples(everything: Here) -> None:
    assert refused(
        lambda: everything.ask("GET", "/v1/toy/example?name=" + "x" * 9000), 422, "name", "small"
    )


# Bundles to promote.


def strange_places(folder: Path) -> dict[str, str]:
    """Names and folders that are no bundle."""
    made = folder / "strange"
    made.mkdir()
    whole = toy.make_bundle(folder / "whole", "other", extra=3)
    manifest = (whole / "manifest.json").read_text()
    os.mkfifo(made / "pipe")
    (made / "round").symlink_to(made / "round")
    (made / "file").write_text("x")

    def bundle(name: str) -> Path:
        (made / name).mkdir()
        return made / name

    os.mkfifo(bundle("pipe for a manifest") / "manifest.json")
    (bundle("zeros for a manifest") / "manifest.json").symlink_to("/dev/zero")
    (bundle("folder for a manifest") / "manifest.json").mkdir()
    (bundle("passwords for a manifest") / "manifest.json").symlink_to("/etc/passwd")
    (bundle("nesting") / "manifest.json").write_text("[" * 1_000_000)
    (bundle("long manifest") / "manifest.json").write_text(" " * (5 << 20))
    (bundle("no manifest") / "manifest.json").write_text('{"kind": "loadmaster-policy"}')
    (bundle("no weights") / "manifest.json").write_text(manifest)
    (bundle("pipe for weights") / "manifest.json").write_text(manifest)
    os.mkfifo(made / "pipe for weights" / "weights.safetensors")
    (bundle("zeros for weights") / "manifest.json").write_text(manifest)
    (made / "zeros for weights" / "weights.safetensors").symlink_to("/dev/zero")
    huge = json.loads(manifest)
    huge["weights"]["bytes"] = 1 << 40
    (bundle("huge weights") / "manifest.json").write_text(json.dumps(huge))
    with (made / "huge weights" / "weights.safetensors").open("wb") as sparse:
        sparse.truncate(1 << 40)
    wrong = json.loads(manifest)
    wrong["weights"]["sha256"] = "../" * 21 + "x"
    (bundle("path for a digest") / "manifest.json").write_text(json.dumps(wrong))
    wrong["weights"]["sha256"] = "0" * 64
    (bundle("another's weights") / "manifest.json").write_text(json.dumps(wrong))
    (made / "another's weights" / "weights.safetensors").write_bytes(
        (whole / "weights.safetensors").read_bytes()
    )
    plain = ["", " ", ".", "..", "../..", "~", "-", "/", "/dev/zero", "/dev/stdin", "/proc/self",
             "/etc/passwd", "a\0b", "/a\0b", "x" * 1000, "/" + "x" * 999, "../" * 300,
             "decima-sream", "<script>", "toy\n", "//", "file:///etc", "é" * 500]  # fmt: skip
    return {name: name for name in plain} | {one.name: str(one) for one in made.iterdir()}


def test_bundles_that_are_none(start: Start) -> None:
    here = start()
    kept = here.folder / "kept"
    before = here.status(), sorted(kept.rglob("*"))
    for spec in strange_places(here.folder).values():
        for to in ("serving", "shadow"):
            order = {"bundle": spec, "to": to}
            answered = refused(
                lambda order=order: here.ask("POST", "/v1/toy/promote", order),  # type: ignore[misc]
                422,
                "bundle",
            )
            assert "root:" not in answered.json["error"], "no content of files is told"
    after = here.status(), sorted(kept.rglob("*"))
    assert {**after[0], "log": 0} == {**before[0], "log": 0}
    assert after[1] == before[1]
    assert here.decide()["source"] == "policy"


def test_a_folder_that_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = start()
    closed = here.folder / "closed"
    honest = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(13, "Permission denied")
        return honest(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    order = {"bundle": str(closed)}
    assert refused(
        lambda: here.ask("POST", "/v1/toy/promote", order), 422, "bundle", "Permission denied"
    )


def test_a_link_to_a_bundle_is_one(start: Start) -> None:
    here = start()
    better = toy.make_bundle(here.folder / "better", "better", extra=1)
    (here.folder / "link").symlink_to(better)
    told = here.ask("POST", "/v1/toy/promote", {"bundle": str(here.folder / "link")}).json
    assert told["policies"]["serving"]["name"] == "better"
