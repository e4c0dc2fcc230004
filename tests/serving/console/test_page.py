"""The document and headers of the console, without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from loadmaster.serving.console import HEADERS, PAGE


def policy() -> dict[str, str]:
    parts = (part.strip() for part in HEADERS["Content-Security-Policy"].split(";"))
    return dict(part.split(" ", 1) for part in parts)


@pytest.mark.parametrize(("tag", "rule"), [("script", "script-src"), ("style", "style-src")])
def test_policy_allows_only_the_inline_script_and_style(tag: str, rule: str) -> None:
    (inline,) = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), PAGE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline).digest()).decode()
    assert policy()[rule] == f"'sha256-{digest}'"


def test_policy_and_headers_are_strict() -> None:
    rules = policy()
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["form-action"] == "'none'"  # a token can never become part of a URL
    assert rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert HEADERS["X-Content-Type-Options"] == "nosniff"
    assert HEADERS["Referrer-Policy"] == "no-referrer"


def test_page_uses_no_markup_sinks_or_inline_handlers() -> None:
    document, _, script = PAGE.decode().partition("<script>")
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\("
    assert not re.search(sinks, script)
    assert not re.search(r"\sstyle=|\son[a-z]+=", document)


def test_page_names_no_other_address() -> None:
    outside = set(re.findall(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s'\")]*", PAGE))
    assert outside == {b"http://www.w3.org/2000/svg"}  # an XML namespace, not an address


def test_every_module_is_bundled(root: Path) -> None:
    files = {file.name for file in (root / "serving" / "console" / "script").glob("*.js")}
    assert set(re.findall(r'^modules\["(.*)"\] = ', PAGE.decode(), re.MULTILINE)) == files


def test_every_id_in_the_script_exists_once() -> None:
    text = PAGE.decode()
    ids = re.findall(r'\sid="([a-z0-9-]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'byId\("([a-z0-9-]+)"\)', text)) <= set(ids)
