"""The page of the console without a browser: document, headers, and the bundler of its modules."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from loadmaster.serving.console import HEADERS, PAGE
from loadmaster.serving.console.page_bundle import bundle_modules

NODE = shutil.which("node")
ORDER = re.compile(r'^modules\["(.*)"\] = ', re.MULTILINE)


def policy() -> dict[str, str]:
    parts = (part.strip() for part in HEADERS["Content-Security-Policy"].split(";"))
    return dict(part.split(" ", 1) for part in parts)


@pytest.mark.parametrize(("tag", "rule"), [("script", "script-src"), ("style", "style-src")])
def test_policy_allows_only_the_inline_script_and_style(tag: str, rule: str) -> None:
    (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    assert policy()[rule] == f"'sha256-{digest}'"


def test_policy_and_headers_are_strict() -> None:
    rules = policy()
    closed = ("default-src", "frame-ancestors", "base-uri", "form-action")  # no token in a URL
    assert {rules[name] for name in closed} == {"'none'"}
    assert (rules["connect-src"], rules["require-trusted-types-for"]) == ("'self'", "'script'")
    strict = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    assert strict.items() <= HEADERS.items()


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
    assert set(ORDER.findall(PAGE.decode())) == files


def test_every_id_in_the_script_exists_once() -> None:
    text = PAGE.decode()
    ids = re.findall(r'\sid="([a-z0-9-]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'byId\("([a-z0-9-]+)"\)', text)) <= set(ids)


def write(folder: Path, **modules: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")
    return folder


def test_modules_are_ordered_and_have_scopes_of_their_own(tmp_path: Path) -> None:
    """Three modules; two of them define a name `x`."""
    main = 'import { two as double,\n  print } from "./sub/b.js";\nprint(1, double());\n'
    write(tmp_path, main=main, a="const x = 20;\nexport const one = x + 1;\n")
    text = 'import { one } from "../a.js";\nconst x = "b";\n'
    text += "export const print = (...all) => console.log(JSON.stringify([...all, x]));\n"
    write(tmp_path / "sub", b=f"{text}export function two() {{\n  return 2 * one;\n}}\n")
    script = bundle_modules(tmp_path, "main.js")
    assert ORDER.findall(script) == ["a.js", "sub/b.js", "main.js"]
    if NODE is None:
        pytest.skip("node is not installed")
    assert json.loads(subprocess.check_output([NODE, "-e", script])) == [1, 42, "b"]


@pytest.mark.parametrize(
    ("main", "error"),
    [
        ('import { b } from "./b.js";\nexport const a = b;\n', "cycle"),
        ('import { c } from "./missing.js";\n', "missing.js"),
        ('import { c } from "../outside.js";\n', "outside.js"),
        ('import { c } from "./c.js";\n', "imports c"),
        ("export const a = 1;\nexport function a() {}\n", "twice"),
        ("export default 1;\n", "unsupported"),
        ('import * as c from "./c.js";\n', "unsupported"),
        ('const a = "</script>";\n', "script"),
    ],
)
def test_invalid_module_is_an_error(tmp_path: Path, main: str, error: str) -> None:
    b = 'import { a } from "./main.js";\nexport const b = a;\n'
    with pytest.raises(ValueError, match=error):
        bundle_modules(write(tmp_path, main=main, b=b, c="export const d = 1;\n"), "main.js")
