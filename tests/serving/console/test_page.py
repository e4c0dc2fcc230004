"""The console's document and headers, read without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from loadmaster.serving.console import HEADERS, SCRIPTS, page


def policy() -> dict[str, str]:
    parts = (part.strip() for part in HEADERS["Content-Security-Policy"].split(";"))
    return dict(part.split(" ", 1) for part in parts)


@pytest.mark.parametrize(("tag", "rule"), [("script", "script-src"), ("style", "style-src")])
def test_only_our_own_script_and_style_may_run(tag: str, rule: str) -> None:
    (inline,) = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline).digest()).decode()
    assert policy()[rule] == f"'sha256-{digest}'"


def test_nothing_is_allowed_that_is_not_needed() -> None:
    rules = policy()
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["form-action"] == "'none'"  # a token can never end in an address
    assert rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert HEADERS["X-Content-Type-Options"] == "nosniff"
    assert HEADERS["Referrer-Policy"] == "no-referrer"


def test_no_data_becomes_markup_and_no_style_stands_in_the_way_of_the_policy() -> None:
    text = page().decode()
    script = text[text.index("<script>") :]
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in script
    assert not re.search(r"\sstyle=|\son[a-z]+=", text[: text.index("<script>")])


def test_it_names_no_address_but_the_services_own() -> None:
    outside = set(re.findall(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s'\")]*", page()))
    assert outside == {b"http://www.w3.org/2000/svg"}  # the name of a format, not an address


def test_every_script_is_joined(root: Path) -> None:
    found = {file.stem for file in (root / "serving" / "console" / "script").glob("*.js")}
    assert found == set(SCRIPTS)


def test_every_id_the_script_asks_for_is_there_once() -> None:
    text = page().decode()
    asked = set(re.findall(r'byId\("([a-z0-9-]+)"\)', text))
    there = re.findall(r'\sid="([a-z0-9-]+)"', text)
    assert len(there) == len(set(there))
    assert asked <= set(there)
