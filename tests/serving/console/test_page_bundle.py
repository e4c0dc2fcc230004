"""The bundler of ES modules, and the modules of both pages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from loadmaster.serving.console.page_bundle import bundle_modules

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


def write(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Bundle of three modules; two of them define a name `x`."""
    main = 'import { two as double,\n  print } from "./sub/b.js";\nprint(1, double());\n'
    root = write(tmp_path, main=main, a="const x = 20;\nexport const one = x + 1;\n")
    (tmp_path / "sub").mkdir()
    text = 'import { one } from "../a.js";\nconst x = "b";\n'
    text += "export const print = (...all) => console.log(JSON.stringify([...all, x]));\n"
    write(tmp_path / "sub", b=f"{text}export function two() {{\n  return 2 * one;\n}}\n")
    return bundle_modules(root, "main.js")


def test_modules_are_ordered_by_dependency(script: str) -> None:
    order = re.findall(r'^modules\["(.*)"\] = ', script, re.MULTILINE)
    assert order == ["a.js", "sub/b.js", "main.js"]


@needs_node
def test_modules_have_scopes_of_their_own(script: str) -> None:
    assert NODE is not None
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [1, 42, "b"]


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


PARSE = """
const { SourceTextModule } = require("vm"), { readFileSync } = require("fs");
process.argv.slice(1).forEach((file) => new SourceTextModule(readFileSync(file, "utf8")));
"""


@needs_node
def test_node_accepts_every_module(root: Path) -> None:
    folders = (root / "serving" / "console" / "script", root / "platform" / "replay" / "script")
    files = [str(file) for folder in folders for file in folder.rglob("*.js")]
    assert len(files) > 2
    command = [str(NODE), "--experimental-vm-modules", "--no-warnings", "-e", PARSE]
    subprocess.run([*command, *files], check=True)
