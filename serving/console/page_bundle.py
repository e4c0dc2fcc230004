"""Pages in one file that load nothing over the network: ES modules are bundled, all is inline."""

import base64
import hashlib
import json
import posixpath
import re
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template
from typing import Any, NamedTuple

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]*)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_UNSUPPORTED = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class _Module(NamedTuple):
    body: str
    exports: frozenset[str]
    imports: dict[str, set[str]]  # imported names by module


def bundle_modules(root: Traversable, entry: str) -> str:
    """Join the module `entry` and all modules it imports into one script, in dependency order.

    Paths are relative to `root`. Each module becomes a function scope that returns its exports, so
    top-level names of different modules may be equal. Supported statements: named imports of
    relative paths, and `export` before a function, class or const.
    """
    modules: dict[str, _Module] = {}
    pending = [entry]
    while pending:
        path = pending.pop()
        if path not in modules:
            modules[path] = _read_module(root, path)
            pending.extend(modules[path].imports)
    for path, module in modules.items():
        for source, names in module.imports.items():
            if missing := names - modules[source].exports:
                raise ValueError(f"{path} imports {', '.join(sorted(missing))}; not in {source}")
    graph = TopologicalSorter({path: module.imports for path, module in modules.items()})
    try:
        order = list(graph.static_order())
    except CycleError as error:
        raise ValueError(f"import cycle: {' <- '.join(error.args[1])}") from None
    scopes = (
        f"modules[{json.dumps(path)}] = (() => {{\n{modules[path].body}"
        f"return {{ {', '.join(sorted(modules[path].exports))} }};\n}})();\n"
        for path in order
    )
    script = f'"use strict";\n(() => {{\nconst modules = {{}};\n{"".join(scopes)}}})();\n'
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError("a script must not contain </script or <!--; both end it in HTML")
    return script


def _read_module(root: Traversable, path: str) -> _Module:
    file = root.joinpath(path)
    if path.startswith("..") or not file.is_file():
        raise ValueError(f"no module {path}")
    imports: dict[str, set[str]] = {}

    def link(found: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        names = [name.strip() for name in found[1].split(",") if name.strip()]
        imports.setdefault(source, set()).update(name.split(" as ")[0] for name in names)
        bindings = ", ".join(name.replace(" as ", ": ") for name in names)
        return f"const {{ {bindings} }} = modules[{json.dumps(source)}];"

    text = _IMPORT.sub(link, file.read_text(encoding="utf-8"))
    exports = _EXPORT.findall(text)
    body = _EXPORT.sub("", text)
    if unsupported := _UNSUPPORTED.search(body):
        raise ValueError(f"{path}: unsupported statement: {unsupported[0]}")
    if len(set(exports)) < len(exports):
        raise ValueError(f"{path} exports a name twice: {', '.join(sorted(exports))}")
    return _Module(body, frozenset(exports), imports)


def offline_page(
    content: str, style: str, script: str, data_id: str, data: Any, **head: str
) -> str:
    """Build a page with a head of `title`, `subtitle`, `headline` and `note`, and then `content`.

    These are HTML. The script finds `data` as JSON in the element with the id `data_id`.
    """
    frame = files("loadmaster.serving.console").joinpath("offline.html")
    return Template(frame.read_text(encoding="utf-8")).substitute(
        head,
        content=content,
        security=_offline_policy(style, script),
        style=style,
        script=script,
        data_id=data_id,
        data=_inline_json(data),
    )


def _offline_policy(style: str, script: str) -> str:
    """Content-Security-Policy of a file: no network, no script or style but the given ones."""
    return (
        f"default-src 'none'; style-src {csp_hash(style)}; script-src {csp_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _inline_json(data: Any) -> str:
    """JSON inside a script element, which a string such as </script> does not end."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def csp_hash(text: str) -> str:
    """Source expression that allows exactly this inline text in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
